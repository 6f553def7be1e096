"""Trust ratio, |w| and |u| of every tensor over a run, stored on the device and fetched at intervals."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.rundir import RunDir
from paceline.trust_history import TrustHistory

KEPT = 1000
"""Rows on the host: a longer run keeps every second one, then every fourth, and so on."""


class Diagnostics:
    """Trust ratios of past steps.

    Every step writes one row into a buffer on the device; every ``every`` steps, and whenever an attribute is read, the rows
    come to the host in one transfer. Under ``torch.compile`` or in a CUDA graph, where no Python runs, only reading fetches:
    rows that were overwritten by then are lost.

    Attributes:
        every: steps between two transfers; 0: nothing is kept.
        names: names of the tensors that ever had a gradient, length T; a row has NaN for those that had none in its step.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.names: list[str] = []
        self._called: list[str] = []  # of the last call
        self._columns: Tensor | None = None  # of its tensors among ``names``; None where they are all of them, in order
        self._rows: Tensor | None = None  # (every, 3, T)
        self._seen: Tensor | None = None  # steps recorded, on the device
        self._fetched = 0
        self._since = 0
        self._stride = 1
        self._values: list[NDArray[np.float64]] = []
        self._steps: list[int] = []

    def record(self, names: list[str], rows: Tensor) -> None:
        """Record one step's (ratio, |w|, |u|), shape (3, T). Rows of skipped steps show why."""
        if names != self._called:
            self._find_columns(names, rows.device)
        if self._columns is not None:
            rows = rows.new_full((3, len(self.names)), torch.nan).index_copy_(1, self._columns, rows)
        if self._rows is None or self._seen is None:
            self._rows = torch.zeros(self.every, *rows.shape, dtype=rows.dtype, device=rows.device)
            self._seen = torch.full((), self._fetched, dtype=torch.int64, device=rows.device)
            self._since = 0
        self._rows.index_copy_(0, (self._seen % self.every).reshape(1), rows.unsqueeze(0))
        self._seen.add_(1)
        if not torch.compiler.is_compiling() and not (rows.is_cuda and torch.cuda.is_current_stream_capturing()):
            self._since += 1
            if self._since >= self.every:
                self.fetch()

    def _find_columns(self, names: list[str], device: torch.device) -> None:
        """Assign columns to these tensors; new tensors get new columns, NaN in earlier rows."""
        new = [name for name in names if name not in set(self.names)]
        if new:
            self.fetch()
            self._rows = self._seen = None
            self.names += new
            self._values = [np.pad(row, ((0, 0), (0, len(new))), constant_values=np.nan) for row in self._values]
        place = {name: column for column, name in enumerate(self.names)}
        columns = [place[name] for name in names]
        self._columns = (
            None if columns == list(range(len(self.names))) else torch.tensor(columns, dtype=torch.int64, device=device)
        )
        self._called = list(names)

    def fetch(self) -> None:
        """Fetch new rows to the host, waiting for the device."""
        if self._rows is None or self._seen is None:
            return
        seen, rows = int(self._seen), self._rows.double().cpu().numpy()
        for step in range(max(self._fetched, seen - self.every), seen):
            if step % self._stride == 0:
                self._steps.append(step + 1)
                self._values.append(rows[step % self.every].copy())
        self._fetched, self._since = seen, 0
        while len(self._steps) > KEPT:
            self._stride *= 2
            kept = [i for i, step in enumerate(self._steps) if (step - 1) % self._stride == 0]
            self._steps, self._values = [self._steps[i] for i in kept], [self._values[i] for i in kept]

    def clear(self) -> None:
        """Forget the rows on the host, so that a long run that has saved them keeps every later step."""
        self.fetch()
        self._values, self._steps, self._stride = [], [], 1

    @property
    def steps(self) -> NDArray[np.int64]:
        """Numbers of steps with a row, counted from 1; length S, at most 1000, evenly spaced."""
        self.fetch()
        return np.array(self._steps, np.int64)

    @property
    def trust_ratio(self) -> NDArray[np.float64]:
        """Trust ratios, shape (S, T); 1 for excluded tensors."""
        return self._part(0)

    @property
    def weight_norm(self) -> NDArray[np.float64]:
        """|w| before the step, shape (S, T)."""
        return self._part(1)

    @property
    def update_norm(self) -> NDArray[np.float64]:
        """|u|, shape (S, T): of LAMB's update, or of LARS's gradient (with its decay in ``joint``)."""
        return self._part(2)

    @property
    def history(self) -> TrustHistory:
        """Return all rows as one value."""
        return TrustHistory(tuple(self.names), self.steps, self.trust_ratio, self.weight_norm, self.update_norm)

    def write(self, directory: str | Path, run: str = "run") -> None:
        """Write a hundred steps to ``trust.csv`` of a run directory, replacing those of ``run``.

        ``paceline report`` shows them. One rank should call this, since all have equal ratios. Raises UserError if the file
        cannot be written.
        """
        RunDir(directory).write_trust(run, self.history)

    def state_dict(self) -> dict[str, Any]:
        """Return a state with which a resumed run has the rows of an uninterrupted one."""
        self.fetch()
        values = torch.from_numpy(np.array(self._values).reshape(len(self._values), 3, len(self.names)))
        return {
            "names": self.names,
            "steps": self._steps,
            "values": values,
            "seen": self._fetched,
            "stride": self._stride,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        self.names, self._steps, self._stride = list(state["names"]), list(state["steps"]), state["stride"]
        self._values, self._fetched = list(state["values"].numpy().copy()), state["seen"]
        self._rows = self._seen = None
        self._called = []

    def _part(self, which: int) -> NDArray[np.float64]:
        self.fetch()
        return np.array([row[which] for row in self._values]).reshape(len(self._values), len(self.names))
