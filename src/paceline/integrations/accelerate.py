"""State of a hook in the checkpoints of Accelerate: ``accelerator.register_for_checkpointing(EveryRankState(hook))``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from paceline.errors import UserError
from paceline.integrations.hook_state import AnyHook
from paceline.training.attach.local.local_steps import LocalSync


class EveryRankState:
    """States of a hook on all ranks, as an object with ``state_dict`` and ``load_state_dict``.

    Accelerate asks every rank for its state, but writes that of the first rank only, and every rank reads it. Residuals differ
    from rank to rank, so this object's state has those of all ranks.

    Args:
        hook: return value of ``paceline.attach`` on a DDP model, or of ``paceline.attach_local``.

    Raises:
        UserError: the hook of a sharded model, whose state ``torch.distributed.checkpoint`` saves.
    """

    def __init__(self, hook: AnyHook | LocalSync) -> None:
        if hasattr(hook, "own_state"):
            raise UserError(
                "the hook of a sharded model has its state in shards, and Accelerate writes those of the first rank only",
                "save it with torch.distributed.checkpoint, which takes the hook itself",
            )
        self._hook = hook

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks. Every rank must call this, as ``Accelerator.save_state`` does."""
        states: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(states, self._hook.state_dict())
        return {"ranks": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``, also of another number of ranks. Every rank must call this. Raises UserError."""
        if not isinstance(state, Mapping) or not isinstance(state.get("ranks"), list):
            raise UserError("this is no state of EveryRankState", "give what its state_dict() returned")
        self._hook.load_state_dict(state["ranks"])
