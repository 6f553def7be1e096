"""``attach(model, "auto")``: time the link and the codecs on this cluster, then send gradients the fastest way, dense included.

Some steps go dense and are timed. Then every candidate exchanges two sizes of a real gradient, on all ranks at once; a line
through the two (latency and seconds per element, Hockney 1994) gives the time of this model's gradients. What the backward
pass hides costs nothing, so only the exposed part of a dense exchange can be won. What promises most is in use for as many
steps, and stays only if they were faster; codecs and the backward pass may want the same cores, which no trial shows.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from paceline.errors import UserError, unknown
from paceline.strategy import COMPRESSIONS
from paceline.training.exchange_group import ExchangeSetup, Gradients, exchange_group, room
from paceline.training.exchanges import allreduce
from paceline.training.gradient_sample import Sample
from paceline.training.tensor_layout import Layout, Tensor
from paceline.training.ways import Way, make_plan

if TYPE_CHECKING:
    from paceline.training.hooks.ddp import Hook

_log = logging.getLogger("paceline")

WARM, TIMED = 3, 5  # steps: DDP rebuilds its buckets after the first
ELEMENTS = (1 << 18, 1 << 20)  # of a trial: 1 and 4 MiB of fp32
REPEATS = 3
TRIALS = 2  # candidates that are tried in real steps
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
        self._on_trial: list[Way] = []  # the first is in use
        self._dense_s = 0.0
        self._said = ""

    def seen(self, buffer: torch.Tensor) -> None:
        """Keep the largest bucket's gradient for the trials."""
        if not self._on_trial and buffer.numel() > self._gradient.numel() and len(self._ends) == WARM + TIMED:
            self._gradient = buffer[: max(ELEMENTS)].detach().clone()

    def backward_ended(self) -> None:
        """The last bucket of a step is ready."""
        self._ends.append(time.perf_counter())

    def decided(self, hook: Hook) -> bool:
        """Called after each step's exchange, on the exchange thread. Whether the way is now chosen."""
        self._exposed.append(time.perf_counter() - self._ends[-1])
        if len(self._ends) <= WARM + TIMED:
            return False
        step = statistics.median(b - a for a, b in zip(self._ends[WARM:], self._ends[WARM + 1 :], strict=False))
        if not self._on_trial:
            self._on_trial = self._promising(step, statistics.median(self._exposed[WARM:]), hook)
        else:
            (step,) = _slowest(hook, step)
            if step <= (1 - WORTH) * self._dense_s:
                less = 100 * (1 - step / self._dense_s)
                return self._end(hook, f"{_name(hook.way)} takes {1e3 * step:.3g} ms a step, {less:.0f} % less than")
            self._said += f"; {_name(self._on_trial.pop(0))} took {1e3 * step:.3g} ms a step"
        self._ends, self._exposed, self._gradient = [], [], torch.empty(0)
        way = self._on_trial[0] if self._on_trial else self.ways[0]
        if way != hook.way:
            hook.use(way)
        if not self._on_trial:
            self._said += f"; nothing else saves {100 * WORTH:.0f} % of a step"
            return self._end(hook, "stays")
        return False

    def _promising(self, step: float, exposed: float, hook: Hook) -> list[Way]:
        """Ways to try, the best first."""
        total = sum(t.elements for t in hook.tensors)
        seconds = [self._seconds(way, hook, total) for way in self.ways]
        self._dense_s, exposed, *seconds = _slowest(hook, step, exposed, *seconds)
        times = ", ".join(f"{_name(w)} {1e3 * s:.3g} ms" for w, s in zip(self.ways, seconds, strict=True))
        self._said = (
            f"dense over allreduce with {1e3 * self._dense_s:.3g} ms a step, of which {1e3 * exposed:.3g} ms wait for the"
            f" exchange of {total / 1e6:.3g} M gradients (one exchange, estimated: {times})"
        )
        best: dict[str, Way] = {}  # over its best exchange
        for index in choose(self._dense_s, exposed, seconds):
            best.setdefault(self.ways[index].compression.name, self.ways[index])
        return list(best.values())[:TRIALS]

    def _end(self, hook: Hook, choice: str) -> bool:
        if hook.wire.rank == 0:
            _log.warning("auto: %s %s", choice, self._said)
        return True

    def _seconds(self, way: Way, hook: Hook, total: int) -> float:
        """Time of one exchange of the whole model's gradients, from two trials."""
        setup = make_plan(way, hook.wire, Sample())
        sizes = [min(n, self._gradient.numel()) for n in ELEMENTS]
        low, high = (min(_trial(way, setup, hook, self._gradient[:n]) for _ in range(REPEATS)) for n in sizes)
        rate = max(0.0, high - low) / (sizes[1] - sizes[0]) if sizes[1] > sizes[0] else high / max(1, sizes[1])
        return high + rate * max(0, total - sizes[1]) if total > sizes[1] else high


def ways_to_try(candidates: Sequence[str], make: Callable[[str, str], Way], workers: int, ranks_per_node: int) -> list[Way]:
    """Dense as the engine sends it, then every candidate over its default exchange and the others that may be faster.

    Args:
        candidates: compressions, ``"int8"``, each perhaps over one exchange, ``"int8:ring"``.
        make: a way from the names of compression and exchange, the latter empty for the default.

    Raises:
        UserError: an unknown candidate, one of low rank, or an exchange that cannot carry it.
    """
    ways = [make("dense", "")]
    for candidate in candidates:
        name, _, exchange = candidate.partition(":")
        if name not in COMPRESSIONS:
            raise unknown("candidate of auto", name, [c.name for c in COMPRESSIONS.values() if not c.low_rank])
        if COMPRESSIONS[name].low_rank:
            raise UserError(f"auto cannot try {name}: it is a hook of PyTorch's own", f"name it: attach(model, {name!r})")
        exchanges = [exchange]
        if not exchange and workers > 2:  # between two, a ring sends what the others do
            exchanges.append("ring")
        if not exchange and 1 < ranks_per_node < workers and workers % ranks_per_node == 0:
            exchanges.append("hierarchical")
        ways += [make(name, one) for one in exchanges]
    return [way for index, way in enumerate(ways) if way not in ways[:index]]


def choose(step: float, exposed: float, seconds: Sequence[float]) -> list[int]:
    """Indices of the candidates that are worth it, the fastest first; the first of all, the dense one, never is.

    Args:
        step, exposed: of the dense run; what its exchange makes the step wait.
        seconds: of an exchange, for each candidate.
    """
    # Not more than is exposed, as the rest hides behind the backward pass. And not more than the trials differ by: the wait in
    # a real step is longer than the trial of the same exchange where ranks wait for one another, which no codec changes.
    saved = [min(exposed, seconds[0] - one) for one in seconds]
    worth = [index for index in range(1, len(seconds)) if saved[index] > WORTH * step]
    return sorted(worth, key=lambda index: -saved[index])


def _slowest(hook: Hook, *seconds: float) -> list[float]:
    """Each number as the slowest rank has it, so that all compute with the same."""
    shared = torch.tensor(seconds, dtype=torch.float64, device=hook.wire.device)
    return list(hook.wire.all_reduce(shared, dist.ReduceOp.MAX, "auto").wait().tolist())


def _trial(way: Way, setup: ExchangeSetup | None, hook: Hook, gradient: torch.Tensor) -> float:
    work = gradient.clone()
    name = f"trial of {work.numel()}"  # residuals are kept by name
    layout = Layout([Tensor(name, (work.numel(),), 0)], ())
    flat = torch.empty(room(setup, layout) if setup else 0, device=setup.device(work.device) if setup else work.device)
    hook.wire.all_reduce(torch.zeros(1, device=hook.wire.device), name="auto").wait()  # all begin at once
    start = time.perf_counter()
    if setup is None:
        allreduce(work, way.compression.format, hook.wire)
    else:
        exchange_group(setup, Gradients(layout=layout, parts={name: work}, workspace=flat, seed=0, step=0))
    return time.perf_counter() - start


def _name(way: Way) -> str:
    return f"{way.compression.name} over {way.exchange}"
