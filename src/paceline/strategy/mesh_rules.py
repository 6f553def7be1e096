"""Conditions that choices of ``Parallelism`` share, their texts in descriptions, and the choices of widths on the wire.

Functions take the mesh.
"""

from __future__ import annotations

from typing import Any

from paceline.errors import UserError
from paceline.strategy.choices import tool_names
from paceline.strategy.choices.choice import RUNS, TRAFFIC, EmitRule, Need, Searched, Trained, choice
from paceline.strategy.choices.choice_values import Bits, Name
from paceline.strategy.sharded_exchange import check_to_owners
from paceline.strategy.sharding import DISTRIBUTED, ZERO1, check_shares, rounds_weights

GATHER_BITS, GRADIENT_BITS = (0, 8, 16, 32), (0, 16, 32)
WITH_EXPERTS = Need(lambda mesh: mesh.expert > 1, "{words} without expert parallelism", "give expert, or leave {name} out")
WHOLE_GROUPS = Need(
    lambda mesh: mesh.stage_devices % mesh.expert_devices == 0,
    "{of.expert_devices} devices that share the experts do not divide the {of.stage_devices} of a pipeline stage "
    "(data x context x tensor)",
    "give a divisor of {of.stage_devices}",
)
SHARES_OUT = Need(
    lambda mesh: mesh.sharding.shares_out, "{name}={value} with sharding {of.sharding}", "give zero1, zero2 or zero3"
)
SEVERAL_STAGES = Need(
    lambda mesh: mesh.pipeline > 1, "{name} {value} of a pipeline of one stage", "give pipeline, or leave {name} out"
)
INTERLEAVED = (
    Need(
        lambda mesh: mesh.pipeline > 1,
        "{value} virtual stages of a pipeline of one stage",
        "give pipeline, or leave virtual_stages out",
    ),
    Need(lambda mesh: mesh.schedule.interleaves, "{value} virtual stages with schedule {of.schedule}", "give schedule 1f1b"),
    Need(
        lambda mesh: mesh.micro_batches % mesh.pipeline == 0,
        "{value} virtual stages with {of.micro_batches} micro batches on {of.pipeline} stages: stages are visited in rounds",
        "give a multiple of {of.pipeline} micro batches",
    ),
)
"""Conditions of virtual stages."""


def parts_text(virtual_stages: int) -> str:
    """Describe the parts of the network on each stage; empty for one part."""
    return f" of {virtual_stages} parts each" if virtual_stages > 1 else ""


def expert_text(mesh: Any) -> str:
    """Describe how the experts are divided."""
    wide = f" x {mesh.expert_tensor}" if mesh.expert_tensor > 1 else ""
    uneven = f" at {mesh.expert_imbalance:g} times the mean" if mesh.expert_imbalance > 1 else ""
    return f"expert {mesh.expert}{wide}{uneven}"


def recompute_text(mesh: Any) -> str:
    """Describe the recomputation of the backward pass."""
    parts = "" if mesh.recompute.whole_blocks else f" ({mesh.recompute})"
    blocks = f" in {mesh.recompute_layers} blocks a stage" if mesh.recompute_layers else ""
    return f"recomputing{parts}{blocks}"


def check_groups(mesh: Any) -> None:
    """Raise UserError if shards leave groups of one rank, or only one group."""
    if mesh.sharding.weights:
        check_shares(mesh.shard_devices, mesh.replica_count // mesh.shard_devices)


SHARD_GROUPS = (
    Need(
        lambda mesh: mesh.sharding.shares_out,
        "shard_devices {value} with sharding {of.sharding}, which shares nothing out",
        "give sharding zero3",
    ),
    Need(
        lambda mesh: mesh.replica_count % mesh.shard_devices == 0,
        "groups of {value} devices do not divide {of.replica_count} replicas",
        "give a divisor of {of.replica_count}",
    ),
    check_groups,
)
"""Conditions of groups of devices that share one copy."""


def check_gathered(strategy: Any) -> None:
    """Raise UserError if weights cannot be gathered in the strategy's bits."""
    if bits := strategy.parallelism.gather_bits:
        strategy.parallelism.real_sharding.check_gathered(strategy.precision, bits)
    named = strategy.parallelism.gather_format
    if named != GATHER_FORMATS[0] and not rounds_weights(strategy.precision, bits):
        raise UserError(
            f"gather_format {named} with {strategy.precision}, whose recipe quantises the weights", "leave gather_format out"
        )


def check_exchanged(strategy: Any) -> None:
    """Raise UserError for a gradient exchange that does not go with the sharding."""
    mesh, exchange = strategy.parallelism, strategy.gradient_exchange
    if exchange.is_plain:
        return
    if mesh.sharding is DISTRIBUTED or mesh.gradient_bits or not mesh.whole:
        named = exchange.compression if exchange.compression.compresses else None
        what = named or f"exchange {exchange.exchange.name!r}"
        raise UserError(
            f"{what} does not go with a distributed optimizer: Megatron-Core adds gradients up by the engine's collectives",
            "leave it out, or share out with zero2 or zero3 by data alone",
        )
    if mesh.sharding.weights and strategy.sync_every == 1:
        check_to_owners(exchange, not mesh.to_owners, mesh.sharers)


GATHER_CHOICE = choice(
    0,
    Bits(GATHER_BITS),
    "bits of a weight that is gathered: {legal} (default {default}: as the sharding has it)",
    title="weights gathered in {value} bits",
    listed_by_name=True,
    metavar="N",
    example="8",
    needs=(SHARES_OUT,),
    train=Trained("gather_bits {value} with sharding zero1", runs=lambda mesh: mesh.sharding is not ZERO1, option=True),
    plan=Searched("gather_bits", single=True, help="{help}"),
    source="ZeRO++: Wang et al. 2023, arXiv:2306.10209; TransformerEngine, fp8_param_gather",
    affects=TRAFFIC,
    emit=EmitRule("gather_bits", "the width of gathered weights is not written here", by_scripts=lambda mesh: True),
    synonyms=tool_names.GATHER_BITS,
)
"""Choice of a width on the wire, a field of ``Parallelism``."""

GATHER_FORMATS = ("int8", "fp8")
GATHER_FORMAT_CHOICE = choice(
    GATHER_FORMATS[0],
    Name("format of gathered weights", GATHER_FORMATS),
    "format of weights that are gathered in 8 bits, with a scale a block: {legal} (default {default})",
    title="as {value}",
    metavar="F",
    example="fp8",
    needs=(
        Need(
            lambda mesh: mesh.sharding.weights and mesh.gather_bits == 8,
            "gather_format {value} without weights that are rounded to 8 bits",
            "give sharding zero3 and gather_bits 8",
        ),
    ),
    train=RUNS,
    plan=Searched(single=True, help="{help}"),
    source="Micikevicius et al. 2022, arXiv:2209.05433; ZeRO++: Wang et al. 2023, arXiv:2306.10209",
    affects=("numerics",),
    emit=EmitRule("gather_format", "the format of gathered weights is not written here", by_scripts=lambda mesh: True),
)
"""Choice of the format of gathered weights, a field of ``Parallelism``."""

GRADIENT_CHOICE = choice(
    0,
    Bits(GRADIENT_BITS),
    "bits of a gradient on its way to its owner: {legal} (default {default}: of the precision, or 32 with zero1)",
    title="gradients reduced in {value} bits",
    listed_by_name=True,
    metavar="N",
    example="16",
    needs=(SHARES_OUT,),
    plan=Searched("gradient_bits", single=True, help="{help}"),
    train=Trained(
        "gradient_bits {value} with sharding {of.sharding}",
        "leave gradient_bits out, train with compression bf16, or with FSDP2's reduce_dtype in your own script",
        runs=lambda mesh: mesh.gradient_bits == 32 and mesh.sharding.weights,
        option=True,
    ),
    source="Megatron-Core, distributed optimizer",
    affects=TRAFFIC,
    emit=EmitRule("gradient_bits", "the width of dense gradients on the wire is not written here"),
    synonyms=tool_names.GRADIENT_BITS,
)
"""Choice of a width on the wire, a field of ``Parallelism``."""
