"""Trust ratio of every tensor over a run with LARS or LAMB, as a value and as ``trust.csv``."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.csv_rows import Row, read
from paceline.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COLUMNS = ("run", "step", "tensor", "trust_ratio", "weight_norm", "update_norm")


@dataclass(frozen=True, eq=False)
class TrustHistory:
    """Steps of a run, with three numbers for each tensor.

    Attributes:
        names: names of the tensors, length T. ``steps``: counted from 1, length S.
        trust_ratio, weight_norm, update_norm: shape (S, T); ratio, |w| before the step and |u| as the optimizer defines it.
    """

    names: tuple[str, ...]
    steps: NDArray[np.int64]
    trust_ratio: NDArray[np.float64]
    weight_norm: NDArray[np.float64]
    update_norm: NDArray[np.float64]

    def thinned(self, rows: int) -> TrustHistory:
        """Return at most ``rows`` of the steps, evenly spaced, including the first and the last."""
        import numpy as np

        kept = np.unique(np.linspace(0, len(self.steps) - 1, min(rows, len(self.steps))).round().astype(int))
        parts = (self.trust_ratio, self.weight_norm, self.update_norm)
        return TrustHistory(self.names, self.steps[kept], *(part[kept] for part in parts))

    def rates(self) -> dict[str, tuple[float, float, float]]:
        """Return |w| / |u| of every tensor with a ratio, the rate at which a step ``w - rate * u`` would be as large as w.

        Returns:
            median, 10th and 90th percentile over the steps; tensors that never had a ratio other than 1 (excluded from the
            start, as biases and norms are, or without weights or updates) are left out.
        """
        import numpy as np

        rates: dict[str, tuple[float, float, float]] = {}
        for t, name in enumerate(self.names):
            w, u = self.weight_norm[:, t], self.update_norm[:, t]
            usable = np.isfinite(w) & np.isfinite(u) & (w > 0) & (u > 0)
            if usable.any() and (self.trust_ratio[usable, t] != 1).any():
                middle, low, high = np.percentile(w[usable] / u[usable], [50, 10, 90])
                rates[name] = float(middle), float(low), float(high)
        return rates


def to_csv(runs: Mapping[str, TrustHistory]) -> str:
    """Format every run's rows under one header, a row for each step and tensor."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    for run, history in runs.items():
        parts = (history.trust_ratio, history.weight_norm, history.update_norm)
        for s, step in enumerate(history.steps.tolist()):
            for t, name in enumerate(history.names):
                out.writerow([run, step, name, *(f"{part[s, t]:.6g}" for part in parts)])
    return text.getvalue()


def from_csv(path: Path) -> dict[str, TrustHistory]:
    """Parse a file of ``to_csv``. Raises UserError for any other file."""
    runs: dict[str, dict[int, dict[str, tuple[float, float, float]]]] = {}
    for row in read(path, COLUMNS):
        step = row.whole("step")
        if step is None:
            raise row.wrong("step", "a whole number from 1 up")
        numbers = _number(row, "trust_ratio"), _number(row, "weight_norm"), _number(row, "update_norm")
        runs.setdefault(row.text("run"), {}).setdefault(step, {})[row.text("tensor")] = numbers
    return {run: _history(run, steps, path) for run, steps in runs.items()}


def _number(row: Row, column: str) -> float:
    """Parse a number from 0 up, or NaN, which a step with a non-finite gradient leaves."""
    if row.text(column) in ("nan", "inf"):
        return float(row.text(column))
    value = row.number_of(column)
    if value is None:
        raise row.wrong(column, "a number from 0 up")
    return value


def _history(run: str, steps: Mapping[int, Mapping[str, tuple[float, float, float]]], path: Path) -> TrustHistory:
    import numpy as np

    names = tuple(next(iter(steps.values())))
    if any(set(tensors) != set(names) for tensors in steps.values()):
        raise UserError(f"{path.name}: the steps of {run} have different tensors", "write the whole run again")
    values = np.array([[tensors[name] for name in names] for tensors in steps.values()])
    return TrustHistory(names, np.array(list(steps), np.int64), *(values[:, :, k] for k in range(3)))
