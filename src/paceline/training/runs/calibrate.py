"""Calibration run on this machine: the seconds of compute and of the exchange, with all ranks at work.

It times compute on the network without any exchange, and the exchange on synthetic gradients of two sizes with the code of
training. The prediction combines the two; this module never measures a whole step.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.prediction import Calibration, Line
from paceline.strategy import BucketPlan, Strategy
from paceline.strategy.compression.compressions import DENSE
from paceline.strategy.sharding import DDP
from paceline.training.attach.attach import attach, wrap
from paceline.training.attach.attach_options import AttachOptions
from paceline.training.runs.compute.arithmetic import Arithmetic
from paceline.training.runs.loop import classification_loss, make_optimizer

ELEMENTS = (1 << 15, 1 << 17, 1 << 19)
STEPS = 32  # counted ones per size, after two warm-up exchanges
_CODEC = {"scale": "encode", "ternarize": "encode", "encode": "encode", "reduce": "reduce"}  # the rest is "decode"
_PARTS = ("forward", "backward", "optimizer", "encode", "reduce", "decode")

Parts = dict[str, float]  # seconds of each part of one step; collectives by their phase's name


def calibrate(model: nn.Module, batch: tuple[Tensor, Tensor], strategy: Strategy, name: str, timeout_s: float) -> Calibration:
    """Measure on all ranks at the same time. The result is the mean over the ranks, and the same on all.

    Every step computes like training and then exchanges one synthetic gradient, so ranks wait for each other as in training.

    Args:
        model: a copy on this rank's device, without recomputation, which the prediction adds; its weights and buffers change.
        batch: one micro batch.
        name: name of the workload, for the record.
        timeout_s: seconds that an exchange waits for another rank.
    """
    device = batch[0].device
    if strategy.worker_devices > 1:  # the step of a worker, whose gradients travel dense
        strategy = strategy.changed(compression=DENSE.name, exchange="", sync_every=1)
    over = strategy.gradient_exchange.exchange  # what is sharded sends over the same links
    strategy = strategy.changed(
        sharding=DDP, shard_devices=0, gather_bits=0, gather_format="int8", gradient_bits=0, exchange=over
    )
    compute = _ComputeStep(model, batch, strategy)
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    totals: list[float] = []
    for elements in ELEMENTS:
        sizes = _phase_bytes(strategy, elements)
        steps = _steps(compute, strategy, elements, device, timeout_s)
        totals += [sum(parts.values()) for parts in steps]
        middle = _middle(steps)
        for part, seconds in zip(middle, means_over_ranks(middle.values(), device), strict=True):
            points[part].append((sizes.get(part, elements), seconds))

    def level(part: str) -> float:
        return statistics.fmean(seconds for _, seconds in points[part])

    def line(*parts: str) -> Line:
        return fit_line([point for part in parts for point in points.get(part, [])])

    return Calibration(
        workload=name,
        micro_batch_size=strategy.micro_batch_size,
        world_size=strategy.world_size,
        compression=strategy.gradient_exchange.compression.name,
        forward_s=level("forward"),
        backward_s=level("backward"),
        optimizer_s=level("optimizer"),
        allreduce=line("allreduce", "scales"),
        direct=line("push", "pull"),
        encode=line("encode"),
        reduce=line("reduce"),
        decode=line("decode"),
        overlap=device.type != "cpu",
        spread=means_over_ranks([_spread(totals)], device)[0],
        source=f"measured here: {strategy.world_size} ranks at once, {len(totals)} steps of compute with one exchange of "
        f"made-up gradients, {len(ELEMENTS)} sizes",
    )


def _steps(compute: _ComputeStep, strategy: Strategy, elements: int, device: torch.device, timeout_s: float) -> list[Parts]:
    dtype = torch.bfloat16 if strategy.weight_update.narrow else torch.float32
    ddp = DistributedDataParallel(_Vector(elements).to(device, dtype))
    # The rule for dense tensors names those of the model; this gradient represents the compressed ones.
    hook = attach(ddp, replace(strategy.gradient_exchange, dense_rule=None), AttachOptions(timeout_s=timeout_s))
    gradient = torch.randn(elements, dtype=torch.float32, generator=torch.Generator().manual_seed(dist.get_rank())).to(
        device, dtype
    )
    steps: list[Parts] = []
    for _ in range(STEPS + 2):
        parts = dict.fromkeys(_PARTS, 0.0) | compute()
        hook.meter.begin_step()
        whole = _timed(partial(hook.exchange_now, gradient.clone()), device)
        for event in hook.meter.events:
            part = event.name if event.lane == "network" else _CODEC.get(event.name, "decode")
            parts[part] = parts.get(part, 0.0) + event.duration_s
            whole -= event.duration_s
        parts["decode"] += whole  # the hand-over between threads
        steps.append(parts)
    return steps[2:]


def _middle(steps: Sequence[Parts]) -> Parts:
    """Return the mean of each part over the middle half of the steps by total time, so that the parts sum to a median step."""
    ordered = sorted(steps, key=lambda parts: sum(parts.values()))
    kept = ordered[len(ordered) // 4 : max(1, len(ordered) - len(ordered) // 4)]
    return {part: statistics.fmean(parts[part] for parts in kept) for part in kept[0]}


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """Fit ``seconds = fixed + per_unit * size`` by least squares with relative weights; both terms are at least 0."""
    if not points:
        return Line(0.0, 0.0)
    if len({size for size, _ in points}) == 1:
        return Line(statistics.fmean(seconds for _, seconds in points), 0.0)
    x, y = np.array(points, float).T
    weight = 1 / np.maximum(y, 1e-9)
    columns = np.stack([np.ones_like(x), x], 1) * weight[:, None]
    fixed, per_unit = np.linalg.lstsq(columns, y * weight, rcond=None)[0]
    if per_unit <= 0:
        return Line(float(np.mean(y)), 0.0)
    if fixed <= 0:
        return Line(0.0, float(np.mean(y / np.maximum(x, 1))))
    return Line(float(fixed), float(per_unit))


class _ComputeStep:
    """Step of one micro batch under DDP without an exchange: forward, backward and optimizer. Returns the seconds of each."""

    def __init__(self, model: nn.Module, batch: tuple[Tensor, Tensor], strategy: Strategy) -> None:
        self.model, (self.x, self.y) = wrap(model.train(), strategy), batch
        self.arithmetic = Arithmetic(strategy, self.x.device)
        self.model.register_comm_hook(ThreadPoolExecutor(1), _keep_local)
        self.optimizer = make_optimizer(strategy.optimizer, model.named_parameters(), 0.0)
        self.loss = torch.zeros((), dtype=torch.float32)

    def __call__(self) -> dict[str, float]:
        device = self.x.device
        return {
            "forward": _timed(self._forward, device),
            "backward": _timed(lambda: self.arithmetic.backward(self.loss), device),
            "optimizer": _timed(self._update, device),
        }

    def _forward(self) -> None:
        with self.arithmetic.autocast():
            output = self.model(self.arithmetic.cast(self.x))
            self.loss = classification_loss(output.float() if self.arithmetic.stored else output, self.y)

    def _update(self) -> None:
        self.arithmetic.update(self.optimizer)
        self.optimizer.zero_grad()


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _keep_local(state, bucket):  # type: ignore[no-untyped-def]
    """Return the bucket unchanged from a thread, as in training."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    state.submit(future.set_result, bucket.buffer())
    return future


def _phase_bytes(strategy: Strategy, elements: int) -> dict[str, float]:
    """Return the bytes that the busiest rank sends in each collective of one bucket of ``elements``."""
    collectives = strategy.traffic(BucketPlan(elements, 1, 0)).phases
    return {phase.name: max(phase.sent(rank) for rank in range(strategy.world_size)) for phase in collectives}


class _Vector(nn.Module):
    """Tensor to exchange."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements, dtype=torch.float32))


def means_over_ranks(values: Iterable[float], device: torch.device) -> list[float]:
    """Mean of each number over the ranks, all in one all-reduce."""
    shared = torch.tensor(list(values), dtype=torch.float64, device=device)
    dist.all_reduce(shared)
    return [total / dist.get_world_size() for total in shared.tolist()]


def _spread(values: Sequence[float]) -> float:
    """Return half the distance between the quartiles, relative to the median."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float((high - low) / 2 / middle)
