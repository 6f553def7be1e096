"""Goodput of many jobs, asked at once: jobs with equal steps and limits share the work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.array_types import Array
from paceline.scheduling.speeds.goodput import BatchLimits, Noise, StepSeconds
from paceline.scheduling.state import Outlook


@dataclass(frozen=True, slots=True)
class MissingTable:
    """Goodput that an outlook does not know yet.

    Attributes:
        times, limits, per_node, most, noise: arguments of ``StepSeconds.packed_goodput``.
        keep: function that takes its result.
    """

    times: StepSeconds
    limits: BatchLimits
    per_node: int
    most: int
    noise: Noise
    keep: Callable[[Array], None]


def goodput_tables(asked: Sequence[tuple[Outlook, int, int]]) -> list[Array]:
    """Return the goodput of each (outlook, device type, most devices), as ``Outlook.goodput`` does.

    An outlook may have a method ``missing_goodput`` of the same arguments, which returns a ``MissingTable`` or None.
    """
    missing: defaultdict[tuple[int, BatchLimits, int], list[MissingTable]] = defaultdict(list)
    for outlook, device_type, most in asked:
        ask = getattr(outlook, "missing_goodput", None)
        if ask is not None and (table := ask(device_type, most)) is not None:
            missing[id(table.times), table.limits, table.per_node].append(table)
    for tables in missing.values():
        if len(tables) > 1:
            most = max(table.most for table in tables)
            first = tables[0]
            found = first.times.packed_goodputs(first.limits, first.per_node, most, [table.noise for table in tables])
            for table, goodput in zip(tables, found, strict=True):
                table.keep(goodput)
    return [outlook.goodput(device_type, most) for outlook, device_type, most in asked]
