"""Attachment to a model that ``fully_shard`` (FSDP2) has sharded, over one dimension of a mesh or over two (HSDP)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from paceline.errors import UserError
from paceline.strategy import GradientExchange
from paceline.strategy.sharded_exchange import check_to_owners, usual_exchange
from paceline.strategy.sharding import check_no_wider
from paceline.training.attach.attach_arguments import Arguments
from paceline.training.attach.attach_options import AttachOptions, check_runs
from paceline.training.attach.attachable import check_embeddings
from paceline.training.attach.consistency import agree
from paceline.training.attach.hooks.sharded import ShardedHook, UnitAllGather, UnitReduceScatter
from paceline.training.attach.shards.fsdp_units import Unit, check_root, units_of

_log = logging.getLogger("paceline")


def attach_sharded(model: nn.Module, arguments: Arguments) -> ShardedHook:
    """Replace the exchanges of a sharded model's units. See ``attach`` for the arguments.

    Raises:
        UserError: on every rank of the mesh.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    units = units_of(model)
    trained = [unit for unit in units if unit.tensors]
    illegal: UserError | None = None
    exchange, options = GradientExchange(), AttachOptions()
    try:
        check_root(model)
        _check_communication(units)
        exchange, options = exchange_to_run(trained, arguments), arguments.options()
        _check_model(model)
        check_gather_bits(units, options.gather_bits)
    except UserError as error:
        illegal = error
    shown = arguments.compared() | {"gradient exchange": exchange.to_json(), "what is illegal": illegal and str(illegal)}
    del shown["compression"]
    tensors = [t.whole for unit in trained for t in unit.tensors]
    for group in dict.fromkeys([trained[0].shard_group, trained[0].replicate_group]):
        if group is not None:
            agree(group, shown, tensors, options.timeout_s)
    if illegal is not None:
        raise illegal
    _tell_of_unsent(model, units)
    return ShardedHook(model, units, exchange, options)


def exchange_to_run(units: Sequence[Unit], arguments: Arguments) -> GradientExchange:
    """Return the checked exchange of a sharded model. If the caller does not choose it, it is the usual one of sharded
    models."""
    replicated = any(unit.replicate_group is not None for unit in units)
    if arguments.options().noise_scale:
        raise UserError("noise_scale is measured with DistributedDataParallel only", "leave noise_scale out")
    exchange = arguments.sharded_exchange(units[0].owners)
    if not arguments.names_exchange:
        exchange = replace(exchange, exchange=usual_exchange(exchange.compression, not replicated))
    for unit in units:
        check_to_owners(exchange, unit.replicate_group is not None, unit.owners)
    check_runs(exchange, units[0].device.type)
    return exchange


def _check_communication(units: list[Unit]) -> None:
    """Raise UserError if FSDP2's exchanges have been replaced already."""
    for name in filter(None, (unit.communication for unit in units)):
        own = name in (UnitReduceScatter.__name__, UnitAllGather.__name__)
        raise UserError(
            f"this model has a communication hook already{'' if own else f': {name}'}",
            "attach once, right after fully_shard, instead of set_custom_reduce_scatter and set_custom_all_gather",
        )


def check_gather_bits(units: Sequence[Unit], bits: int) -> None:
    """Raise UserError for more bits than FSDP2 gathers."""
    narrowest = min((unit.gathered for unit in units), key=lambda dtype: dtype.itemsize)
    instead = "leave gather_bits out, or change the MixedPrecisionPolicy"
    check_no_wider(bits, 8 * narrowest.itemsize, str(narrowest).removeprefix("torch."), instead)


def _tell_of_unsent(model: nn.Module, units: Sequence[Unit]) -> None:
    """Warn of trained tensors that ``fully_shard`` was told to ignore, because the script may exchange them itself."""
    known = {name for unit in units for name in (*unit.frozen, *(t.name for t in unit.tensors))}
    unsent = [name for name, p in model.named_parameters() if p.requires_grad and name not in known]
    if unsent and dist.get_rank() == 0:
        _log.warning(
            "%s: trained, but in no unit of fully_shard. It is not exchanged; leave it out of ignored_params, or average its "
            "gradients in the script",
            ", ".join(unsent),
        )


def _check_model(model: nn.Module) -> None:
    check_embeddings(model)
    wide = {
        n: str(p.dtype).removeprefix("torch.")
        for n, p in model.named_parameters()
        if p.requires_grad and (p.is_complex() or p.dtype == torch.float64)
    }
    if wide:
        types = " and ".join(sorted(set(wide.values())))
        raise UserError(f"{', '.join(wide)}: {types} gradients cannot be exchanged here", "train in fp32, bf16 or fp16")
