"""Bytes that training needs on one device."""

from __future__ import annotations

import numpy as np

from paceline.hardware.device import BYTES_PER_ELEMENT
from paceline.prediction.costs import Bucket
from paceline.strategy.formats import FP32
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.strategy import Strategy
from paceline.workload.layers import Workload

IN_FLIGHT = 2  # chunks: one at the codec, one on the network


def memory_breakdown(workload: Workload, strategy: Strategy, buckets: tuple[Bucket, ...]) -> dict[str, float]:
    """Bytes by purpose on the device that needs most.

    Weights, gradients and optimizer state are fp32 (a 16-bit precision keeps a 16-bit copy of the weights beside them, as
    autocast does); activations and inputs are in the precision of the strategy. DDP holds the gradients a second time in its
    buckets. Error feedback keeps 4 bytes a parameter. An exchange of messages holds one group and the chunks on their way.
    """
    weights = 4 * workload.num_parameters
    width = BYTES_PER_ELEMENT[strategy.precision]
    breakdown = {
        "weights": weights + (width * workload.num_parameters if width < 4 else 0),
        "gradients": weights,
        "optimizer state": OPTIMIZERS[strategy.optimizer].state_words * weights,
        "activations": workload.activation_bytes * strategy.micro_batch_size * width / 4,
        "inputs": workload.input_bytes * strategy.micro_batch_size,
        "buckets": weights if buckets else 0,
        "error feedback": weights if buckets and strategy.description.error_feedback else 0,
        "codec buffers": max((_codec_bytes(bucket, strategy) for bucket in buckets), default=0),
    }
    return {name: float(size) for name, size in breakdown.items()}


def _codec_bytes(bucket: Bucket, strategy: Strategy) -> int:
    """A plain all-reduce works in the bucket itself; else a group is copied together, and chunks are on their way.

    A chunk holds what the busiest rank sends and receives, and the fp32 sum of what it owns. A payload of unknown length has
    room for its worst case.
    """
    if strategy.exchange == "allreduce":
        sent = sum(max(phase.sizes) for phase in bucket.phases)
        return sent if sent != FP32.push_bytes(bucket.elements) else 0
    chunks = -(-bucket.traffic.chunks // IN_FLIGHT) or 1
    worst = strategy.traffic(bucket.plan, "most").chunked
    moved = int(np.sum([phase.sent_by_rank() + phase.received_by_rank() for phase in worst], axis=0).max()) if worst else 0
    inner = sum(int(phase.received_by_rank().max()) for phase in bucket.traffic.before if not phase.ring)
    return FP32.push_bytes(bucket.elements) + moved // chunks + inner
