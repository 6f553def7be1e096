"""``attach(model, "auto")``: time the link and the codecs on this cluster, then send gradients the fastest way, dense included.

Some steps go dense and are timed. Then every candidate exchanges two sizes of a real gradient, on all ranks at once; a line
through the two (latency and seconds per element, Hockney 1994) gives the time of this model's gradients. What the backward
pass hides costs nothing, so only the exposed part of a dense exchange can be won.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from paceline.training.exchanges import allreduce
from paceline.training.group import Plan, exchange_group, room
from paceline.training.sample import Sample
from paceline.training.tensors import Layout, Tensor
from paceline.training.ways import Way, make_plan

if TYPE_CHECKING:
    from paceline.training.hook import Hook

_log = logging.getLogger("paceline")

WARM, TIMED = 3, 5  # steps: DDP rebuilds its buckets after the first
ELEMENTS = (1 << 18, 1 << 20)  # of a trial: 1 and 4 MiB of fp32
REPEATS = 3
WORTH = 0.03  # of the step: a compression that wins less is not worth its error


class Auto:
    """Measures during the first steps of a dense run and decides once, on every rank alike.

    Args:
        ways: the candidates; the first is dense.
    """

    def __init__(self, ways: Sequence[Way]) -> None:
        self.ways = ways
        self._gradient = torch.empty(0)
        self._ends: list[float] = []
        self._exposed: list[float] = []

    def seen(self, buffer: torch.Tensor) -> None:
        """Keep the largest bucket's gradient for the trials."""
        if buffer.numel() > self._gradient.numel() and len(self._ends) == WARM + TIMED:
            self._gradient = buffer[: max(ELEMENTS)].detach().clone()

    def backward_ended(self) -> None:
        """The last bucket of a step is ready."""
        self._ends.append(time.perf_counter())

    def decided(self, hook: Hook) -> bool:
        """Called after each step's exchange, on the exchange thread. Whether the way is now chosen."""
        self._exposed.append(time.perf_counter() - self._ends[-1])
        if len(self._ends) <= WARM + TIMED:
            return False
        wire = hook.wire
        step = statistics.median(b - a for a, b in zip(self._ends[WARM:], self._ends[WARM + 1 :], strict=False))
        exposed = statistics.median(self._exposed[WARM:])
        total = sum(t.elements for t in hook.tensors)
        seconds = [self._seconds(way, hook, total) for way in self.ways]
        shared = torch.tensor([step, exposed, *seconds], dtype=torch.float64, device=wire.device)
        wire.all_reduce(shared, dist.ReduceOp.MAX, "auto").wait()  # the slowest rank counts, and all compute with the same
        step, exposed, *seconds = shared.tolist()
        best, saved = choose(step, exposed, seconds)
        way = self.ways[best]
        if wire.rank == 0:
            times = ", ".join(f"{_name(w)} {1e3 * s:.3g} ms" for w, s in zip(self.ways, seconds, strict=True))
            _log.warning(
                "auto: %s; %.3g ms of a %.3g ms step wait for the dense exchange of %.3g M gradients (%s); saves about %.0f %%",
                _name(way), 1e3 * exposed, 1e3 * step, total / 1e6, times, 100 * saved / step,
            )  # fmt: skip
        if best:
            hook.use(way)
        return True

    def _seconds(self, way: Way, hook: Hook, total: int) -> float:
        """Time of one exchange of the whole model's gradients, from two trials."""
        plan = make_plan(way, hook.wire, Sample())
        sizes = [min(n, self._gradient.numel()) for n in ELEMENTS]
        low, high = (min(_trial(way, plan, hook, self._gradient[:n]) for _ in range(REPEATS)) for n in sizes)
        rate = max(0.0, high - low) / (sizes[1] - sizes[0]) if sizes[1] > sizes[0] else high / max(1, sizes[1])
        return high + rate * max(0, total - sizes[1]) if total > sizes[1] else high


def choose(step: float, exposed: float, seconds: Sequence[float]) -> tuple[int, float]:
    """Index of the fastest candidate and the seconds it saves a step; 0, the dense one, unless another is worth it.

    Args:
        step, exposed: of the dense run; what its exchange makes the step wait.
        seconds: of an exchange, for each candidate.
    """
    hidden = max(0.0, seconds[0] - exposed)  # as much of any exchange goes on behind the backward pass
    best = min(range(len(seconds)), key=lambda i: max(0.0, seconds[i] - hidden))
    saved = exposed - max(0.0, seconds[best] - hidden)
    return (best, saved) if saved > WORTH * step else (0, 0.0)


def _trial(way: Way, plan: Plan | None, hook: Hook, gradient: torch.Tensor) -> float:
    work = gradient.clone()
    name = f"trial of {work.numel()}"  # residuals are kept by name
    layout = Layout([Tensor(name, (work.numel(),), 0)], ())
    flat = torch.empty(room(plan, layout) if plan else 0, device=plan.device(work.device) if plan else work.device)
    hook.wire.all_reduce(torch.zeros(1, device=hook.wire.device), name="auto").wait()  # all begin at once
    start = time.perf_counter()
    if plan is None:
        allreduce(work, way.compression.format, hook.wire)
    else:
        exchange_group(plan, layout, {name: work}, flat, 0, 0, dense=False)
    return time.perf_counter() - start


def _name(way: Way) -> str:
    return f"{way.compression.name} over {way.exchange}"
