"""Goodput of many jobs, asked at once: jobs with equal steps and limits share the work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.speeds.goodput import ENVELOPE_FROM, BatchLimits, Noise, StepSeconds
from paceline.scheduling.state import Outlook


@dataclass(frozen=True, slots=True)
class SharedGoodput:
    """Steps and limits of all jobs of a kind on a device type.

    Attributes:
        times, limits, per_node: arguments of ``StepSeconds.goodput_on``.
        factor: factor of the goodput, if the steps are those of another type.
    """

    times: StepSeconds
    limits: BatchLimits
    per_node: int
    factor: float = 1.0


class SharedOutlook(Outlook, Protocol):
    """Outlook whose goodput differs from that of other jobs of its kind by the noise and the least devices alone."""

    @property
    def kind(self) -> Hashable | None:
        """Key of the kind; None: this job must be asked alone."""
        ...

    @property
    def noise(self) -> Noise:
        """Noise at the first batch."""
        ...

    @property
    def least_devices(self) -> int:
        """Least number of devices on which the job runs."""
        ...

    def shared_goodput(self, device_type: int) -> SharedGoodput | None:
        """Return steps and limits on a type; None if the job must be asked alone there."""
        ...

    def progress_left(self) -> float:
        """Return the remaining progress; NaN if unknown."""
        ...


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


def shared_outlook(outlook: Outlook) -> SharedOutlook | None:
    """Return the outlook if others may share its goodput."""
    return outlook if getattr(outlook, "kind", None) is not None else None  # type: ignore[return-value]


def goodput_on(outlooks: Sequence[Outlook], types: Sequence[int], sizes: Sequence[Ints]) -> Array:
    """Return the goodput of each outlook on a device type on its sizes, one after another.

    Jobs of one kind are computed together on the sizes that they ask for, and leave no tables in their outlooks. The questions
    come in three lists, as thousands of tuples would start Python's search for garbage.

    Args:
        outlooks, types, sizes: of each question. Sizes are above 0 and ascend.
    """
    if not outlooks:
        return np.zeros(0)
    counts = np.array([len(legal) for legal in sizes])
    starts = counts.cumsum() - counts
    devices = np.concatenate(sizes)
    rate = np.zeros(len(devices))
    alone, groups = _by_kind(outlooks, types)
    for group in groups:
        many = counts[group.entries]
        row = np.repeat(np.arange(len(many)), many)
        place = starts[group.entries][row] + np.arange(len(row)) - (many.cumsum() - many)[row]
        there = devices[place]
        present = np.bincount(there) > 0
        found = group.table(np.flatnonzero(present))[row, (present.cumsum() - 1)[there]]
        rate[place] = np.where(there < group.least[row], 0.0, found)
    tables = _kept_tables([(outlooks[entry], types[entry], int(sizes[entry][-1])) for entry in alone])
    for entry, table in zip(alone, tables, strict=True):
        rate[starts[entry] : starts[entry] + counts[entry]] = table[sizes[entry]]
    return rate


def goodput_tables(asked: Sequence[tuple[Outlook, int, int]]) -> list[Array]:
    """Return the goodput of each (outlook, device type, most devices), as ``Outlook.goodput`` does."""
    alone, groups = _by_kind([outlook for outlook, *_ in asked], [device_type for _, device_type, _ in asked])
    tables = dict(zip(alone, _kept_tables([asked[entry] for entry in alone]), strict=True))
    for group in groups:
        most = [asked[entry][2] for entry in group.entries]
        block = np.zeros((len(most), max(most) + 1))
        block[:, 1:] = group.table(np.arange(1, max(most) + 1))
        block[np.arange(max(most) + 1) < group.least[:, None]] = 0.0
        tables |= {entry: row[: count + 1] for entry, row, count in zip(group.entries, block, most, strict=True)}
    return [tables[entry] for entry in range(len(asked))]


@dataclass(frozen=True, slots=True)
class _KindGroup:
    """Questions about jobs of a kind on a type. ``entries``: their indices. Arrays have one entry per question."""

    entries: list[int]
    shared: SharedGoodput
    signal: Array
    variance: Array
    least: Ints

    @classmethod
    def of(cls, entries: list[int], outlooks: Sequence[SharedOutlook], device_type: int) -> _KindGroup | None:
        """Return the group; None if its jobs must be asked alone."""
        shared = outlooks[0].shared_goodput(device_type) if len(entries) >= ENVELOPE_FROM else None
        if shared is None:
            return None
        noises = [outlook.noise for outlook in outlooks]
        signal, variance = np.array([noise.signal for noise in noises]), np.array([noise.variance for noise in noises])
        if not ((signal > 0) & (variance >= 0)).all():
            return None
        return cls(entries, shared, signal, variance, np.array([outlook.least_devices for outlook in outlooks]))

    def table(self, devices: Ints) -> Array:
        """Return the goodput on these devices; shape (jobs, sizes)."""
        shared = self.shared
        table = shared.times.goodput_on(shared.limits, shared.per_node, devices, self.signal, self.variance)
        return table * shared.factor if shared.factor != 1 else table


def _by_kind(outlooks: Sequence[Outlook], types: Sequence[int]) -> tuple[list[int], list[_KindGroup]]:
    """Return the questions about single jobs, and those about many jobs of a kind on each type."""
    alone, kinds = list[int](), defaultdict[Hashable, defaultdict[int, list[int]]](lambda: defaultdict(list))
    last, by_type = None, None
    for entry, (outlook, device_type) in enumerate(zip(outlooks, types, strict=True)):
        if outlook is not last:
            last, kind = outlook, getattr(outlook, "kind", None)
            by_type = None if kind is None else kinds[kind]
        if by_type is None:
            alone.append(entry)
        else:
            by_type[device_type].append(entry)
    groups = []
    for device_type, entries in (item for by_type in kinds.values() for item in by_type.items()):
        group = _KindGroup.of(entries, [outlooks[entry] for entry in entries], device_type)  # type: ignore[misc]
        if group is None:
            alone += entries
        else:
            groups.append(group)
    return alone, groups


def _kept_tables(asked: Sequence[tuple[Outlook, int, int]]) -> list[Array]:
    """Return the goodput of each (outlook, device type, most devices), which the outlook keeps.

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
