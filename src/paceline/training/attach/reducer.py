"""Parameters that DDP's reducer exchanges, and those that no rank has used in a step."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec, numbered
from paceline.training.exchanges.wires.collectives import Wire


def exchanged(model: DistributedDataParallel) -> dict[int, TensorSpec]:
    """Return tensors whose gradients a hook gets, in ``named_parameters()`` order, by the ``id`` of the parameter.

    Tensors that the script exchanges itself (``_set_params_and_buffers_to_ignore_for_model``) and tensors that DDP averages
    apart (``delay_all_reduce_named_params``) are left out.

    Raises:
        UserError: DDP has no reducer, or parameters were frozen or unfrozen after DDP wrapped the model.
    """
    if not hasattr(model, "reducer"):
        raise UserError(
            "DDP averages every trained parameter of this model separately: nothing is left to compress",
            "leave parameters out of delay_all_reduce_named_params",
        )
    # Buckets of zeros are how the reducer names its parameters; requires_grad may have changed since it was made.
    owned = {id(p) for bucket in model.reducer._get_zeros_like_grad_buckets() for p in bucket.parameters()}
    named = list(model.module.named_parameters())
    thawed = [n for n, p in named if p.requires_grad and id(p) not in owned and n not in model.parameters_to_ignore]
    if thawed:
        raise UserError(
            f"{', '.join(thawed)}: frozen when DistributedDataParallel wrapped the model, trained now. It is not exchanged",
            "set requires_grad before wrapping",
        )
    frozen = [n for n, p in named if id(p) in owned and not p.requires_grad]
    if frozen and not (model.find_unused_parameters or model.static_graph):
        raise UserError(
            f"{', '.join(frozen)}: trained when DistributedDataParallel wrapped the model, frozen now. DDP waits for it",
            "set requires_grad before wrapping, or wrap with find_unused_parameters=True",
        )
    return numbered((name, p) for name, p in named if id(p) in owned)


def alike_on_all_ranks(model: DistributedDataParallel) -> list[nn.Parameter]:
    """Return the parameters that DDP keeps equal on every rank: all trained ones except those that it is told to ignore."""
    apart = {id(p) for p in model._delay_all_reduce_params}
    named = model.module.named_parameters()
    return [p for n, p in named if p.requires_grad and (n not in model.parameters_to_ignore or id(p) in apart)]


class LeftOut:
    """Parameters of a model that its hook does not exchange. If one were trained, replicas would diverge.

    DDP and ``check_every`` know only the parameters that were trained when DDP wrapped the model. The script may train
    parameters that it told DDP to ignore or to average apart.
    """

    def __init__(self, model: DistributedDataParallel, tensors: Mapping[int, TensorSpec]) -> None:
        ignored = {id(p) for name, p in model.module.named_parameters() if name in model.parameters_to_ignore}
        self._known = {*tensors, *ignored, *(id(p) for p in model._delay_all_reduce_params)}
        self._module = weakref.ref(model.module)

    def refuse_trained(self) -> None:
        """Raise UserError for a trained parameter that was frozen or not in the model when DDP wrapped it."""
        module = self._module()
        if module is None or all(id(p) in self._known for part in module.modules() for p in _trained(part)):
            return
        trained = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in self._known]
        raise UserError(
            f"{', '.join(trained)}: frozen or not there when DistributedDataParallel wrapped the model, trained now. It is "
            "not exchanged",
            "set requires_grad first, then wrap the model in DistributedDataParallel again and attach to that",
        )


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module._parameters.values() if p is not None and p.requires_grad]


class Usage:
    """Tensors used in a backward pass, for a model in which DDP searches for unused ones.

    If no rank has used a tensor, DDP leaves its ``grad`` as it was and discards the mean of a hook.
    """

    def __init__(self, model: DistributedDataParallel, tensors: Mapping[int, TensorSpec]) -> None:
        self._used: set[str] = set()
        self._watched: set[str] = set()
        handles = []
        for p in model.module.parameters():
            if id(p) in tensors and p.requires_grad:  # another may be unfrozen later: it counts as used
                name = tensors[id(p)].name
                self._watched.add(name)
                handles.append(p.register_post_accumulate_grad_hook(partial(_note, self._used, name)))
        weakref.finalize(self, _remove, handles).atexit = False

    def take(self, names: Collection[str]) -> set[str]:
        """Take the tensors among ``names`` that this rank has used since the last call."""
        used = {name for name in names if name in self._used or name not in self._watched}
        self._used.difference_update(names)
        return used


def unused_by_all(wire: Wire, names: Sequence[str], used: Collection[str]) -> set[str]:
    """Return those of ``names`` that no rank has used. Every rank must call this with equal names and its own used ones."""
    flags = torch.tensor([float(name in used) for name in names], dtype=torch.float32, device=wire.device)
    ranks = wire.note(flags)().tolist()
    return {name for name, count in zip(names, ranks, strict=True) if not count}


def _note(used: set[str], name: str, _: torch.Tensor) -> None:
    used.add(name)


def _remove(handles: Sequence[torch.utils.hooks.RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
