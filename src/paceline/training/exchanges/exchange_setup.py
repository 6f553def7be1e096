"""Creation of the setup of an exchange from its description: codec, wires, error feedback."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch.distributed as dist

from paceline import codecs
from paceline.codecs import Codec
from paceline.errors import UserError
from paceline.strategy import GradientExchange
from paceline.strategy.codec_place import IN_CARD
from paceline.strategy.compression.compression import density_at
from paceline.training.exchanges.exchange_group import ExchangeSetup
from paceline.training.exchanges.gradients.energy_guard import EnergyGuard
from paceline.training.exchanges.gradients.error_feedback import Feedback
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.residual_keeping import keeping_of
from paceline.training.exchanges.streams.card_stream import CardWire
from paceline.training.exchanges.wires.collectives import Wire
from paceline.training.exchanges.wires.process_groups import own_wire
from paceline.training.exchanges.wires.switch_wire import SwitchWire

_NOT_THE_CODECS = {"ratio", "momentum", "warmup_steps"}  # options of a compression that say nothing about bytes


def make_setup(
    exchange: GradientExchange, wire: Wire, sample: Sample, nodes: tuple[Wire | None, Wire] | None = None
) -> ExchangeSetup | None:
    """Return the setup of ``exchange_group``; None for the engine's all-reduce, which works on the bucket in place.

    Args:
        nodes: what ``own_wires`` has returned. Without it all ranks must call this where nodes matter.

    Raises:
        UserError: nodes of unequal size.
    """
    if exchange.exchange.by_engine:
        return None
    compression = exchange.description
    card = _card_wire(wire) if exchange.codec_at is IN_CARD else None
    inner, outer = None, wire
    if exchange.exchange.uses_nodes:
        inner, outer = nodes or own_wires(wire, exchange.ranks_per_node)
    if exchange.exchange.uses_switch:
        outer = SwitchWire(wire)
    encoded = inner is None or outer.world_size > 1
    momentum = float(compression.option_values.get("momentum", 0.0))
    feedback = Feedback(momentum, keeping_of(exchange)) if compression.error_feedback and encoded and card is None else None
    biased = compression.lossy and not compression.unbiased and not compression.error_feedback
    guard = EnergyGuard(f"use {compression.name}-scaled, which has a scale a block, or dense=[...]") if biased else None
    return ExchangeSetup(
        codec=codec_of(exchange),
        exchange=exchange.exchange.carrier(coded=True),
        world=wire,
        outer=outer,
        inner=inner,
        feedback=feedback,
        guard=guard,
        sample=sample,
        compress_pull=exchange.compress_pull,
        dense=dense_codec(exchange),
        card=card,
    )


def dense_codec(exchange: GradientExchange) -> Codec:
    """Return the codec of numbers that the codec of a gradient exchange does not encode."""
    return codecs.get("bf16" if exchange.dense_bits == 16 else "fp32")


def codec_of(exchange: GradientExchange) -> Codec:
    """Return the codec of a gradient exchange, with its options."""
    compression = exchange.description
    options: dict[str, Any] = {k: v for k, v in compression.option_values.items() if k not in _NOT_THE_CODECS}
    if compression.clips:
        options["clip"] = exchange.clip
    return codecs.get(compression.codec_name, **options)


def codec_at(exchange: GradientExchange, codec: Codec, step: int) -> Codec:
    """Return the codec of a step, which is denser during a warm-up of the sparsity."""
    values = exchange.description.option_values
    warmup_steps = int(values.get("warmup_steps", 0))
    if step >= warmup_steps:
        return codec
    density = density_at(step, values["density"], warmup_steps)
    return replace(codec, density=density)  # type: ignore[call-arg]  # the codec is topk, which alone warms up


def setup_at(setup: ExchangeSetup, exchange: GradientExchange, step: int) -> ExchangeSetup:
    """Return the setup of a step."""
    codec = codec_at(exchange, setup.codec, step)
    return setup if codec is setup.codec else replace(setup, codec=codec)


def _card_wire(wire: Wire) -> CardWire:
    """Return a wire over the same ranks whose sockets are marked for the cards."""
    ranks = dist.get_process_group_ranks(wire.group)
    marked = own_wire(wire.group, ranks, wire.device, wire.meter, wire.timeout_s, wire.soundness, marked=True)
    return CardWire(marked, wire)


def own_wires(wire: Wire, ranks_per_node: int) -> tuple[Wire | None, Wire]:
    """Return the wire of this node's ranks, and that of the ranks with this rank's place on every node.

    Raises:
        UserError: the ranks do not divide into such nodes.
    """
    workers = wire.world_size
    if ranks_per_node < 1 or workers % ranks_per_node:
        raise UserError(f"{workers} workers in nodes of {ranks_per_node}", "hierarchical needs equal nodes: set ranks_per_node")
    ranks = dist.get_process_group_ranks(wire.group)
    node, place = divmod(wire.rank, ranks_per_node)

    def part(members: list[int]) -> Wire:
        return own_wire(wire.group, members, wire.device, wire.meter, wire.timeout_s, wire.soundness)

    first = node * ranks_per_node
    inner = part(ranks[first : first + ranks_per_node]) if ranks_per_node > 1 else None
    return inner, part(ranks[place::ranks_per_node])
