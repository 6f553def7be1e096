"""A short run on the machine at hand: what one step computes and what one exchange costs, with all ranks at work.

Compute is timed on the network itself without any exchange; the exchange on made-up gradients of two sizes, by the same code
that training runs. Prediction joins the two; the step as a whole is never measured here.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from paceline.prediction import Calibration, Line
from paceline.strategy import BucketPlan, Strategy, phases
from paceline.training.hook import attach
from paceline.training.loop import make_optimizer

COMPUTE_SECONDS = 1.5
EXCHANGE_ELEMENTS = (1 << 15, 1 << 17, 1 << 19)
EXCHANGE_REPEATS = 12
_CODEC = {
    "scale": "encode",
    "ternarize": "encode",
    "encode": "encode",
    "reduce": "reduce",
    "decode": "decode",
    "scatter": "decode",
}


def calibrate(model: nn.Module, batch: tuple[Tensor, Tensor], strategy: Strategy, name: str) -> Calibration:
    """Measure on every rank at once; the result is the mean over the ranks and the same on all of them.

    Args:
        model: on this rank's device; it is copied and left as it was.
        batch: one micro batch.
        name: of the workload, for the record.
    """
    device = batch[0].device

    def mean(value: float) -> float:
        return mean_over_ranks(value, device)

    compute = _compute(copy.deepcopy(model), batch, strategy)
    spans = _exchanges(strategy, device)
    spread = mean(max((_half_range(v) for v in compute.values()), default=0.0))
    forward, backward, optimizer = (mean(statistics.median(compute[k])) for k in ("forward", "backward", "optimizer"))

    def line(span: str) -> Line:
        points = [(size, mean(statistics.median(seconds))) for size, seconds in sorted(spans[span].items())]
        return fit_line(points)

    return Calibration(
        workload=name,
        micro_batch_size=strategy.micro_batch_size,
        world_size=strategy.world_size,
        compression=strategy.compression,
        forward_s=forward,
        backward_s=backward,
        optimizer_s=optimizer,
        allreduce=line("allreduce"),
        direct=line("direct"),
        encode=line("encode"),
        reduce=line("reduce"),
        decode=line("decode"),
        overlap=device.type != "cpu",
        spread=spread,
        source=f"measured here: {strategy.world_size} ranks at once, {len(compute['forward'])} steps without exchange, "
        f"{EXCHANGE_REPEATS} exchanges of {len(EXCHANGE_ELEMENTS)} sizes",
    )


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """Least squares of ``seconds = fixed + per_unit * size`` with relative weights; neither term below zero."""
    if not points:
        return Line(0.0, 0.0)
    if len(points) == 1:
        return Line(points[0][1], 0.0)
    x, y = np.array(points, float).T
    weight = 1 / np.maximum(y, 1e-9)
    columns = np.stack([np.ones_like(x), x], 1) * weight[:, None]
    fixed, per_unit = np.linalg.lstsq(columns, y * weight, rcond=None)[0]
    if per_unit <= 0:
        return Line(float(np.mean(y)), 0.0)
    if fixed <= 0:
        return Line(0.0, float(np.mean(y / np.maximum(x, 1))))
    return Line(float(fixed), float(per_unit))


def _compute(model: nn.Module, batch: tuple[Tensor, Tensor], strategy: Strategy) -> dict[str, list[float]]:
    model.train()
    optimizer = make_optimizer(strategy.optimizer, model.parameters(), 0.0)
    x, y = batch
    seconds: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": []}
    loss = torch.zeros(())

    def forward() -> None:
        nonlocal loss
        loss = functional.cross_entropy(model(x), y)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    parts: dict[str, Callable[[], Any]] = {"forward": forward, "backward": lambda: loss.backward(), "optimizer": update}
    for part in [*parts.values()] * 3:
        part()
    dist.barrier()
    start = time.perf_counter()
    while time.perf_counter() - start < COMPUTE_SECONDS or len(seconds["forward"]) < 5:
        for name, part in parts.items():
            seconds[name].append(_timed(part, x.device))
    return seconds


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _exchanges(strategy: Strategy, device: torch.device) -> dict[str, dict[float, list[float]]]:
    """Seconds of every part of an exchange by its size (see ``Calibration`` for the units of the sizes)."""
    spans: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for elements in EXCHANGE_ELEMENTS:
        model = DistributedDataParallel(_Vector(elements).to(device))
        hook = attach(model, strategy.compression, exchange=strategy.exchange)
        plan = BucketPlan(elements, 1, 0)
        sizes: dict[str, float] = {
            phase.name: max(phase.sent(rank) for rank in range(strategy.world_size))
            for phase in phases(plan, strategy.description, strategy.exchange, strategy.world_size)
        }
        gradient = torch.randn(elements, generator=torch.Generator().manual_seed(dist.get_rank())).to(device)
        for repeat in range(-2, EXCHANGE_REPEATS):
            dist.barrier()
            hook.meter.begin_step()
            hook.exchange_now(gradient.clone())
            if repeat < 0:
                continue
            codec: dict[str, float] = defaultdict(float)
            for event in hook.meter.events:
                if event.lane == "network":
                    spans["direct" if event.name in ("push", "pull") else "allreduce"][sizes[event.name]].append(
                        event.duration_s
                    )
                else:
                    codec[_CODEC[event.name]] += event.duration_s
            for name, seconds in codec.items():
                spans[name][elements].append(seconds)
    return spans


class _Vector(nn.Module):
    """One tensor to exchange."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))


def mean_over_ranks(value: float, device: torch.device) -> float:
    """The mean of one number over the ranks."""
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(shared)
    return float(shared) / dist.get_world_size()


def _half_range(values: Sequence[float]) -> float:
    """Half the distance of the 10th and 90th percentile, relative to the median."""
    low, middle, high = np.percentile(values, [10, 50, 90])
    return float((high - low) / 2 / middle) if middle > 0 else 0.0
