"""Attachment of local steps between exchanges to a plain model, for links that are too slow for gradients."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Unpack, overload

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import MOST_LISTED, UserError, unknown
from paceline.strategy import COMPRESSIONS, LOCAL_RECIPES, GradientExchange, LocalSteps
from paceline.strategy.worker_counts import check_between_workers
from paceline.training.attach.attach_arguments import EXCHANGE, OF_COMPRESSIONS, Arguments
from paceline.training.attach.attach_keywords import LocalKeywords
from paceline.training.attach.attach_options import AttachOptions, check_runs
from paceline.training.attach.consistency import agree
from paceline.training.attach.local.local_steps import LocalSync
from paceline.training.attach.local.worker_ranks import Seat, peers_of, reshard, seat_of
from paceline.training.attach.peers.peer_sync import PeerSync
from paceline.training.attach.peers.peers import Peers, check_local
from paceline.training.attach.peers.site import check_site
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec, numbered

_LOCAL = [f.name for f in fields(LocalSteps)]
_attached: weakref.WeakKeyDictionary[nn.Module, weakref.ref[LocalSync | PeerSync]] = weakref.WeakKeyDictionary()
"""The exchange of each model, while somebody holds it."""


@overload
def attach_local(
    model: nn.Module,
    compression: str | GradientExchange = "dense",
    options: AttachOptions | None = None,
    *,
    local: LocalSteps | None = None,
    process_group: dist.ProcessGroup | None = None,
    peers: None = None,
    **keywords: Unpack[LocalKeywords],
) -> LocalSync: ...


@overload
def attach_local(
    model: nn.Module,
    compression: str | GradientExchange = "dense",
    options: AttachOptions | None = None,
    *,
    local: LocalSteps | None = None,
    process_group: dist.ProcessGroup | None = None,
    peers: Peers,
    **keywords: Unpack[LocalKeywords],
) -> PeerSync: ...


def attach_local(
    model: nn.Module,
    compression: str | GradientExchange = "dense",
    options: AttachOptions | None = None,
    *,
    local: LocalSteps | None = None,
    process_group: dist.ProcessGroup | None = None,
    peers: Peers | None = None,
    **keywords: Unpack[LocalKeywords],
) -> LocalSync | PeerSync:
    """Train every worker alone, and average the changes of the weights every ``sync_every`` steps (DiLoCo, Local SGD).

    The script keeps its model as it is, without DistributedDataParallel, and calls ``step()`` after its optimizer's step::

        sync = paceline.attach_local(model, "int8", sync_every=32)
        for x, y in data:
            loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            sync.step()
        sync.finish()

    A worker may be several devices: the model is then sharded by ``fully_shard`` over the ranks of its worker, with or without
    copies (HSDP), or in DistributedDataParallel over them. Each rank exchanges its part of the network with the same part of
    the other workers.

    All ranks begin with the weights and buffers of the first one. If a pseudo-gradient of any rank is NaN or infinite, all
    ranks return to the shared weights of the last exchange and keep their residuals. A finite one above 2^100 is sent dense.

    Args:
        compression: a ``GradientExchange``, the name of a compression, or the name of a recipe with its outer step:
            ``diloco``, ``sparseloco``, ``muloco`` (``LOCAL_RECIPES``). Keywords replace choices of a recipe.
        options: seed, checks and time limit; ``check_every`` counts exchanges.
        local: interval of exchanges, and the outer step. Rate 1 without momentum is Local SGD: the mean of the weights.
        process_group: all ranks of all workers; None: all ranks. With ``peers``: the ranks of this site, which are one worker.
        peers: other sites, each a job of its own, that come and go. The exchange is then among those that are there.
        keywords: fields of ``LocalSteps``, such as ``sync_every``, and of ``AttachOptions``; they replace those of the values.
            With a name, also choices of the exchange and options of the compression as in ``attach``, such as ``exchange`` and
            ``density``.

    Returns:
        The exchange of the model; a ``PeerSync`` with peers. Keep its ``state_dict()`` of every rank in your checkpoints.

    Raises:
        UserError: an unknown name, an illegal value, a compression that local steps cannot take, a model that has local steps
            already, that is sharded over all ranks or only in part, or with complex weights; ranks that were given different
            settings or models.
    """
    group = process_group if process_group is not None else dist.group.WORLD
    if group is None:
        raise UserError("there are no workers yet", "call torch.distributed.init_process_group first")
    if dist.get_rank(group) < 0:
        raise UserError("this rank is not in the process group", "call attach_local on the ranks of process_group alone")
    illegal: UserError | None = None
    seat: Seat | None = None
    steps, run, wanted, tensors = LocalSteps(), AttachOptions(), GradientExchange(), dict[str, TensorSpec]()
    try:
        recipe = LOCAL_RECIPES.get(compression) if isinstance(compression, str) else None
        local = local if recipe is None or local is not None else recipe.local
        steps = _local_steps(local, {name: value for name, value in keywords.items() if name in _LOCAL})
        of_exchange = {name: value for name, value in keywords.items() if name in EXCHANGE or name in OF_COMPRESSIONS}
        changes = {name: value for name, value in keywords.items() if name not in _LOCAL and name not in of_exchange}
        run = AttachOptions.everywhere("attach_local", options, changes, [*_LOCAL, *EXCHANGE, *OF_COMPRESSIONS])
        wanted = _exchange(compression, of_exchange, dist.get_world_size(group))
        if peers is None:
            _check_workers(steps)
        else:
            model = _inside(model)  # a site is one worker, which may hold its replicas by DistributedDataParallel
            check_local(steps, wanted)
        steps.check_compression(wanted.description)
        steps.check_residuals(wanted.description)
        tensors = _trained(model)
        _check_first(model)
        check_runs(wanted, next(model.parameters()).device.type)
        steps.split(list(tensors.values()))
        seat = seat_of(model, [(name, p) for name, p in _inside(model).named_parameters() if name in tensors])
        _check_worker(steps, wanted, seat)
        if peers is not None:
            check_site(seat, dist.get_process_group_ranks(group))
    except UserError as error:
        illegal = error
    given: dict[str, Any] = {"arguments": "legal" if illegal is None else f"illegal: {illegal}"}  # the first that is compared
    given |= {"exchange": wanted.to_json(), "local steps": asdict(steps), **asdict(run)}
    agree(group, given, list(tensors.values()), run.timeout_s, "attach_local")
    if illegal is not None:
        raise illegal
    assert seat is not None, "legal arguments"
    inside = _inside(model)
    sync: LocalSync | PeerSync
    if peers is None:
        sync = LocalSync(inside, wanted, steps, tensors, run, group, seat, peers_of(seat, group))
    else:
        sync = PeerSync(inside, wanted, steps, tensors, run, group, seat, peers)
    _attached[_inner(inside)] = weakref.ref(sync)
    return sync


def _local_steps(local: LocalSteps | None, changes: Mapping[str, Any]) -> LocalSteps:
    """Return the local steps with some fields changed. Raises UserError if the interval between exchanges is unknown."""
    if local is None and "sync_every" not in changes:
        raise UserError("attach_local without sync_every", "give sync_every, the steps from one exchange to the next")
    return replace(local or LocalSteps(), **changes)


def _check_workers(steps: LocalSteps) -> None:
    """Raise UserError for choices of peers: the ranks of one process group are all present at an exchange."""
    if steps.round_deadline_s is not None:
        raise UserError(
            f"round_deadline_s={steps.round_deadline_s:g} without peers: the ranks of a process group wait for each other",
            "leave it out, or give peers",
        )


def _exchange(given: str | GradientExchange, keywords: Mapping[str, Any], workers: int) -> GradientExchange:
    """Return the exchange of a value, or of a name and keywords, with the ranks of a node that torchrun has set."""
    if given == "auto":
        raise UserError("auto compares steps with an exchange in each of them", "name a compression")
    if isinstance(given, GradientExchange) and not keywords:
        exchange = given
    else:
        if isinstance(given, str) and given in LOCAL_RECIPES:
            recipe = LOCAL_RECIPES[given].exchange
            given, keywords = recipe.compression.name, {**dict(recipe.options), **keywords}
        elif isinstance(given, str) and given not in COMPRESSIONS:
            raise unknown("compression or recipe", given, [*COMPRESSIONS, *LOCAL_RECIPES], few=MOST_LISTED)
        exchange = Arguments(given, None, keywords).named_exchange()
    if exchange.exchange.uses_nodes and exchange.ranks_per_node == 1 and not keywords.get("ranks_per_node"):
        return replace(exchange, ranks_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", workers)))
    return exchange


def _inside(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel."""
    inner: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inner


def _check_worker(steps: LocalSteps, exchange: GradientExchange, seat: Seat) -> None:
    """Raise UserError for a worker of another size than given, and for an exchange that only single devices have."""
    devices = seat.place.devices
    if steps.worker_devices not in (0, devices):
        raise UserError(
            f"worker_devices {steps.worker_devices}, and the model is on {devices} devices of a worker",
            "leave it out, or shard the model over as many",
        )
    check_between_workers(exchange, devices, f"sync_every {steps.sync_every}")


def _inner(model: nn.Module) -> nn.Module:
    inner: nn.Module = getattr(model, "_orig_mod", model)  # of torch.compile
    return inner


def _check_first(model: nn.Module) -> None:
    """Raise UserError for a model that another ``LocalSync`` exchanges."""
    before = _attached.get(_inner(_inside(model)))
    if before is not None and before() is not None:
        raise UserError("this model has local steps already", "call attach_local once, and keep what it returned")


def _trained(model: nn.Module) -> dict[str, TensorSpec]:
    """Return trained tensors in ``named_parameters()`` order, by name. Raises UserError if it cannot be exchanged."""
    if isinstance(model, DistributedDataParallel) and model.process_group.size() == dist.get_world_size():
        raise UserError(
            "attach_local takes the model itself, not one in DistributedDataParallel over all ranks, which is one worker",
            "give it model.module, and train with that, or give DistributedDataParallel the ranks of one worker",
        )
    if not isinstance(model, nn.Module):
        raise UserError(f"attach_local takes a torch.nn.Module, got {type(model).__name__}", "give the model itself")
    reshard(model)
    named = [(name, p) for name, p in _inside(model).named_parameters() if p.requires_grad]
    wrong = [name for name, p in named if p.is_complex()]
    if wrong:
        raise UserError(f"{', '.join(wrong)}: complex weights cannot be exchanged here", "train real and imaginary parts")
    if not named:
        raise UserError("no parameter of this model is trained", "set requires_grad before attaching")
    specs = numbered(named)
    return {spec.name: spec for spec in specs.values()}
