"""Choice of the fastest exchange on this cluster by measurement, dense included: ``attach(model, "auto")``.

Some steps go dense and are timed. Then every candidate exchanges two sizes of a real gradient, on all ranks at once; a line
through the two (latency and seconds per element, Hockney 1994) gives the time of this model's gradients. An exchange that the
backward pass hides costs nothing, so only the exposed part of a dense exchange can be saved. The most promising exchange then
runs for as many steps, and stays only if they were faster: codecs may take cores from the backward pass, which no trial shows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from paceline.calibration.constants import assumed
from paceline.errors import UserError, unknown
from paceline.strategy import COMPRESSIONS, GradientExchange
from paceline.strategy.compression.compressions import DENSE
from paceline.strategy.exchanges.hierarchical import HIERARCHICAL
from paceline.strategy.exchanges.ring import RING
from paceline.strategy.exchanges.sharded import SHARDED
from paceline.training.device_stream import Moment
from paceline.training.exchanges import allreduce
from paceline.training.exchanges.exchange_group import ExchangeSetup, Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import make_setup, own_wires
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.collectives import Wire
from paceline.units import format_seconds

_STEPS, _TRIAL = assumed("auto_steps"), assumed("auto_trial")
WARM, TIMED = int(_STEPS["warm"]), int(_STEPS["timed"])
ELEMENTS = tuple(int(elements) for elements in _TRIAL["elements"])
REPEATS, TRIALS = int(_TRIAL["repeats"]), int(_TRIAL["candidates"])
WORTH: float = assumed("auto_worth")
"""Constants of ``calibration/constants.toml``, each with its reason."""


class AutoDecision(NamedTuple):
    """Exchange for the next steps, the same on every rank. ``reason`` is empty until the measurements are complete."""

    exchange: GradientExchange
    reason: str = ""


class Auto:
    """Measurement during the first steps of a dense run, with one decision that is equal on every rank.

    Every method runs on the exchange thread and counts the steps that this thread has completed: the backward pass of a fast
    rank may be a bucket ahead.

    Args:
        exchanges: the candidates; the first is dense.
        wire: wire of the trials. All ranks make this at the same time, because nodes may need groups, and NCCL makes groups
            and exchanges objects only where all ranks are at the same place.
        elements: elements of the model's gradients.
    """

    def __init__(self, exchanges: Sequence[GradientExchange], wire: Wire, elements: int) -> None:
        self.exchanges, self._wire, self._elements = exchanges, wire, elements
        self._gradient = torch.empty(0, dtype=torch.float32)
        sizes = {exchange.ranks_per_node for exchange in exchanges if exchange.exchange.uses_nodes}
        self._nodes = {size: own_wires(wire, size) for size in sorted(sizes)}
        self._ends: list[Moment] = []
        self._exchanged: list[Moment] = []
        self._on_trial: list[GradientExchange] = []  # the first is in use
        self._dense_s = 0.0
        self._measured = ""

    def seen(self, buffer: torch.Tensor) -> None:
        """Keep the gradient of the largest bucket in the step before the trials."""
        if not self._on_trial and buffer.numel() > self._gradient.numel() and len(self._ends) == WARM + TIMED:
            self._gradient = buffer[: max(ELEMENTS)].detach().clone()

    def setup(self, exchange: GradientExchange, sample: Sample) -> ExchangeSetup | None:
        """Return the setup of an exchange, without communication."""
        return make_setup(exchange, self._wire, sample, self._nodes.get(exchange.ranks_per_node))

    def end_step(self, backward_end: Moment) -> AutoDecision | None:
        """Process the end of a step's exchange, and return a decision if there is one.

        Args:
            backward_end: when the step's last bucket was ready, on the stream of the backward pass.
        """
        self._ends.append(backward_end)
        self._exchanged.append(Moment(self._wire.device))
        if len(self._ends) <= WARM + TIMED:
            return None
        step = statistics.median(b.since(a) for a, b in zip(self._ends[WARM:], self._ends[WARM + 1 :], strict=False))
        if not self._on_trial:
            waits = [b.since(a) for a, b in zip(self._ends[WARM:], self._exchanged[WARM:], strict=True)]
            self._on_trial = self._promising(step, statistics.median(waits))
        else:
            (step,) = self._slowest(step)
            in_use = self._on_trial[0]
            if step <= (1 - WORTH) * self._dense_s:
                less = 100 * (1 - step / self._dense_s)
                return AutoDecision(
                    in_use, f"{in_use} takes {format_seconds(step)} a step, {less:.0f} % less than {self._measured}"
                )
            self._measured += f"; {in_use} took {format_seconds(step)} a step"
            self._on_trial.pop(0)
        self._ends, self._exchanged, self._gradient = [], [], torch.empty(0, dtype=torch.float32)
        if self._on_trial:
            return AutoDecision(self._on_trial[0])
        return AutoDecision(self.exchanges[0], f"stays {self._measured}; nothing else saves {100 * WORTH:.0f} % of a step")

    def _promising(self, step: float, exposed: float) -> list[GradientExchange]:
        """Return the exchanges to try, the best first."""
        seconds = [self._seconds(exchange) for exchange in self.exchanges]
        self._dense_s, exposed, *seconds = self._slowest(step, exposed, *seconds)
        times = ", ".join(f"{exchange} {format_seconds(s)}" for exchange, s in zip(self.exchanges, seconds, strict=True))
        self._measured = (
            f"dense over allreduce ({format_seconds(self._dense_s)} a step with {format_seconds(exposed)} of waiting for the "
            f"exchange of {self._elements / 1e6:.3g} M gradients; estimates for one exchange: {times})"
        )
        best: dict[str, GradientExchange] = {}  # over its best exchange
        for index in choose(self._dense_s, exposed, seconds):
            best.setdefault(self.exchanges[index].compression.name, self.exchanges[index])
        return list(best.values())[:TRIALS]

    def _seconds(self, exchange: GradientExchange) -> float:
        """Return the time of one exchange of the whole model's gradients, from two trials."""
        setup = self.setup(exchange, Sample())
        sizes = [min(n, self._gradient.numel()) for n in ELEMENTS]
        low, high = (min(_trial(exchange, setup, self._wire, self._gradient[:n]) for _ in range(REPEATS)) for n in sizes)
        rate = max(0.0, high - low) / (sizes[1] - sizes[0]) if sizes[1] > sizes[0] else high / max(1, sizes[1])
        return high + rate * max(0, self._elements - sizes[1]) if self._elements > sizes[1] else high

    def _slowest(self, *seconds: float) -> list[float]:
        """Return each number's maximum over the ranks, so that all ranks compute with the same values."""
        shared = torch.tensor(seconds, dtype=torch.float64, device=self._wire.device)
        return list(self._wire.all_reduce(shared, dist.ReduceOp.MAX, "auto").wait().tolist())


def exchanges_to_try(
    candidates: Sequence[str], make: Callable[[str, str], GradientExchange], workers: int, ranks_per_node: int
) -> list[GradientExchange]:
    """Return the exchanges to try: dense by the engine, then every candidate over its default exchange and over others that may
    be faster.

    Args:
        candidates: compressions, ``"int8"``, each perhaps over one exchange, ``"int8:ring"``.
        make: from the names of compression and exchange, the latter empty for the default.

    Raises:
        UserError: an unknown candidate, one of low rank, or an exchange that cannot carry it.
    """
    to_try = [make(DENSE.name, "")]
    for candidate in candidates:
        name, _, exchange = candidate.partition(":")
        if name not in COMPRESSIONS:
            raise unknown("candidate of auto", name, [c.name for c in COMPRESSIONS.values() if not c.low_rank])
        if COMPRESSIONS[name].low_rank:
            raise UserError(f"auto cannot try {name}: it is a hook of PyTorch's own", f"name it: attach(model, {name!r})")
        names = [exchange]
        if not exchange and name != DENSE.name and make(name, "").exchange.by_engine:
            names.append(SHARDED.name)  # adds in fp32, which the engine's all-reduce does not
        if not exchange and workers > 2:  # between two, a ring sends what the others do
            names.append(RING.name)
        if not exchange and 1 < ranks_per_node < workers and workers % ranks_per_node == 0:
            names.append(HIERARCHICAL.name)
        to_try += [make(name, exchange) for exchange in names]
    return [exchange for index, exchange in enumerate(to_try) if exchange not in to_try[:index]]


def choose(step: float, exposed: float, seconds: Sequence[float]) -> list[int]:
    """Return the indices of the candidates that are faster than dense, the fastest first. Index 0 (dense) is never among them.

    Args:
        step, exposed: step time and exposed time of the dense run; the latter is the step's wait for its exchange.
        seconds: seconds of an exchange, for each candidate.
    """
    # Not more than is exposed, as the rest hides behind the backward pass. And not more than the trials differ by: the wait in
    # a real step is longer than the trial of the same exchange where ranks wait for one another, which no codec changes.
    saved = [min(exposed, seconds[0] - candidate) for candidate in seconds]
    worth = [index for index in range(1, len(seconds)) if saved[index] > WORTH * step]
    return sorted(worth, key=lambda index: -saved[index])


def _trial(exchange: GradientExchange, setup: ExchangeSetup | None, wire: Wire, gradient: torch.Tensor) -> float:
    work = gradient.clone()
    name = f"trial of {work.numel()}"  # residuals are kept by name
    layout = Layout([TensorSpec(name, (work.numel(),), 0)], ())
    flat = torch.empty(
        room(setup, layout) if setup else 0, dtype=torch.float32, device=setup.device(work.device) if setup else work.device
    )
    wire.all_reduce(torch.zeros(1, dtype=torch.float32, device=wire.device), name="auto").wait()  # all begin at once
    start = Moment(wire.device)
    if setup is None:
        allreduce(work, exchange.description.format, wire)
    else:
        exchange_group(setup, Gradients(layout=layout, parts={name: work}, workspace=flat, seed=0, step=0))
    return Moment(wire.device).since(start)
