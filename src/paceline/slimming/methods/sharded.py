"""Networks trained by several processes: one decision for all ranks, and whole copies of sharded networks."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from paceline.errors import UserError


def same_on_all_ranks(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return rank 0's result of ``make`` on every rank; without a process group this process's result.

    Raises:
        UserError: as ``make`` on rank 0, on every rank.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return make()
    sent: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            sent[0] = make()
        except UserError as mistake:
            sent[1] = mistake.message, mistake.fix
    dist.broadcast_object_list(sent, 0)
    made, error = sent
    if error is not None:
        raise UserError(*error)
    found: dict[str, Any] = made
    return found


def is_sharded(model: nn.Module) -> bool:
    """Return whether a parameter is a DTensor, as made by ``fully_shard``."""
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def shell(model: nn.Module) -> nn.Module:
    """Return a copy with its parameters on the meta device. Made before sharding, it can hold the whole parameters later."""
    held: dict[int, Any] = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, held)


def gathered(model: nn.Module, empty: nn.Module) -> nn.Module:
    """Gather a sharded network whole on every rank, with rank 0's buffers. All ranks must call it.

    Args:
        empty: its ``shell``, which is filled and returned.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    tied: dict[int, list[str]] = defaultdict(list)
    for name, parameter in empty.named_parameters(remove_duplicate=False):
        tied[id(parameter)].append(name)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    empty.load_state_dict(state, assign=True)
    for first, *others in tied.values():  # loading gave each name a separate parameter
        for name in others:
            path, _, own = name.rpartition(".")
            empty.get_submodule(path).register_parameter(own, empty.get_parameter(first))
    for buffer in empty.buffers():  # each rank has statistics of different samples
        dist.broadcast(buffer, 0)
    return empty
