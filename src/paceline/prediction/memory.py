"""Bytes that training needs on one device."""

from __future__ import annotations

from paceline.hardware.device import BYTES_PER_ELEMENT
from paceline.prediction.costs import Bucket
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.strategy import Strategy
from paceline.workload.layers import Workload


def memory_breakdown(workload: Workload, strategy: Strategy, buckets: tuple[Bucket, ...]) -> dict[str, float]:
    """Bytes by purpose on the device that needs most.

    Weights, gradients and optimizer state are fp32 (a 16-bit precision keeps a 16-bit copy of the weights beside them, as
    autocast does); activations and inputs are in the precision of the strategy. DDP holds the gradients a second time in its
    buckets. A compressing or direct exchange holds one bucket's messages: what it sends, what it receives, its fp32 sum.
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
        "codec buffers": max((_codec_bytes(bucket) for bucket in buckets), default=0),
    }
    return {name: float(size) for name, size in breakdown.items()}


def _codec_bytes(bucket: Bucket) -> int:
    """A bucket's messages on the rank with the biggest shard; a plain all-reduce works in the bucket itself."""
    direct = [phase for phase in bucket.phases if not phase.ring]
    if not direct:
        wire = bucket.phases[0].shards[0]
        return wire if wire < 4 * bucket.elements else 0
    sent_or_received = sum(sum(phase.shards) + max(phase.shards) * phase.world_size for phase in direct)
    return sent_or_received + 4 * bucket.elements
