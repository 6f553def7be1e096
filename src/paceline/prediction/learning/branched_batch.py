"""Critical batch by branched runs: short runs from one checkpoint at several batches, compared after equal samples.

The critical batch is the largest whose loss stays within a tolerance of the smallest batch's. The rate is scaled to each batch
(Merrill et al. 2025, Critical Batch Size Revisited, arXiv:2505.23971). It needs none of the noise scale's assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.csv_rows import read
from paceline.errors import UserError

TOLERANCE = 0.01
"""Further loss, in nats, that counts as none. A setting, not an estimate."""
FILE = "critical_batch.csv"
COLUMNS = ("samples", "critical_batch")


@dataclass(frozen=True, slots=True)
class BranchedRun:
    """Short run from a checkpoint: its global batch, and its held-out loss at the end, in nats."""

    batch: int
    loss: float


@dataclass(frozen=True, slots=True)
class BranchedBatch:
    """Critical batch at one place of a run.

    Attributes:
        samples: samples of the run before the branches.
        branches: in the order of their batches, the run's own first.
        tolerance: further loss that counts as none.
    """

    samples: int
    branches: tuple[BranchedRun, ...]
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        if not self.branches or not 0 < self.tolerance < math.inf:
            raise UserError(f"{len(self.branches)} branches, a tolerance of {self.tolerance:g}", "give batches and a tolerance")

    @property
    def critical_batch(self) -> int:
        """Largest batch that, like all smaller ones, loses no more than the tolerance."""
        largest, base = self.branches[0].batch, self.branches[0].loss
        for branch in self.branches:
            if not branch.loss <= base + self.tolerance:  # also NaN
                break
            largest = branch.batch
        return largest

    @property
    def bounded(self) -> bool:
        """True if a larger batch was tried and lost more. If not, the critical batch is at least this."""
        return self.critical_batch < self.branches[-1].batch

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict."""
        return {**asdict(self), "critical_batch": self.critical_batch, "bounded": self.bounded}


def write_row(path: Path, found: BranchedBatch) -> None:
    """Add a row to a CSV file of critical batches; one of the same place is replaced. Raises OSError."""
    kept = [row for row in read_rows(path) if row[0] != found.samples] if path.exists() else []
    rows = sorted([*kept, (found.samples, found.critical_batch)])
    text = "".join(f"{samples},{batch}\n" for samples, batch in rows)
    path.write_text(",".join(COLUMNS) + "\n" + text, encoding="utf-8")


def read_rows(path: str | Path) -> list[tuple[int, int]]:
    """Return samples and critical batch of each row, in order of samples.

    Raises:
        UserError: no such file, a missing column, or text instead of a number, with its line.
    """
    rows: list[tuple[int, int]] = []
    for row in read(path, COLUMNS):
        samples, batch = row.number_of(COLUMNS[0]), row.positive(COLUMNS[1])
        if samples is None:
            raise row.wrong(COLUMNS[0], "a number of samples")
        if batch is None:
            raise row.wrong(COLUMNS[1], "a number above 0")
        rows.append((round(samples), round(batch)))
    return sorted(rows)


def stages_within(rows: Sequence[tuple[int, int]], first: int, largest: int) -> list[tuple[int, int]]:
    """Return the stages of a batch that doubles when the critical batch allows it: samples and batch, the first at 0.

    Args:
        rows: samples and critical batch, in order. Between rows it grows in proportion to the samples.
        first: batch of the start. ``largest``: where growth ends.
    """
    stages, batch = [(0, first)], first
    while 2 * batch <= largest:
        at = _reached(rows, 2 * batch)
        if at is None:
            break
        batch *= 2
        if at <= stages[-1][0]:
            stages[-1] = (stages[-1][0], batch)
        else:
            stages.append((at, batch))
    return stages


def _reached(rows: Sequence[tuple[int, int]], batch: int) -> int | None:
    """Return the samples from which the critical batch is at least this one; None if it never is."""
    before: tuple[int, int] | None = None
    for samples, critical in rows:
        if critical >= batch:
            if before is None or critical <= before[1]:
                return samples
            share = (batch - before[1]) / (critical - before[1])
            return math.ceil(before[0] + max(0.0, share) * (samples - before[0]))
        before = samples, critical
    return None
