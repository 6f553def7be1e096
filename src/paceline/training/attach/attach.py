"""Attachment of a gradient exchange to a stock DistributedDataParallel model, as its communication hook."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Unpack, overload

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.strategy import BUCKET_BYTES, FIRST_BUCKET_BYTES, GradientExchange, Strategy
from paceline.training.attach.attach_arguments import Arguments
from paceline.training.attach.attach_keywords import AttachKeywords
from paceline.training.attach.attach_options import AttachOptions, check_runs
from paceline.training.attach.attach_sharded import attach_sharded
from paceline.training.attach.attachable import check_model, ddp_of, refuse_sparse_gradients
from paceline.training.attach.consistency import agree
from paceline.training.attach.hooks.ddp import Hook, paceline_hook
from paceline.training.attach.hooks.momentum import MomentumHook
from paceline.training.attach.hooks.powersgd import PowerSGD
from paceline.training.attach.hooks.sharded import ShardedHook
from paceline.training.attach.reducer import exchanged
from paceline.training.attach.shards.fsdp_units import is_sharded
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec

_log = logging.getLogger("paceline")


@overload
def attach(
    model: DistributedDataParallel,
    compression: str | GradientExchange = "terngrad",
    options: AttachOptions | None = None,
    **keywords: Unpack[AttachKeywords],
) -> Hook | PowerSGD: ...


@overload
def attach(
    model: nn.Module,
    compression: str | GradientExchange = "terngrad",
    options: AttachOptions | None = None,
    **keywords: Unpack[AttachKeywords],
) -> Hook | PowerSGD | ShardedHook: ...


def attach(
    model: nn.Module,
    compression: str | GradientExchange = "terngrad",
    options: AttachOptions | None = None,
    **keywords: Unpack[AttachKeywords],
) -> Hook | PowerSGD | ShardedHook:
    """Compress the gradients of a DDP or FSDP2 model from its next backward pass on. Nothing else in the script changes.

    A model that ``fully_shard`` has sharded exchanges each unit with its owners: ``sharded`` and ``ring`` are reduce-scatters
    over all ranks, ``hierarchical`` is dense inside a node. On a mesh of two dimensions (HSDP) FSDP2's own reduce-scatter
    runs inside a group of shards, and the exchange between the replicas. ``auto`` and ``powersgd`` need DDP.

    A step in which a gradient of any rank is NaN, infinite or above 2^100 (powersgd: 2^40) is exchanged dense and leaves the
    residuals unchanged. If a group of gradients has been sent compressed before, every mean of the step becomes NaN, on every
    rank: a ``GradScaler``, ``LARS`` and ``LAMB`` then skip the whole step. The same is true for the units of a sharded model,
    over all ranks of its mesh. Residuals add up, so a mean may be too large for fp16 though no gradient is. It is clipped, and
    the rest stays in the residuals; with ``grad_scaler``, DDP makes the step NaN instead. Codecs compute in fp32. Parameters
    that the script told DDP to ignore or to average apart are not exchanged.

    Args:
        model: in ``DistributedDataParallel``, compiled or not, or sharded by ``fully_shard``.
        compression: a ``GradientExchange``, or the name of a compression (``paceline.strategy.COMPRESSIONS``). ``auto`` times
            some steps and takes the fastest of dense and its candidates, over a named exchange (``int8:ring``) or over their
            default one, a ring and between nodes. It keeps a compression only if measured steps were faster with it. The
            choice takes 9 steps, and 9 more for each of at most two candidates.
        options: seed, checks, time limit and measurements.
        keywords: short forms of the two values. Fields of ``AttachOptions``, which replace those of ``options``; with the name
            of a compression also fields of ``GradientExchange``, options of the compression such as ``density``, and two
            parts of a ``DenseRule``: ``min_elements`` (smaller tensors stay dense) and ``dense`` (patterns of further tensor
            names to keep dense, such as ``*.embedding.*``). ``ranks_per_node`` defaults to torchrun's value.

    Returns:
        The hook: ``print`` it to see the dense tensors; keep its ``state_dict()`` of every rank in your checkpoints.

    Raises:
        UserError: an unknown name or option, an illegal value, an exchange that cannot carry the compression, ranks that were
            given different settings or models, a model that is neither in DDP nor sharded, is a part of a sharded one, has
            a hook or DDP's ``mixed_precision`` already, has parameters that were frozen or unfrozen since DDP wrapped it, or
            has sparse gradients or complex parameters. A sparse gradient of a function shows in the first ``backward()``, which
            then raises it. So does a ``backward()`` with a trained tensor that was frozen or not in the model here.

    ``backward()`` later raises ``paceline.LostRank``, ``paceline.ReplicasDiverged`` or ``paceline.PayloadError``.
    """
    arguments = Arguments(compression, options, keywords)
    if is_sharded(model):
        return attach_sharded(model, arguments)
    model = ddp_of(model)
    request, tensors = _on_every_rank(model, arguments)
    first = request.exchanges[0]
    hook: Hook | PowerSGD
    if first.description.low_rank:
        hook = PowerSGD(model, first, tensors, request.options)
    else:
        hook = Hook(model, first, tensors, request.options, request.exchanges if arguments.compression == "auto" else ())
    if first.compression.compresses and len(hook.dense) == len(hook.tensors) and dist.get_rank(model.process_group) == 0:
        reasons = ", ".join(dict.fromkeys(hook.dense.values()))
        _log.warning("%s compresses nothing here; all tensors stay dense: %s", first.compression, reasons)
    refuse_sparse_gradients(model, tensors)
    model.register_comm_hook(hook, paceline_hook)
    return hook


def attach_momentum(
    model: DistributedDataParallel, block: int, options: AttachOptions
) -> tuple[MomentumHook, Mapping[int, TensorSpec]]:
    """Attach the hook of ``OneBitAdam`` and ``OneBitLamb``.

    Args:
        block: elements that share a scale.

    Returns:
        The hook, and the tensors that it exchanges.

    Raises:
        UserError: as ``attach``.
    """
    if is_sharded(model):
        raise UserError(
            "1-bit optimizers exchange whole momenta, and fully_shard (FSDP2) has divided this model",
            "wrap it in DistributedDataParallel, or attach another compression",
        )
    model = ddp_of(model, or_sharded=False)
    arguments = Arguments("sign", options, {"exchange": "sharded", "block": block})
    request, tensors = _on_every_rank(model, arguments)
    hook = MomentumHook(model, request.exchanges[0], tensors, request.options)
    model.register_comm_hook(hook, paceline_hook)
    return hook, tensors


class _Request(NamedTuple):
    """Exchange of all ranks with its options. For ``auto``, it has the exchanges to try; the first one runs until the
    decision."""

    exchanges: Sequence[GradientExchange]
    options: AttachOptions


def _on_every_rank(model: DistributedDataParallel, arguments: Arguments) -> tuple[_Request, Mapping[int, TensorSpec]]:
    """Return the request and the tensors to exchange, after a comparison of all ranks' settings.

    Raises:
        UserError: on every rank. If one rank refused alone, the others would wait for it.
    """
    illegal: UserError | None = None
    request, tensors = _Request((), AttachOptions()), dict[int, TensorSpec]()
    try:
        request = _Request(arguments.exchanges(dist.get_world_size(model.process_group)), arguments.options())
        if request.options.gather_bits:
            raise UserError("DistributedDataParallel gathers no weights", "leave gather_bits out: it is of FSDP2")
        check_model(model)
        device = next(model.parameters()).device.type
        for wanted in request.exchanges:
            check_runs(wanted, device)
        tensors = exchanged(model)
    except UserError as error:
        illegal = error
    every = [exchange.to_json() for exchange in request.exchanges]  # with the ranks of a node that torchrun has set
    shown = {**arguments.compared(), "gradient exchange": every[0] if len(every) == 1 else every}
    shown["what is illegal"] = illegal and str(illegal)
    agree(model.process_group, shown, list(tensors.values()), request.options.timeout_s)
    if illegal is not None:
        raise illegal
    return request, tensors


def wrap(model: nn.Module, strategy: Strategy, process_group: dist.ProcessGroup | None = None) -> DistributedDataParallel:
    """Wrap a model in stock DDP with the strategy's buckets, over all ranks or those of a group."""
    first, rest = strategy.first_bucket_bytes, strategy.bucket_bytes
    if (first, rest) == (FIRST_BUCKET_BYTES, BUCKET_BYTES):
        return DistributedDataParallel(model, process_group=process_group)
    if first != rest:
        raise UserError(f"buckets of {first} and then {rest} bytes", "DDP takes its own two sizes or one size for all buckets")
    return DistributedDataParallel(model, process_group=process_group, bucket_cap_mb=rest / 2**20)
