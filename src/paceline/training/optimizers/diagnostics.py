"""Trust ratio, |w| and |u| of every tensor over a run: kept on the device, fetched now and then."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Diagnostics:
    """What the trust ratios were.

    Every step writes one row into a buffer on the device; every ``every`` steps, and whenever an attribute is read, the rows
    come to the host in one transfer. Under ``torch.compile`` or in a CUDA graph, where no Python runs, only reading fetches:
    rows that were overwritten by then are lost.

    Attributes:
        every: steps between two transfers; 0: nothing is kept.
        names: of the tensors, length T.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.names: list[str] = []
        self._rows: Tensor | None = None  # (every, 3, T)
        self._seen: Tensor | None = None  # steps recorded, on the device
        self._fetched = 0
        self._since = 0
        self._values: list[NDArray[np.float64]] = []
        self._steps: list[int] = []

    def record(self, names: list[str], rows: Tensor) -> None:
        """Keep one step's (ratio, |w|, |u|), shape (3, T). Rows of steps that were skipped hold what led to that."""
        if self._rows is None or self._seen is None or self._rows.shape[2] != rows.shape[1]:
            self._begin(names, rows)
        assert self._rows is not None and self._seen is not None
        self._rows.index_copy_(0, (self._seen % self.every).reshape(1), rows.unsqueeze(0))
        self._seen.add_(1)
        if not torch.compiler.is_compiling() and not (rows.is_cuda and torch.cuda.is_current_stream_capturing()):
            self._since += 1
            if self._since >= self.every:
                self.fetch()

    def _begin(self, names: list[str], rows: Tensor) -> None:
        """A buffer for these tensors; what another set of tensors left is dropped."""
        self.names, self._values, self._steps, self._fetched, self._since = list(names), [], [], 0, 0
        self._rows = torch.zeros(self.every, *rows.shape, dtype=rows.dtype, device=rows.device)
        self._seen = torch.zeros((), dtype=torch.int64, device=rows.device)

    def fetch(self) -> None:
        """Bring new rows to the host; waits for the device."""
        if self._rows is None or self._seen is None:
            return
        seen, rows = int(self._seen), self._rows.double().cpu().numpy()
        for step in range(max(self._fetched, seen - self.every), seen):
            self._steps.append(step + 1)
            self._values.append(rows[step % self.every].copy())
        self._fetched, self._since = seen, 0

    def clear(self) -> None:
        """Forget the rows on the host: a long run that wrote them down needs them no more."""
        self.fetch()
        self._values, self._steps = [], []

    @property
    def steps(self) -> NDArray[np.int64]:
        """Calls of ``step``, counted from 1, that have a row; length S."""
        self.fetch()
        return np.array(self._steps, np.int64)

    @property
    def trust_ratio(self) -> NDArray[np.float64]:
        """Shape (S, T); 1 for excluded tensors."""
        return self._part(0)

    @property
    def weight_norm(self) -> NDArray[np.float64]:
        """|w| before the step, shape (S, T)."""
        return self._part(1)

    @property
    def update_norm(self) -> NDArray[np.float64]:
        """|u|, shape (S, T): of LAMB's update, of LARS's gradient (with its decay in ``joint``)."""
        return self._part(2)

    def _part(self, which: int) -> NDArray[np.float64]:
        self.fetch()
        return np.array([row[which] for row in self._values]).reshape(len(self._values), len(self.names))
