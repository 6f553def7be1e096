"""A way for gradients to travel: compression, exchange and their settings, and what it takes to send them so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from paceline import codecs
from paceline.errors import UserError, unknown
from paceline.strategy import COMPRESSIONS, EXCHANGES, ONE_WAY, Compression
from paceline.training.collectives import Wire, own_group
from paceline.training.consistency import EnergyGuard
from paceline.training.error_feedback import Feedback
from paceline.training.exchange_group import ExchangeSetup
from paceline.training.gradient_sample import Sample

_CODECS = {"dense": "fp32", "terngrad": "ternary"}  # the others are called as their codec is
_NOT_THE_CODECS = {"ratio", "momentum"}  # options of a compression that say nothing about bytes


@dataclass(frozen=True, kw_only=True)
class Way:
    """A compression with its options over an exchange.

    Attributes:
        clip: of TernGrad, in standard deviations.
        ranks_per_node: of ``hierarchical``; ranks are node-major.
    """

    compression: Compression
    exchange: str
    clip: float | None = None
    ranks_per_node: int = 1
    compress_pull: bool = True

    def settings(self) -> dict[str, Any]:
        """Everything as plain values, for a checkpoint; ``of`` is the inverse."""
        c = self.compression
        rule = c.rule and {"min_elements": c.rule.min_elements, "last_layer": c.rule.last_layer, "names": list(c.rule.names)}
        return {
            "compression": c.name,
            "options": dict(c.option_values),
            "dense_rule": rule,
            "exchange": self.exchange,
            "clip": self.clip,
            "ranks_per_node": self.ranks_per_node if self.exchange == "hierarchical" else 1,  # nothing to the others
            "compress_pull": self.compress_pull,
        }

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Way:
        """The way that ``settings`` describe. Raises UserError for what is missing or illegal."""
        try:
            rule = dict(settings["dense_rule"] or {})
            rule |= {"names": tuple(rule["names"])} if rule else {}
            names = ("compression", "exchange", "options", "clip", "ranks_per_node")
            compression, exchange, options, clip, per_node = (settings[name] for name in names)
            return choose(compression, exchange, dict(options), clip, per_node, rule, settings["compress_pull"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the state's way is damaged: {error}", "give what state_dict() returned") from error


def choose(
    compression: str,
    exchange: str,
    options: dict[str, Any],
    clip: float | None,
    ranks_per_node: int,
    rule: dict[str, Any],
    compress_pull: bool = True,
) -> Way:
    """A way from what a user gives. Raises UserError for names and options that do not exist or do not go together."""
    if compression not in COMPRESSIONS:
        raise unknown("compression", compression, [*COMPRESSIONS, "auto"])
    described = COMPRESSIONS[compression].configured(options)
    exchange = exchange or described.exchanges[0]
    if exchange not in EXCHANGES:
        raise unknown("exchange", exchange, EXCHANGES)
    if exchange not in described.exchanges:
        raise UserError(f"exchange {exchange!r} cannot carry {compression}", f"legal: {', '.join(described.exchanges)}")
    if not compress_pull and exchange not in ONE_WAY:
        raise UserError(f"compress_pull=False over {exchange}", f"only for {', '.join(ONE_WAY)}: the others have no pull")
    if described.rule is not None:
        described = replace(described, rule=replace(described.rule, **rule))
    return Way(compression=described, exchange=exchange, clip=clip, ranks_per_node=ranks_per_node, compress_pull=compress_pull)


def make_plan(way: Way, wire: Wire, sample: Sample) -> ExchangeSetup | None:
    """What ``exchange_group`` needs; None for the engine's all-reduce, which works on the bucket in place.

    Raises:
        UserError: nodes of unequal size.
    """
    if way.exchange == "allreduce":
        return None
    c = way.compression
    options: dict[str, Any] = {k: v for k, v in c.option_values.items() if k not in _NOT_THE_CODECS}
    if c.name == "terngrad":
        options["clip"] = way.clip
    codec = codecs.get(_CODECS.get(c.name, c.name), **options)
    inner, outer = (None, wire) if way.exchange != "hierarchical" else own_wires(wire, way.ranks_per_node)
    encoded = inner is None or outer.world_size > 1
    feedback = Feedback(float(c.option_values.get("momentum", 0.0))) if c.error_feedback and encoded else None
    biased = c.lossy and not c.unbiased and not c.error_feedback
    guard = EnergyGuard(f"use {c.name}-scaled, which has a scale a block, or dense=[...]") if biased else None
    exchange = "sharded" if way.exchange == "hierarchical" else way.exchange
    return ExchangeSetup(
        codec=codec,
        exchange=exchange,
        world=wire,
        outer=outer,
        inner=inner,
        feedback=feedback,
        guard=guard,
        sample=sample,
        compress_pull=way.compress_pull,
    )


def own_wires(wire: Wire, ranks_per_node: int) -> tuple[Wire | None, Wire]:
    """The ranks of this node, and the ranks with this rank's place on every node.

    Raises:
        UserError: the ranks do not divide into such nodes.
    """
    n, per_node = wire.world_size, ranks_per_node
    if per_node < 1 or n % per_node:
        raise UserError(f"{n} workers in nodes of {per_node}", "hierarchical needs equal nodes: set ranks_per_node")
    ranks = dist.get_process_group_ranks(wire.group)
    node, place = divmod(wire.rank, per_node)
    groups = ranks[node * per_node : (node + 1) * per_node], ranks[place::per_node]

    def sub(members: list[int]) -> Wire:
        return Wire(own_group(wire.group, members, wire.timeout_s), wire.device, wire.meter, wire.timeout_s)

    return (sub(groups[0]) if per_node > 1 else None), sub(groups[1])
