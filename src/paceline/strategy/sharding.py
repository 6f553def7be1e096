"""Sharding of the training state among workers: plain data parallelism or a level of ZeRO.

Sources: Rajbhandari et al. 2020, ZeRO, SC, sections 5 and 7 (bytes of each level); Zhao et al. 2023, PyTorch FSDP, VLDB 16(12).
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, prod
from typing import Any, ClassVar, final

from paceline.errors import UserError
from paceline.hardware.precision import BYTES_PER_ELEMENT, RECIPES, WIDE, gathered_bytes
from paceline.strategy.buckets import BucketPlan, T
from paceline.strategy.choices.values import Value
from paceline.strategy.compression.formats import FP32, whole_blocks, whole_numbers
from paceline.strategy.exchanges.traffic import CodecWork, Traffic
from paceline.strategy.phase import Phase

INT8 = whole_numbers("int8", 8, {"block": 1024})
"""Wire format of weights that are gathered in 8 bits."""
NONE_FROZEN: Mapping[str, int] = {}
"""No frozen weights next to any parameter."""


class Sharding(Value, ABC):
    """One level of sharding among the workers.

    Attributes:
        title: the level in words.
        optimizer, gradients, weights: True if each worker keeps only its shard between steps.
        frozen: True if it keeps only its shard of weights that are not trained, such as those next to LoRA's adapters.
        scatters: True if gradients are reduce-scattered, not all-reduced.
        by_rows: True if each tensor is sharded by rows, not as one flat buffer.
        of_torch: True if PyTorch implements it.
        gather_names: all-gathers of every unit of weights in one micro step (``gather_update``, ``gather_next``: in one step;
            the latter overlaps the next step's first forward pass).
        gathers_again: True if weights are freed after the forward pass and gathered again for the backward pass.
    """

    __slots__ = ()
    known: ClassVar[dict[str, Any]]
    title: ClassVar[str]
    optimizer: ClassVar[bool] = False
    gradients: ClassVar[bool] = False
    weights: ClassVar[bool] = False
    frozen: ClassVar[bool] = False
    scatters: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False
    of_torch: ClassVar[bool] = True
    gather_names: ClassVar[tuple[str, ...]] = ()
    gathers_again: ClassVar[bool] = False

    @property
    def shares_out(self) -> bool:
        """True if any state is sharded."""
        return self.optimizer

    def is_usual(self, divided: bool) -> bool:
        """Return whether a strategy with it is as simple as without: one that shares out nothing, or only the optimizer.

        Args:
            divided: whether tensor groups or a pipeline divide the network, as in Megatron-LM, whose recipes share it out.
        """
        return not self.optimizer or (divided and not self.gradients)

    @property
    def divided(self) -> Sharding:
        """Sharding to use when several devices hold a replica."""
        return self

    def can_gather(self, precision: str, bits: int) -> bool:
        """Return whether weights of a precision can be gathered in the given number of bits; 0: the default."""
        if not bits or not self.optimizer:
            return not bits
        rounded = self.weights and rounds_weights(precision, bits)
        wider = self.scatters and bits > 8 * BYTES_PER_ELEMENT[precision]  # others gather fp32 master weights
        return not wider and (rounded or bits >= 8 * gathered_bytes(precision, bits))

    def check_gathered(self, precision: str, bits: int) -> None:
        """Raise UserError if ``can_gather`` is False."""
        if self.can_gather(precision, bits):
            return
        if not self.optimizer:
            raise UserError(f"gather_bits={bits} with sharding {self}", "give zero1, zero2 or zero3")
        if self.scatters:
            check_no_wider(bits, 8 * BYTES_PER_ELEMENT[precision], precision, "leave gather_bits out, or give precision fp32")
        least = int(8 * gathered_bytes(precision, bits))
        quantised = [name for name, recipe in RECIPES.items() if recipe.gathers_weights]
        rounding = ", or sharding zero2 or zero3, which round them" if rounds_weights(precision, bits) else ""
        raise UserError(
            f"gather_bits={bits} with {precision} and {self}, whose weights travel in no fewer than {least} bits",
            f"give {least} bits, or precision {' or '.join(quantised)}{rounding}",
        )

    def gathers(
        self,
        plan: BucketPlan,
        precision: str,
        world_size: int,
        frozen: int = 0,
        members: int = 0,
        bits: int = 0,
        coded: int = 0,
    ) -> tuple[Phase, ...]:
        """Return the all-gathers of one unit's weights in a micro step.

        Args:
            frozen: elements that are gathered next to those of ``plan``.
            members: number of neighbouring workers that shard one copy; 0: all.
            bits: bits of a gathered weight; 0: as in PyTorch. Rounded if fewer than the precision's (``rounds_weights``).
            coded: bytes of the ``frozen`` elements if they are held as codes and gathered so (QLoRA); 0: as the others.
        """
        codes = coded * self.frozen
        frozen = 0 if codes else frozen
        owners = members or world_size
        in_rows = self.weights or (self.by_rows and not bits)  # Megatron-Core shards one flat buffer
        elements = (owners * sum(plan.shard(owners)) if in_rows else plan.elements) + frozen * self.frozen
        if self.weights and rounds_weights(precision, bits):
            size = owners * _rounded_bytes(plan, precision, owners, frozen * self.frozen, bits)
        elif bits:
            size = ceil(gathered_bytes(precision, bits) * elements)
        else:
            size = BYTES_PER_ELEMENT[precision] * elements if self.scatters else FP32.push_bytes(elements)
        return tuple(Phase(name, (size + codes,), world_size, "gather", members) for name in self.gather_names)


@final
class Ddp(Sharding):
    """Plain data parallelism: every worker keeps all state, and gradients are exchanged (PyTorch DistributedDataParallel)."""

    __slots__ = ()
    name, title = "ddp", "everything whole on every worker"


@final
class Zero1(Sharding):
    """ZeRO-1, in which each worker keeps and updates the optimizer state of its shard. The fp32 master weights are gathered
    once a step.

    PyTorch's ``ZeroRedundancyOptimizer`` with DDP shards by whole tensors, ``train`` by rows of every tensor.
    """

    __slots__ = ()
    name, title = "zero1", "optimizer state shared out"
    optimizer = by_rows = True
    gather_names = ("gather_update",)

    @property
    def divided(self) -> Sharding:
        """Return ``distributed_optimizer``."""
        return DISTRIBUTED


@final
class Zero2(Sharding):
    """ZeRO-2. Gradients are reduce-scattered, and weights are gathered once for both passes (FSDP, ``SHARD_GRAD_OP``)."""

    __slots__ = ()
    name, title = "zero2", "and gradients"
    optimizer = gradients = weights = scatters = by_rows = True
    gather_names = ("gather_forward",)


@final
class Zero3(Sharding):
    """ZeRO-3. Weights are freed after the forward pass and gathered again for the backward pass (FSDP, ``FULL_SHARD``)."""

    __slots__ = ()
    name, title = "zero3", "and weights"
    optimizer = gradients = weights = frozen = scatters = by_rows = gathers_again = True
    gather_names = ("gather_forward", "gather_backward")


@final
class DistributedOptimizer(Sharding):
    """Megatron-Core's form of zero1 for replicas that several devices hold.

    Gradients are reduce-scattered in fp32. Each worker updates the fp32 master weights of its shard, and weights are gathered
    at the width of the precision.
    """

    __slots__ = ()
    name, title = "distributed_optimizer", "as zero1, weights and optimizer state as Megatron-Core has them"
    optimizer = scatters = True
    of_torch = False
    gather_names = ("gather_next",)


DDP, ZERO1, ZERO2, ZERO3, DISTRIBUTED = Ddp(), Zero1(), Zero2(), Zero3(), DistributedOptimizer()
SHARDINGS: Mapping[str, Sharding] = Sharding.known
"""All shardings by name."""
ALIASES = {
    "none": "ddp",
    "data parallel": "ddp",
    "fsdp": "zero3",
    "fsdp2": "zero3",
    "full_shard": "zero3",
    "shard_grad_op": "zero2",
    "ZeroRedundancyOptimizer": "zero1",
    "megatron distributed optimizer": DISTRIBUTED.name,
    **{
        f"{words} {stage}": f"zero{stage}"
        for words in ("deepspeed zero", "deepspeed stage", "zero stage")
        for stage in (1, 2, 3)
    },
}
"""Other names of shardings: PyTorch's (``fsdp`` and ``fsdp2`` shard everything), DeepSpeed's, Megatron's."""
TORCH_SHARDINGS = tuple(name for name, sharding in SHARDINGS.items() if sharding.of_torch)
"""Names of the shardings that PyTorch implements."""


def units(parameters: Sequence[T], least_bytes: int, frozen: Mapping[str, int] = NONE_FROZEN) -> list[list[T]]:
    """Group tensors into units that are gathered and scattered together: whole blocks, joined up to ``least_bytes`` of fp32.

    Tensors of a block have the same name up to its first number, such as ``layers.3``: FSDP's policies wrap such blocks. A
    module outside all blocks joins its neighbours. Tensors of the model itself are the first unit, since FSDP2 leaves them to
    the root. ``parameters``: in model order. ``frozen``: elements gathered next to a parameter, by its name.
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


@lru_cache(maxsize=65536)
def block(name: str) -> str:
    """Return the part of a tensor's name that identifies its block; empty for a tensor outside all blocks."""
    parts = name.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return "" if number is None else ".".join(parts[: number + 1])


def scatter(elements: int, precision: str, world_size: int, members: int = 0, bits: int = 0) -> Traffic:
    """Return the reduce-scatter of a unit's gradients. ``bits``: of a gradient; 0: the precision's (FSDP's mixed precision).

    Args:
        members: number of neighbouring workers that shard one copy; an all-reduce adds their shards to those of the other
            groups (PyTorch FSDP, ``HYBRID_SHARD``). 0: all.
    """
    size = (bits // 8 or BYTES_PER_ELEMENT[precision]) * elements
    phases: tuple[Phase, ...] = (Phase("reduce_scatter", (size,), world_size, "scatter", members),)
    if 0 < members < world_size:
        share = -(-size // members)
        phases += (Phase("replica_allreduce", (share,), world_size, "allreduce", world_size // members, members),)
    return Traffic((), phases, (), CodecWork(), CodecWork(), CodecWork(), 1, 1.0)


def narrow_sum(elements: int, world_size: int) -> Traffic:
    """Return the all-reduce of one bucket of bf16 gradients, as DistributedDataParallel has it for bf16 weights."""
    size = BYTES_PER_ELEMENT[WIDE] * elements
    return Traffic((), (Phase("allreduce", (size,), world_size),), (), CodecWork(), CodecWork(), CodecWork(), 1, 1.0)


def _rounded_bytes(plan: BucketPlan, precision: str, owners: int, frozen: int, bits: int) -> int:
    """Return the bytes of one owner's weights in 16 or 8 bits.

    In int8 every tensor begins with a block, and small ones travel as they are. Frozen elements, whose shapes are unknown here,
    count as one tensor.
    """
    beside = -(-frozen // owners)
    if bits != 8:
        return 2 * (sum(plan.shard(owners)) + beside)
    coded, small = plan.encoded_shard(owners, INT8.block, every=True)
    return INT8.message_bytes(coded + whole_blocks(beside, INT8.block)) + int(BYTES_PER_ELEMENT[precision] * small)


def rounds_weights(precision: str, bits: int) -> bool:
    """Return whether weights are rounded only for their all-gather, to bfloat16 or to int8 with one scale per block (qwZ: Wang
    et al. 2023, ZeRO++, arXiv 2306.10209, section 3.1). Precisions that quantise weights gather them unchanged."""
    return 0 < bits < 8 * BYTES_PER_ELEMENT[precision] and precision not in RECIPES


def check_no_wider(bits: int, width: int, name: str, instead: str) -> None:
    """Raise UserError if ``bits`` exceeds ``width``, the bits of gathered weights of type ``name``."""
    if bits > width:
        raise UserError(f"gather_bits={bits} of weights that are gathered in {width}, as {name}", instead)


def check_shares(owners: int, copies: int) -> None:
    """Raise UserError for groups of one rank with a copy each: such a mesh shards nothing."""
    if owners == 1 < copies:
        raise UserError(
            f"{copies} copies in groups of one rank, which share nothing out", "give sharding ddp: DistributedDataParallel"
        )
