"""Creation of the reducers of a sharded model's units from a gradient exchange."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch.distributed as dist

from paceline.strategy import GradientExchange
from paceline.strategy.sharded_exchange import check_to_owners
from paceline.training.attach.shards.fsdp_units import Unit
from paceline.training.attach.shards.unit_exchange import OwnerSetup
from paceline.training.attach.shards.unit_reducer import EngineReducer, OwnerReducer, ReplicaReducer, UnitReducer, Workspace
from paceline.training.exchanges.exchange_setup import codec_of, dense_codec, make_setup, own_wires
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.residual_keeping import WorkingCopies
from paceline.training.exchanges.wires.collectives import Wire
from paceline.training.exchanges.wires.meter import Meter
from paceline.training.exchanges.wires.process_groups import own_wire


def make_reducers(
    units: Sequence[Unit], exchange: GradientExchange, dense: Collection[str], meter: Meter, timeout_s: float
) -> dict[Unit, UnitReducer]:
    """Return the reducer of each unit; units of the same ranks share their wires. Every rank calls it.

    Raises:
        UserError: an exchange that does not reduce to owners.
    """
    wires: dict[Any, Any] = {}
    workspace, copies = Workspace(), WorkingCopies()
    reducers: dict[Unit, UnitReducer] = {}
    for unit in units:
        replicate = unit.replicate_group
        check_to_owners(exchange, replicate is not None, unit.owners)
        ranks = tuple(dist.get_process_group_ranks(unit.shard_group))
        others = tuple(dist.get_process_group_ranks(replicate)) if replicate is not None else ()
        if (ranks, others) not in wires:
            wires[ranks, others] = _reach(unit, exchange, meter, timeout_s)
        reducers[unit] = _reducer(unit, exchange, dense, workspace, copies, wires[ranks, others])
    return reducers


def _reach(unit: Unit, exchange: GradientExchange, meter: Meter, timeout_s: float) -> tuple[Wire, Any]:
    """Return the wire of the unit's owners, with the setup of the codec's exchange."""
    device, ranks = unit.device, dist.get_process_group_ranks(unit.shard_group)
    world = own_wire(unit.shard_group, ranks, device, meter, timeout_s)
    if unit.replicate_group is not None:
        others = dist.get_process_group_ranks(unit.replicate_group)
        replicas = own_wire(unit.replicate_group, others, device, meter, timeout_s, world.soundness)
        return world, (make_setup(exchange, replicas, Sample()), replicas)
    if exchange.exchange.by_engine:
        return world, None
    inner, outer = own_wires(world, exchange.ranks_per_node) if exchange.exchange.uses_nodes else (None, world)
    momentum = float(exchange.description.option_values.get("momentum", 0.0))
    return world, OwnerSetup(
        codec=codec_of(exchange),
        exchange=exchange.exchange.carrier(coded=True),
        world=world,
        outer=outer,
        inner=inner,
        momentum=momentum,
        dense=dense_codec(exchange),
    )


def _reducer(
    unit: Unit,
    exchange: GradientExchange,
    dense: Collection[str],
    workspace: Workspace,
    copies: WorkingCopies,
    reach: tuple[Wire, Any],
) -> UnitReducer:
    world, setup = reach
    described = exchange.description
    if unit.replicate_group is not None:
        of_unit, replicas = setup
        return ReplicaReducer(world, of_unit, replicas, unit, exchange, dense)
    if setup is None:
        return EngineReducer(world, world, int(described.format.element_bits))
    return OwnerReducer(setup, exchange, unit, dense, workspace, copies)
