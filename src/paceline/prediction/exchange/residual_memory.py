"""Memory of error feedback on a device or in host memory, and its copies during an exchange."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.strategy.buckets import BucketPlan
from paceline.strategy.codec_place import ON_HOST
from paceline.strategy.gradient_exchange import GradientExchange
from paceline.strategy.strategy import Strategy


def numbers_kept(x: GradientExchange) -> int:
    """Return stored numbers per element: the residual, and the momentum with momentum correction; 0 without error feedback."""
    if not x.description.error_feedback:
        return 0
    return 2 if x.description.option_values.get("momentum") else 1


def on_host(x: GradientExchange) -> bool:
    """Return whether residuals are in the memory of a GPU's host, for the exchange of a settled strategy."""
    return bool(x.residuals_at) or x.codec_at is ON_HOST


def works_on_copies(x: GradientExchange) -> bool:
    """Return whether the codec works on fp32 copies of one group instead of the stored residuals."""
    return x.residual_bits != 32 or bool(x.residuals_at)


def holders(strategy: Strategy) -> int:
    """Return the number of ranks that share the encoded elements: those of a node, or of a group of shards in HSDP."""
    x, mesh = strategy.gradient_exchange, strategy.parallelism
    if mesh.sharding.weights and mesh.sharers < mesh.data:
        return mesh.sharers
    return x.ranks_per_node


def residual_bytes(strategy: Strategy, whole: float, elements: Sequence[float]) -> tuple[float, float]:
    """Return bytes between exchanges, and bytes of the copies that an exchange works on.

    DDP's hook keeps the residuals of before a step until its last group was finite: a second copy of all groups but the last.
    It has room for all of a node's elements. With sharded gradients a rank keeps its encoded part twice, since FSDP2 does not
    tell which unit is the last.

    Args:
        whole: number of parameters. ``elements``: elements of each group.
    """
    x = strategy.gradient_exchange
    times, width = numbers_kept(x), x.residual_bits / 8
    if not times or not len(elements):
        return 0.0, 0.0
    share = holders(strategy)
    copies = 4.0 * times * max(elements) / share if works_on_copies(x) else 0.0
    if strategy.parallelism.sharding.weights:
        return 2 * times * width * whole / share, copies
    return times * width * (whole + sum(elements[:-1])), copies


def copied_elements(plan: BucketPlan, strategy: Strategy) -> int:
    """Return the numbers of one group that an exchange copies from their store and back; 0 if it works in place."""
    x = strategy.gradient_exchange
    if not works_on_copies(x):
        return 0
    encoded = plan.elements if x.description.low_rank else plan.compressed
    return numbers_kept(x) * -(-encoded // holders(strategy))
