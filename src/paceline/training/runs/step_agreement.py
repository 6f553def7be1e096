"""Agreement of all ranks at the boundary of a step: continue, save a checkpoint, or stop. One rank's wish decides for all."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from paceline.training.exchanges.wires.collectives import collective

EVERY_S = 0.5
"""How often the ranks confer, about; a step that takes longer has one."""
MOST_STEPS = 1000


class Wish(NamedTuple):
    """Wish of a rank for the next boundary, and the result for all.

    Attributes:
        stop: number of the signal that asks to stop; 0: continue. The largest of several counts.
        save: whether a checkpoint is due.
        diverges: whether losses have been NaN or infinite for so long that the run should stop.
    """

    stop: int = 0
    save: bool = False
    diverges: bool = False


class StepAgreement:
    """Agreement of the ranks about twice a second, in an all-reduce of four numbers over a separate gloo group.

    It starts at the end of a step and is read at the end of the next, so that no step waits for it. The number of steps between
    two agreements follows from the slowest rank's step, which is one of the numbers, so all ranks count equally.
    """

    def __init__(self, workers: int, timeout_s: float) -> None:
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s)) if workers > 1 else None
        self._numbers = torch.zeros(4, dtype=torch.float64)
        self._under_way: Any = None
        self._left = 0  # steps until the next one

    def after_step(self, wish: Wish, step_s: float) -> Wish:
        """Return the decision for this boundary. Every rank calls this after every step with its wish and seconds of the step.

        Raises:
            WireError: a rank is lost.
        """
        if self._group is None:
            return wish
        if self._under_way is not None:
            return self._read()
        self._left -= 1
        if self._left < 0:
            numbers = [float(wish.stop), float(wish.save), float(wish.diverges), step_s]
            self._numbers[:] = torch.tensor(numbers, dtype=torch.float64)
            with collective():
                self._under_way = dist.all_reduce(self._numbers, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return Wish()

    def barrier(self) -> None:
        """Wait for every rank."""
        if self._group is not None:
            if self._under_way is not None:
                self._read()
            with collective():
                dist.barrier(self._group)

    def _read(self) -> Wish:
        with collective():
            self._under_way.wait()
        self._under_way = None
        stop, save, diverges, slowest = self._numbers.tolist()
        self._left = min(MOST_STEPS, int(EVERY_S / max(slowest, 1e-9)))
        return Wish(int(stop), bool(save), bool(diverges))
