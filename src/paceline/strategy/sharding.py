"""What the workers keep whole and what they share out: plain data parallelism or a level of ZeRO, as PyTorch has them.

``ddp``: everything whole on every worker; gradients are exchanged. ``zero1`` (beside DDP; ``ZeroRedundancyOptimizer`` shares
out whole tensors, ``train`` rows of every tensor): each worker keeps the optimizer state of its part, updates it and gathers
the rest. ``zero2`` (``FSDP`` with ``SHARD_GRAD_OP``):
gradients are reduce-scattered and weights gathered once for forward and backward. ``zero3`` (``FULL_SHARD``): weights are freed
behind the forward pass and gathered again for the backward pass.

``distributed_optimizer`` (Megatron-Core's) is what ``zero1`` is where several devices hold a replica: gradients are
reduce-scattered in fp32, each worker updates the fp32 master weights of its part, and weights are gathered at the width of the
precision.

Sources: Rajbhandari et al. 2020, ZeRO, SC, section 5 and 7 (bytes of each level); Zhao et al. 2023, PyTorch FSDP, VLDB 16(12).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from paceline.errors import UserError
from paceline.hardware.precision import BYTES_PER_ELEMENT, RECIPES, gathered_bytes
from paceline.strategy.buckets import BucketPlan, T
from paceline.strategy.exchange import CodecWork, Traffic
from paceline.strategy.formats import FP32, whole_numbers
from paceline.strategy.phase import Phase


@dataclass(frozen=True, slots=True)
class Sharding:
    """What one level shares out among the workers.

    Attributes:
        optimizer, gradients, weights: whether each worker keeps only its part between the steps. ``frozen``: also of weights
            that are not trained, such as those beside LoRA's adapters.
        scatters: whether gradients are reduce-scattered, not all-reduced.
        gathers: names of the all-gathers of every unit of weights in one micro step (``gather_update``, ``gather_next``: in
            one step; the latter beside the next step's first forward pass).
    """

    name: str
    title: str
    optimizer: bool = False
    gradients: bool = False
    weights: bool = False
    frozen: bool = False
    scatters: bool = False
    gathers: tuple[str, ...] = ()


DISTRIBUTED = "distributed_optimizer"
"""What ``zero1`` is where several devices hold a replica."""
SHARDINGS: Mapping[str, Sharding] = {
    s.name: s
    for s in (
        Sharding("ddp", "everything whole on every worker"),
        Sharding("zero1", "optimizer state shared out", optimizer=True, gathers=("gather_update",)),
        Sharding(
            "zero2",
            "and gradients",
            optimizer=True,
            gradients=True,
            weights=True,
            scatters=True,
            gathers=("gather_forward",),
        ),
        Sharding(
            "zero3",
            "and weights",
            optimizer=True,
            gradients=True,
            weights=True,
            frozen=True,
            scatters=True,
            gathers=("gather_forward", "gather_backward"),
        ),
        Sharding(
            DISTRIBUTED,
            "as zero1, weights and optimizer state as Megatron-Core has them",
            optimizer=True,
            scatters=True,
            gathers=("gather_next",),
        ),
    )
}
TORCH_SHARDINGS = ("ddp", "zero1", "zero2", "zero3")
"""What PyTorch has itself."""


INT8 = whole_numbers("int8", 8, {"block": 1024})
"""Format of weights that are gathered in 8 bits."""
NONE_FROZEN: Mapping[str, int] = {}
"""No frozen weights beside any parameter."""


def divided(sharding: str) -> str:
    """What a sharding is where several devices hold a replica."""
    return DISTRIBUTED if sharding == "zero1" else sharding


def units(parameters: Sequence[T], least_bytes: int, frozen: Mapping[str, int] = NONE_FROZEN) -> list[list[T]]:
    """Tensors that are gathered and scattered together, in model order: whole blocks, joined up to ``least_bytes`` of fp32.

    A block is what shares a name up to its first number, such as ``layers.3``: what FSDP's policies wrap. ``parameters`` in
    model order; a module outside all blocks joins its neighbours. What the model itself owns is a unit, the first, since FSDP2
    leaves it to the root. ``frozen``: elements beside a parameter, by its name.
    """
    of_root = [tensor for tensor in parameters if "." not in tensor.name]
    groups: list[list[T]] = [of_root] if of_root else []
    filled, last = least_bytes, ""
    for tensor in parameters:
        if "." not in tensor.name:
            continue
        owner = block(tensor.name) or tensor.name.rpartition(".")[0]
        if filled >= least_bytes and owner != last:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += 4 * (prod(tensor.shape) + frozen.get(tensor.name, 0))
        last = owner
    return groups


def block(name: str) -> str:
    """The part of a tensor's name that says its block; empty for a tensor outside all blocks."""
    parts = name.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return "" if number is None else ".".join(parts[: number + 1])


def scatter(elements: int, precision: str, world_size: int, members: int = 0, bits: int = 0) -> Traffic:
    """The reduce-scatter of a unit's gradients in so many ``bits``; 0: the width of the precision (FSDP's mixed precision).

    Args:
        members: workers that share out one copy, neighbours; an all-reduce adds up their shares with those of the other groups
            (PyTorch FSDP, ``HYBRID_SHARD``). 0: all.
    """
    size = (bits // 8 or BYTES_PER_ELEMENT[precision]) * elements
    phases: tuple[Phase, ...] = (Phase("reduce_scatter", (size,), world_size, "scatter", members),)
    if 0 < members < world_size:
        share = -(-size // members)
        phases += (Phase("replica_allreduce", (share,), world_size, "allreduce", world_size // members, members),)
    return Traffic((), phases, (), CodecWork(), CodecWork(), CodecWork(), 1, 1.0)


def rounds_weights(precision: str, bits: int) -> bool:
    """Whether weights are rounded for their all-gather alone, to bfloat16 or to int8 with a scale a block (qwZ: Wang et al.
    2023, ZeRO++, arXiv 2306.10209, section 3.1). The precisions that quantise weights anyway gather them as they are."""
    return 0 < bits < 8 * BYTES_PER_ELEMENT[precision] and precision not in RECIPES


def can_gather(precision: str, sharding: str, bits: int) -> bool:
    """Whether weights of a precision, shared out so, can be gathered in so many bits; 0: as usual."""
    level = SHARDINGS[sharding]
    if not bits or not level.optimizer:
        return not bits
    rounded = level.weights and rounds_weights(precision, bits)
    wider = level.scatters and bits > 8 * BYTES_PER_ELEMENT[precision]  # others gather fp32 master weights
    return not wider and (rounded or bits >= 8 * gathered_bytes(precision, bits))


def check_no_wider(bits: int, width: int, name: str, instead: str) -> None:
    """Raises UserError where weights are gathered in ``width`` bits, as type ``name``, and ``bits`` are more."""
    if bits > width:
        raise UserError(f"gather_bits={bits} of weights that are gathered in {width}, as {name}", instead)


def check_shares(owners: int, copies: int) -> None:
    """Raises UserError for groups of one rank with a copy each: such a mesh shares nothing out."""
    if owners == 1 < copies:
        raise UserError(
            f"{copies} copies in groups of one rank, which share nothing out", "give sharding ddp: DistributedDataParallel"
        )


def check_gathered(precision: str, sharding: str, bits: int) -> None:
    """Raises UserError where ``can_gather`` is False."""
    if can_gather(precision, sharding, bits):
        return
    if not SHARDINGS[sharding].optimizer:
        raise UserError(f"gather_bits={bits} with sharding {sharding}", "give zero1, zero2 or zero3")
    if SHARDINGS[sharding].scatters:
        check_no_wider(bits, 8 * BYTES_PER_ELEMENT[precision], precision, "leave gather_bits out, or give precision fp32")
    least = int(8 * gathered_bytes(precision, bits))
    quantised = [name for name, recipe in RECIPES.items() if recipe.gathers_weights]
    rounding = ", or sharding zero2 or zero3, which round them" if rounds_weights(precision, bits) else ""
    raise UserError(
        f"gather_bits={bits} with {precision} and {sharding}, whose weights travel in no fewer than {least} bits",
        f"give {least} bits, or precision {' or '.join(quantised)}{rounding}",
    )


def gathers(
    plan: BucketPlan, sharding: str, precision: str, world_size: int, frozen: int = 0, members: int = 0, bits: int = 0
) -> tuple[Phase, ...]:
    """The all-gathers of one unit's weights in a micro step, with ``frozen`` elements beside those of ``plan``, among groups of
    ``members`` neighbours (0: all).

    ``bits`` of a weight: 0 is what PyTorch does; to fewer than the precision has it is rounded (``rounds_weights``). ``zero1``
    gathers the fp32 master weights once a step, the others gather weights of the precision.
    """
    level = SHARDINGS[sharding]
    owners = members or world_size
    by_rows = level.weights or (sharding == "zero1" and not bits)  # Megatron-Core shares out one flat buffer
    elements = (owners * sum(plan.shard(owners)) if by_rows else plan.elements) + frozen * level.frozen
    if level.weights and rounds_weights(precision, bits):
        shard = elements // owners
        size = owners * (INT8.message_bytes(shard) if bits == 8 else 2 * shard)
    elif bits:
        size = ceil(gathered_bytes(precision, bits) * elements)
    else:
        size = BYTES_PER_ELEMENT[precision] * elements if level.scatters else FP32.push_bytes(elements)
    return tuple(Phase(name, (size,), world_size, "gather", members) for name in level.gathers)
