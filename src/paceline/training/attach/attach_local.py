"""Attachment of local steps between exchanges to a plain model, for links that are too slow for gradients."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Unpack

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.strategy import LOCAL_RECIPES, GradientExchange, LocalSteps
from paceline.training.attach.attach_keywords import LocalKeywords
from paceline.training.attach.attach_options import AttachOptions, check_runs
from paceline.training.attach.consistency import agree
from paceline.training.attach.local.local_steps import LocalSync
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec, numbered

_LOCAL = [f.name for f in fields(LocalSteps)]
_attached: weakref.WeakKeyDictionary[nn.Module, weakref.ref[LocalSync]] = weakref.WeakKeyDictionary()
"""The exchange of each model, while somebody holds it."""


def attach_local(
    model: nn.Module,
    exchange: str | GradientExchange = "dense",
    options: AttachOptions | None = None,
    *,
    local: LocalSteps | None = None,
    process_group: dist.ProcessGroup | None = None,
    **keywords: Unpack[LocalKeywords],
) -> LocalSync:
    """Train every worker alone, and average the changes of the weights every ``sync_every`` steps (DiLoCo, Local SGD).

    The script keeps its model as it is, without DistributedDataParallel, and calls ``step()`` after its optimizer's step::

        sync = paceline.attach_local(model, "int8", sync_every=32)
        for x, y in data:
            loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            sync.step()
        sync.finish()

    All ranks begin with the weights and buffers of the first one. If a pseudo-gradient of any rank is NaN or infinite, all
    ranks return to the shared weights of the last exchange and keep their residuals. A finite one above 2^100 is sent dense.

    Args:
        exchange: a ``GradientExchange``, the name of a compression with its defaults, or the name of a recipe with its outer
            step: ``diloco``, ``sparseloco`` (``LOCAL_RECIPES``). Keywords replace choices of a recipe.
        options: seed, checks and time limit; ``check_every`` counts exchanges.
        local: interval of exchanges, and the outer step. Rate 1 without momentum is Local SGD: the mean of the weights.
        process_group: the workers; None: all ranks.
        keywords: fields of ``LocalSteps``, such as ``sync_every``, and of ``AttachOptions``; they replace those of the values.

    Returns:
        The exchange of the model. Keep its ``state_dict()`` of every rank in your checkpoints.

    Raises:
        UserError: an unknown name, an illegal value, a compression that local steps cannot take, a model that has local steps
            already, in DistributedDataParallel, with weights that are divided among ranks, or with complex ones; ranks that
            were given different settings or models.
    """
    group = process_group if process_group is not None else dist.group.WORLD
    if group is None:
        raise UserError("there are no workers yet", "call torch.distributed.init_process_group first")
    if dist.get_rank(group) < 0:
        raise UserError("this rank is not in the process group", "call attach_local on the ranks of process_group alone")
    illegal: UserError | None = None
    steps, run, wanted, tensors = LocalSteps(), AttachOptions(), GradientExchange(), dict[str, TensorSpec]()
    try:
        recipe = LOCAL_RECIPES.get(exchange) if isinstance(exchange, str) else None
        exchange = exchange if recipe is None else recipe.exchange
        local = local if recipe is None or local is not None else recipe.local
        steps = _local_steps(local, {name: value for name, value in keywords.items() if name in _LOCAL})
        changes = {name: value for name, value in keywords.items() if name not in _LOCAL}
        run = AttachOptions.everywhere("attach_local", options, changes, _LOCAL)
        wanted = _exchange(exchange, dist.get_world_size(group))
        _check_workers(steps)
        steps.check_compression(wanted.description)
        steps.check_residuals(wanted.description)
        tensors = _trained(model)
        _check_first(model)
        check_runs(wanted, next(model.parameters()).device.type)
        steps.split(list(tensors.values()))
    except UserError as error:
        illegal = error
    given: dict[str, Any] = {"arguments": "legal" if illegal is None else f"illegal: {illegal}"}  # the first that is compared
    given |= {"exchange": wanted.to_json(), "local steps": asdict(steps), **asdict(run)}
    agree(group, given, list(tensors.values()), run.timeout_s, "attach_local")
    if illegal is not None:
        raise illegal
    sync = LocalSync(model, wanted, steps, tensors, run, group)
    _attached[_inner(model)] = weakref.ref(sync)
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


def _exchange(given: str | GradientExchange, workers: int) -> GradientExchange:
    """Return the exchange with the ranks of a node that torchrun has set."""
    if given == "auto":
        raise UserError("auto compares steps with an exchange in each of them", "name a compression")
    exchange = given if isinstance(given, GradientExchange) else GradientExchange(given)
    if exchange.exchange.uses_nodes and exchange.ranks_per_node == 1:
        return replace(exchange, ranks_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", workers)))
    return exchange


def _inner(model: nn.Module) -> nn.Module:
    inner: nn.Module = getattr(model, "_orig_mod", model)  # of torch.compile
    return inner


def _check_first(model: nn.Module) -> None:
    """Raise UserError for a model that another ``LocalSync`` exchanges."""
    before = _attached.get(_inner(model))
    if before is not None and before() is not None:
        raise UserError("this model has local steps already", "call attach_local once, and keep what it returned")


def _trained(model: nn.Module) -> dict[str, TensorSpec]:
    """Return trained tensors in ``named_parameters()`` order, by name. Raises UserError if it cannot be exchanged."""
    if isinstance(model, DistributedDataParallel):
        raise UserError(
            "attach_local takes the model itself, not one in DistributedDataParallel, which exchanges in every step",
            "give it model.module, and train with that",
        )
    if not isinstance(model, nn.Module):
        raise UserError(f"attach_local takes a torch.nn.Module, got {type(model).__name__}", "give the model itself")
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    divided = [name for name, p in named if isinstance(p, DTensor)]
    if divided:
        raise UserError(f"{divided[0]} is divided among ranks: local steps need the whole network on each", "leave FSDP out")
    wrong = [name for name, p in named if p.is_complex()]
    if wrong:
        raise UserError(f"{', '.join(wrong)}: complex weights cannot be exchanged here", "train real and imaginary parts")
    if not named:
        raise UserError("no parameter of this model is trained", "set requires_grad before attaching")
    specs = numbered(named)
    return {spec.name: spec for spec in specs.values()}
