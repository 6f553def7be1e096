"""Step times of a run from the records of its steps: of one process, by the best quantity that they state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array
from paceline.calibration.imports.quantities import StepRecords
from paceline.calibration.imports.step_times import LEAST

WINDOW = 20.0
"""Shortest measured time in units of the clock's resolution: an error of at most 5 %."""
COARSE, FINE = 1.0, 1e-3
"""Resolutions of clocks in seconds: of whole seconds, and of any other."""


@dataclass(frozen=True, kw_only=True)
class StepSizes:
    """Known sizes of a step; 0 if unknown."""

    global_batch: float = 0.0
    tokens_per_step: float = 0.0
    device_tokens_per_step: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StepSeries:
    """Step times in order.

    Attributes:
        step_s: seconds of a step, or of a mean step of each logged interval.
        basis: quantity from which they follow; empty for stated seconds.
        notes: repairs, one sentence each.
    """

    step_s: Sequence[float] = ()
    basis: str = ""
    notes: tuple[str, ...] = ()


def step_series(columns: Mapping[str, Array], sizes: StepSizes) -> StepSeries:
    """Return the step times of ``one_process``: by stated seconds, by rates and known sizes, by a clock, by a smoothed rate."""
    runs, notes = _runs(columns["step"], columns["clock_s"])
    for basis, seconds in _bases(columns, sizes):
        times = _joined(seconds, runs)
        if len(times):
            return StepSeries(step_s=times, basis=basis, notes=notes)
    clocked = _clocked(columns, runs)
    if len(clocked) >= LEAST:
        return StepSeries(step_s=clocked, basis="the clock of its lines", notes=notes)
    smoothed = columns["smoothed_step_s"]
    smoothed = np.where(np.isnan(smoothed), 1 / _above_0(columns["smoothed_steps_per_s"]), smoothed)
    return StepSeries(step_s=_joined(smoothed, runs), basis="the smoothed rate of its progress bar", notes=notes)


def one_process(records: StepRecords) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Return the columns of one process, and notes on records that were dropped or joined.

    Lines of several processes: the lowest rank counts. Without ranks, records of one step that most steps repeat are joined to
    medians. Progress bars: the one that took longest counts.
    """
    columns = {name: np.array(column) for name, column in records.columns.items()}
    notes: list[str] = []
    ranks = columns["rank"]
    named = np.unique(ranks[~np.isnan(ranks)])
    if len(named) > 1:
        columns = _only(columns, ranks == named[0])
        notes.append(f"It has lines of {len(named)} processes: those of process {named[0]:.0f} count.")
    totals = columns["total"]
    bars = np.unique(totals[~np.isnan(totals)])
    if len(bars) > 1:
        spans = [_span(columns["clock_s"][totals == bar]) for bar in bars]
        longest = bars[int(np.argmax(spans))]
        columns = _only(columns, totals == longest)
        notes.append(f"It has {len(bars)} progress bars: the longest, of {longest:,.0f} steps, counts.")
    steps = columns["step"]
    known = steps[~np.isnan(steps)]
    if len(known) > 1 and np.isnan(columns["total"]).all():
        _, counts = np.unique(known, return_counts=True)
        times = float(np.median(counts))
        if times >= 2 and len(counts) >= LEAST:
            columns = _merged(columns)
            notes.append(f"It has each step {times:.0f} times, as {times:.0f} processes write it: their medians count.")
    return columns, tuple(notes)


def _only(columns: Mapping[str, Array], chosen: Array) -> dict[str, Array]:
    return {name: column[chosen] for name, column in columns.items()}


def _span(clock: Array) -> float:
    known = clock[~np.isnan(clock)]
    return float(known.max() - known.min()) if len(known) else 0.0


def _merged(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return one record for each number of a step: medians."""
    steps = columns["step"]
    order = np.argsort(steps, kind="stable")
    order = order[~np.isnan(steps[order])]
    starts = np.flatnonzero(np.diff(steps[order], prepend=np.nan) != 0)
    merged: dict[str, Array] = {}
    for name, column in columns.items():
        ordered = column[order]
        empty = np.isnan(ordered).all()
        merged[name] = ordered[starts] if empty else np.array([_median(part) for part in np.split(ordered, starts[1:])])
    return merged


def _median(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _runs(steps: Array, clock: Array) -> tuple[list[slice], tuple[str, ...]]:
    """Divide records where the number of the step or the clock decreases: a restart, or a new epoch."""
    back = (np.diff(steps) < 0) | (np.diff(clock) < 0)
    cuts = [int(index) for index in np.flatnonzero(back) + 1]
    if not cuts:
        return [slice(0, len(steps))], ()
    parts = [slice(start, end) for start, end in zip([0, *cuts], [*cuts, len(steps)], strict=True)]
    times = f"{len(cuts)} time{'s' * (len(cuts) != 1)}"
    what = f"Its steps or its clock go back {times}, as after a restart or an epoch: the first step after it is left out."
    return parts, (what,)


def _above_0(values: Array) -> Array:
    return np.where(values > 0, values, np.nan)


def _bases(columns: Mapping[str, Array], sizes: StepSizes) -> list[tuple[str, Array]]:
    """Return seconds of a step by each quantity, the best first."""
    bases = [("", _above_0(columns["step_s"])), ("steps a second", 1 / _above_0(columns["steps_per_s"]))]
    for name, words, size in (
        ("samples_per_s", "samples a second", sizes.global_batch),
        ("tokens_per_s", "tokens a second", sizes.tokens_per_step),
        ("device_tokens_per_s", "tokens a second of a device", sizes.device_tokens_per_step),
    ):
        if size:
            bases.append((words, size / _above_0(columns[name])))
    return bases


def _joined(seconds: Array, runs: Sequence[slice]) -> list[float]:
    """Return the known seconds of all runs, without the first of each later run."""
    times: list[float] = []
    for number, run in enumerate(runs):
        known = seconds[run][~np.isnan(seconds[run])]
        times += [float(value) for value in (known[1:] if number and len(runs) > 1 and len(known) > 1 else known)]
    return times


def _clocked(columns: Mapping[str, Array], runs: Sequence[slice]) -> list[float]:
    """Return the mean step of each stretch of time that is long enough for the clock's resolution."""
    times: list[float] = []
    known = ~np.isnan(columns["clock_s"]) & ~np.isnan(columns["step"])
    clock, step = columns["clock_s"], columns["step"]
    whole = bool(np.all(clock[known] == np.round(clock[known]))) if known.any() else True
    least = WINDOW * (COARSE if whole else FINE)
    for number, run in enumerate(runs):
        stretch: list[float] = []
        begin = None
        for index in range(run.start, run.stop):
            if not known[index]:
                continue
            if begin is None:
                begin = index
            elif clock[index] - clock[begin] >= least and step[index] > step[begin]:
                stretch.append(float((clock[index] - clock[begin]) / (step[index] - step[begin])))
                begin = index
        times += stretch[1:] if number and len(stretch) > 1 else stretch
    return times
