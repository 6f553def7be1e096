"""Bytes that a framework holds in addition to the tensors of the training itself: its buffers and the weights it gathers.

Sources: DeepSpeed 0.19.8, ``runtime/zero/stage_1_and_2.py`` (``setup_buckets``), ``stage3.py`` and
``partitioned_param_coordinator.py``; transformers, ``trainer.py`` (``GlobalOptimManager``).
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.hardware.precision import BYTES_PER_ELEMENT
from paceline.memory_timeline import POOLS
from paceline.prediction.step.optimizer_state import embedding_excess
from paceline.strategy.frameworks import Framework
from paceline.strategy.sharding import DISTRIBUTED, block
from paceline.strategy.strategy import Strategy
from paceline.workload.prepared import once
from paceline.workload.table import Workload


def framework_bytes(
    workload: Workload, strategy: Strategy, framework: Framework, fixed: Mapping[str, float]
) -> dict[str, float]:
    """Return bytes by purpose that replace or add to those of ``fixed_bytes`` on one device.

    ``reduce buckets``: buffers for gradients on their way to their owner, at their full size even for few gradients, while each
    replica holds its weights whole. ``gathered``: weights stay gathered up to a number of elements, to be used again soon.

    ``stream pools``: FSDP2 gathers weights and reduces gradients on streams of their own, whose memory PyTorch gives to no
    other stream. It gathers into one buffer and copies to the weights, and reduces from one buffer in the type of the exchange
    (PyTorch, ``fsdp/_fully_shard/_fsdp_collectives.py``). Each has the size of the largest unit.

    ``optimizer state``: embeddings may keep 32 bits next to 8-bit state.

    Args:
        fixed: bytes by purpose of ``fixed_bytes``.
    """
    mesh, width = strategy.parallelism, BYTES_PER_ELEMENT[strategy.precision]
    level = mesh.sharding
    if not mesh.whole or level is DISTRIBUTED:
        return {}
    found: dict[str, float] = {}
    if framework.stream_pools and level.weights:
        found[POOLS] = largest_unit(workload) * (width + (mesh.gradient_bits or 8 * width) / 8)
    if framework.reduce_buckets and level.optimizer and not level.gathers_again:
        found["reduce buckets"] = width * framework.reduce_buckets
    if framework.live_weights and level.gathers_again:
        elements = workload.num_parameters + workload.frozen
        bytes_each = (workload.code_bits / 8 or width) if workload.frozen else width
        found["gathered"] = max(fixed["gathered"], bytes_each * min(framework.live_weights, elements))
    if framework.wide_embeddings and (wide := embedding_excess(workload, strategy)):
        found["optimizer state"] = fixed["optimizer state"] + wide / (mesh.sharers if level.optimizer else 1)
    return found


@once
def largest_unit(workload: Workload) -> int:
    """Return elements of the largest unit of FSDP: a block, or all parameters outside of blocks."""
    sizes: dict[str, int] = {}
    for parameter in workload.parameters:
        name = block(parameter.name)
        sizes[name] = sizes.get(name, 0) + parameter.size
    return max(sizes.values(), default=0)


PIECES = 0.38 * 2**30
"""Bytes that PyTorch reserves beyond what it allocates in every step: the rest of segments of 2 and 20 MiB, and of freed
blocks. The median of nine runs on one device (huggingface/peft#1469, 0.21 to 0.67 GiB)."""


def free_bytes(strategy: Strategy, framework: Framework, tensors: float) -> float:
    """Return bytes of free pieces of PyTorch's memory next to ``tensors``, where its segments do not grow."""
    return 0.0 if framework.stream_pools else PIECES + fragments_share(strategy, framework) * tensors


def fragments_share(strategy: Strategy, framework: Framework) -> float:
    """Return bytes of free pieces for each byte of the step's tensors.

    Gathered weights and buckets of gradients come and go next to tensors that stay, on several streams. Eight large language
    models under DeepSpeed and FSDP had 15 % on average and up to 33 % (Guo et al. 2024, GMLake, arXiv:2401.08156): the mean is
    predicted, and ``memory.FRAGMENTED`` on top of it is the headroom.
    """
    mesh = strategy.parallelism
    shares = mesh.whole and mesh.sharers > 1 and mesh.sharding.optimizer and mesh.sharding is not DISTRIBUTED
    return framework.fragments if shares else 0.0
