"""Waits in which only time counts that this process has.

A machine that is suspended or overloaded stops this process and those that it waits for. When all continue, a clock would say
that the others are late.
"""

from __future__ import annotations

from collections.abc import Iterator

SLICE_S = 0.1


def slices(seconds: float) -> Iterator[float]:
    """Yield short waits that add up to ``seconds``. A wait that takes longer than asked still counts as long as asked."""
    count, rest = divmod(seconds, SLICE_S)
    yield from [SLICE_S] * int(count)
    if rest:
        yield rest
