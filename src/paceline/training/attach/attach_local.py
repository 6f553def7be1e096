"""``attach_local``: local steps between exchanges, for a plain model and links that are too slow for gradients."""

from __future__ import annotations

import os
import weakref
from dataclasses import asdict, replace
from numbers import Integral
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError, check_count, shown
from paceline.strategy import GradientExchange, LocalSteps
from paceline.strategy.codec_place import check_runs
from paceline.strategy.local_steps import OUTER_LR, OUTER_MOMENTUM
from paceline.training.attach.attach import TIMEOUT_S
from paceline.training.attach.consistency import agree
from paceline.training.attach.local.local_steps import LocalSync
from paceline.training.attach.tensor_layout import TensorSpec, numbered

_attached: weakref.WeakKeyDictionary[nn.Module, weakref.ref[LocalSync]] = weakref.WeakKeyDictionary()
"""What exchanges each model, while somebody holds it."""


def attach_local(
    model: nn.Module,
    exchange: str | GradientExchange = "dense",
    *,
    sync_every: int,
    outer_lr: float = OUTER_LR,
    outer_momentum: float = OUTER_MOMENTUM,
    fragments: int = 1,
    sync_delay: int = 0,
    mixing: float | None = None,
    seed: int = 0,
    check_every: int = 100,
    timeout_s: float = TIMEOUT_S,
    process_group: dist.ProcessGroup | None = None,
) -> LocalSync:
    """Let every worker train on its own, and average how far they have come every so many steps (DiLoCo, Local SGD).

    The script keeps its model as it is, without DistributedDataParallel, and calls ``step()`` behind its optimizer's step::

        sync = paceline.attach_local(model, "int8", sync_every=32)
        for x, y in data:
            loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            sync.step()
        sync.finish()

    All ranks begin with the weights and buffers of the first one. Where a pseudo-gradient of any rank is NaN or infinite, all
    ranks return to the shared weights of the last exchange and keep their residuals; a finite one above 2^100 travels dense.

    Args:
        exchange: a ``GradientExchange``, or the name of a compression, which stands for it with its defaults.
        sync_every, outer_lr, outer_momentum, fragments, sync_delay, mixing: as for ``paceline.strategy.LocalSteps``. An outer
            rate of 1 without momentum is Local SGD: the mean of the weights.
        seed: of the stochastic rounding; the same on every rank.
        check_every: compare a checksum of the shared weights over the ranks in every so many exchanges; 0 never does.
        timeout_s: how long an exchange waits for a slow rank or a cut link before it fails.
        process_group: the workers; None: all ranks.

    Returns:
        What exchanges; keep its ``state_dict()`` of every rank in your checkpoints.

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
    local, wanted, tensors = LocalSteps(sync_every=1), GradientExchange(), dict[str, TensorSpec]()
    try:
        local = LocalSteps(
            sync_every=sync_every,
            fragments=fragments,
            sync_delay=sync_delay,
            mixing=mixing,
            outer_lr=outer_lr,
            outer_momentum=outer_momentum,
        )
        wanted = _exchange(exchange, dist.get_world_size(group))
        local.check_compression(wanted.description)
        check_count(check_every, "exchanges between checks", 0)
        if isinstance(seed, bool) or not isinstance(seed, Integral):
            raise UserError(f"seed={shown(seed)}", "give a whole number")
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 1e-3 <= timeout_s <= 1e9:
            raise UserError(f"timeout_s={shown(timeout_s)}", "give seconds, 1e-3 to 1e9")
        tensors = _trained(model)
        _check_first(model)
        check_runs(wanted, next(model.parameters()).device.type)
        local.split(list(tensors.values()))
    except UserError as error:
        illegal = error
    given: dict[str, Any] = {"arguments": "legal" if illegal is None else f"illegal: {illegal}"}  # the first that is compared
    given |= {"check_every": check_every, "exchange": wanted.to_json(), "local steps": asdict(local)}
    given |= {"seed": seed, "timeout_s": timeout_s}
    agree(group, given, list(tensors.values()))
    if illegal is not None:
        raise illegal
    sync = LocalSync(
        model, wanted, local, tensors, seed=int(seed), check_every=check_every, timeout_s=float(timeout_s), group=group
    )
    _attached[_inner(model)] = weakref.ref(sync)
    return sync


def _exchange(given: str | GradientExchange, workers: int) -> GradientExchange:
    """The exchange, with the ranks of a node that torchrun has set."""
    if given == "auto":
        raise UserError("auto compares steps with an exchange in each of them", "name a compression")
    exchange = given if isinstance(given, GradientExchange) else GradientExchange(given)
    if exchange.exchange == "hierarchical" and exchange.ranks_per_node == 1:
        return replace(exchange, ranks_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", workers)))
    return exchange


def _inner(model: nn.Module) -> nn.Module:
    inner: nn.Module = getattr(model, "_orig_mod", model)  # of torch.compile
    return inner


def _check_first(model: nn.Module) -> None:
    """Raises UserError for a model that another ``LocalSync`` exchanges."""
    before = _attached.get(_inner(model))
    if before is not None and before() is not None:
        raise UserError("this model has local steps already", "call attach_local once, and keep what it returned")


def _trained(model: nn.Module) -> dict[str, TensorSpec]:
    """The trained tensors in ``named_parameters()`` order, by name. Raises UserError for a model that cannot be exchanged."""
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
