"""Seconds of each piece of a step. ``timeline`` decides which piece waits for which.

Costs follow from the catalogue by the roofline and the alpha-beta model, or from a calibration if one is given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from statistics import NormalDist

import numpy as np

from paceline.array_types import Array
from paceline.calibration.calibration import Calibration
from paceline.calibration.constants import Efficiency
from paceline.errors import UserError
from paceline.hardware.device import Device
from paceline.hardware.hosts import HostShare
from paceline.hardware.precision import BYTES_PER_ELEMENT
from paceline.prediction.exchange.exchange_plan import CodecPass, ExchangePlan
from paceline.prediction.exchange.exchange_seconds import ExchangeSeconds, priced
from paceline.prediction.exchange.matrix_exchange import orthogonalizers
from paceline.prediction.passes.compute import Seconds, ema_seconds, optimizer_seconds
from paceline.prediction.passes.offload import gradient_wait_seconds, host_update_seconds
from paceline.prediction.passes.orthogonal import matrix_elements, matrix_tensors, newton_schulz_seconds
from paceline.prediction.passes.recompute import recomputed
from paceline.strategy.optimizer import ADAMW, OPTIMIZERS
from paceline.strategy.phase import Phase
from paceline.strategy.recompute import Recompute
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step on one device.

    Attributes:
        forward, backward: the passes of one micro step, per layer in forward order.
        again: recomputation before the backward pass of each layer, (layers,).
        again_share: recomputed share of each layer's forward pass, 0 or 1, (layers,).
        slowest: time of the slowest worker divided by the mean time of all workers, at least 1.
        optimizer: seconds of memory traffic, of kernel launches and of products in one step.
        overlap_penalty: share of the time that is lost while compute and exchange both run.
        host: seconds of an offloaded update that a step waits for the host.
        matrices: seconds of the optimizer's exchange of matrices, on the link in a node and on the network.
    """

    forward: Seconds
    backward: Seconds
    again: Array
    again_share: Array
    slowest: float
    optimizer: tuple[float, float, float]
    exchange: ExchangeSeconds
    overlap_penalty: float = 0.0
    host: float = 0.0
    matrices: tuple[float, float] = (0.0, 0.0)

    @property
    def update(self) -> float:
        """Seconds from the end of the exchange to the updated weights."""
        return sum(self.optimizer) + self.host + sum(self.matrices)


def run_again(workload: Workload, choice: Recompute, forward: Array) -> tuple[Array, Array]:
    """Return seconds of recomputation before each layer's backward pass, and which layers are recomputed, both (layers,).

    Each part is recomputed as a whole, before the backward pass of its last layer."""
    plan = recomputed(workload, choice)
    again = np.zeros_like(forward)
    np.add.at(again, plan.before, plan.again * forward)
    return again, plan.again


def slowest(workers: int, efficiency: Efficiency) -> float:
    """Return the time of the slowest of N workers over the mean: 1 + s times the expected maximum of N normal values (Blom
    1958)."""
    if workers == 1 or not efficiency.straggler_spread:
        return 1.0
    return 1 + efficiency.straggler_spread * NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))


def slowest_of(workers: int, times: tuple[float, ...], efficiency: Efficiency) -> tuple[float, float]:
    """Return ``slowest`` of N workers, some of which always take longer than a usual one, and the longest of their times.

    Args:
        times: time of a step of the first ones relative to a usual one. The others take 1.

    Raises:
        UserError: more times than workers.
    """
    if len(times) > workers:
        raise UserError(f"{len(times)} times for {workers} workers", "give at most one for each worker; the others take 1")
    longest = max((*times, *(1.0,) * (len(times) < workers)), default=1.0)
    if longest == 1 and all(factor == 1 for factor in times):
        return slowest(workers, efficiency), 1.0
    most = times.count(longest) + (workers - len(times) if longest == 1 else 0)
    return longest * slowest(most, efficiency), longest


def update_seconds(
    workload: Workload,
    strategy: Strategy,
    plan: ExchangePlan,
    device: Device,
    efficiency: Efficiency,
    backward_s: float = 0.0,
    share: HostShare | None = None,
) -> tuple[float, float, float, float]:
    """Return seconds of memory traffic, of kernel launches and of products of the optimizer on one worker; those on its host.

    The worker updates its shard of the weights: a part of every tensor under FSDP 2, whole tensors under ZeRO-1. A host's
    copies of gradients overlap a backward pass of ``backward_s`` seconds.

    Args:
        share: the worker's part of the host, for an offloaded optimizer.
    """
    mesh = strategy.parallelism
    level, workers = mesh.sharding, mesh.sharers if mesh.sharding.optimizer else 1
    tensors = ceil(len(workload.parameters) / (1 if level.weights else workers))
    own = ceil(workload.num_parameters / workers)
    if mesh.offload.optimizer:
        assert share is not None
        optimizer, width = OPTIMIZERS[strategy.optimizer], BYTES_PER_ELEMENT[strategy.precision]
        waited = gradient_wait_seconds(own, width, share, efficiency, strategy.exchanges_per_step, backward_s)
        return 0.0, 0.0, 0.0, waited + host_update_seconds(optimizer, own, width, share, efficiency, mesh.offload)
    optimizer, update = OPTIMIZERS[strategy.optimizer], strategy.weight_update
    owners = workers if level.weights else 1  # every replica averages the weights that it has
    average = ema_seconds(ceil(workload.num_parameters / owners), len(workload.parameters), device, efficiency, update)
    if not optimizer.orthogonal:
        memory, launch = optimizer_seconds(optimizer, own, tensors, device, efficiency, update)
        return memory + average[0], launch + average[1], 0.0, 0.0
    elements, count = matrix_elements(workload), matrix_tensors(workload)
    of_matrices = optimizer_seconds(optimizer, ceil(elements / workers), ceil(count / workers), device, efficiency, update)
    elements, count = workload.num_parameters - elements, len(workload.parameters) - count
    rest = optimizer_seconds(ADAMW, ceil(elements / workers), ceil(count / workers), device, efficiency, update)
    products, launches = newton_schulz_seconds(workload, device, efficiency)
    memory, launch = (sum(parts) for parts in zip(of_matrices, rest, average, strict=True))
    sharing = orthogonalizers(strategy)
    return memory, launch + launches / sharing, products / sharing, 0.0


def calibrated_costs(
    base: StepCosts, workload: Workload, strategy: Strategy, plan: ExchangePlan, calibration: Calibration
) -> StepCosts:
    """Return costs from measurements: the catalogue gives each layer's share, the calibration the totals.

    Forward and backward are proportional to the micro batch if it differs from the calibration's. The measurements already
    include stragglers.

    Args:
        plan: an exchange plan for measured costs.

    Raises:
        UserError: the calibration is of another workload or compression.
    """
    for name, given, wanted in (
        ("workload", calibration.workload, workload.name),
        ("compression", calibration.compression, strategy.gradient_exchange.compression.name),
    ):
        if given != wanted:
            raise UserError(f"the calibration is of {name} {given!r}, not {wanted!r}", "calibrate again for this one")
    x = strategy.gradient_exchange
    if x.placed:
        place = f"of a codec {x.codec_at.text}" if x.codec_at else "of residuals in the host's memory"
        what = "of exchange switch" if x.exchange.uses_switch else place
        raise UserError(f"a calibration has no measurement {what}", "leave the calibration out, or leave that choice out")
    grown = strategy.micro_batch_size / calibration.micro_batch_size
    forward = calibration.forward_s * grown / base.forward.total.sum()
    backward = calibration.backward_s * grown / base.backward.total.sum()
    workers = strategy.parallelism.sharers if strategy.parallelism.sharding.optimizer else 1
    update = calibration.optimizer_s / workers / sum(base.optimizer) if sum(base.optimizer) else 0.0  # 0: on the host
    return replace(
        base,
        forward=base.forward.scaled(forward),
        backward=base.backward.scaled(backward),
        again=base.again * forward,
        slowest=1.0,
        optimizer=(base.optimizer[0] * update, base.optimizer[1] * update, base.optimizer[2] * update),
        exchange=_calibrated_exchange(plan, base.exchange, calibration).spread(strategy.sync_every),
    )


def _calibrated_exchange(plan: ExchangePlan, base: ExchangeSeconds, calibration: Calibration) -> ExchangeSeconds:
    """Return the seconds of the pieces by the measured lines. Each chunk pays the fixed part.

    If exchange and backward pass share the cores, codec and network share them too, and nothing is pipelined.
    """
    levels = {piece.name: by for piece, by in zip(base.plan.pieces, base.network.tolist(), strict=True)}
    seconds, sent = [], iter(plan.sent.tolist())
    for piece in plan.pieces:
        if isinstance(piece.what, CodecPass):
            line, size = getattr(calibration, piece.what.work), piece.what.packed
        else:
            line, size = calibration.allreduce if _summed(piece.what) else calibration.direct, next(sent)
        seconds.append(piece.times * line.fixed_s + line.per_unit_s * size)
    largest = plan.largest if calibration.overlap else np.ones_like(plan.largest)
    flat = replace(plan, largest=largest)
    network = np.array([levels.get(piece.name, False) for piece in plan.pieces], dtype=np.bool_)
    each = np.array([[calibration.allreduce(phase.sent(0)) for phase in gathers] for gathers in plan.gathering])
    gathers = each.reshape(len(plan.gathering), len(plan.gathers))[plan.partition.index].T
    return priced(flat, np.array(seconds), network, gathers, base.gathers_network)


def _summed(phase: Phase) -> bool:
    """Return whether a collective is one of the engine, which the calibration measured as an all-reduce."""
    return phase.pattern in ("allreduce", "gather", "scatter")
