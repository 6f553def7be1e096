"""A test of many small rows: one test, which says at which row it failed.

Every test costs milliseconds to collect in each worker and to report. Where a row costs less than that, ``each_row`` stands in
for ``pytest.mark.parametrize``. All rows share the test's fixtures.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable
from typing import Any


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The arguments of ``parametrize``: a name and its values, or several names and rows of as many values."""
    every = list(rows)
    assert every, "no rows"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def over_every_row(**fixtures: Any) -> None:
            for number, row in enumerate(every):
                given = {names: row} if isinstance(names, str) else dict(zip(names, row, strict=True))
                try:
                    test(**fixtures, **given)
                except Exception as error:
                    error.add_note(f"row {number} of {len(every)}: {reprlib.repr(given)}")
                    raise

        signature = inspect.signature(test)
        left = [p for name, p in signature.parameters.items() if name not in ([names] if isinstance(names, str) else names)]
        assert len(left) < len(signature.parameters), f"{test.__name__} takes no {names}"
        vars(over_every_row)["__signature__"] = signature.replace(parameters=left)
        return over_every_row

    return decorate
