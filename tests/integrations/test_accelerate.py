"""States of all ranks where a framework writes those of the first, and the refusal of a hook that is registered itself."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
import torch.distributed as dist

from paceline.errors import UserError
from paceline.integrations.accelerate import EveryRankState
from paceline.training.attach.hooks.state import refuse_first_rank_only


class Hook:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.loaded: Any = None

    def state_dict(self) -> dict[str, Any]:
        """Its own."""
        return {"rank": 1}

    def load_state_dict(self, states: Any) -> None:
        """Keep them."""
        self.loaded = states


def test_every_rank_is_in_the_state_and_gets_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(into: list[Any], own: Any) -> None:
        into[:] = [{"rank": 0}, copy.copy(own)]

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    hook: Any = Hook()
    state = EveryRankState(hook).state_dict()
    assert state == {"ranks": [{"rank": 0}, {"rank": 1}]}
    EveryRankState(hook).load_state_dict(state)
    assert hook.loaded == state["ranks"]
    with pytest.raises(UserError, match="no state of EveryRankState"):
        EveryRankState(hook).load_state_dict({"rank": 0})


def test_the_hook_of_a_sharded_model_is_refused() -> None:
    hook: Any = types.SimpleNamespace(own_state=None)
    with pytest.raises(UserError, match=r"torch\.distributed\.checkpoint"):
        EveryRankState(hook)


@pytest.mark.parametrize(("module", "workers"), [("accelerate.checkpointing", 2), ("accelerate.checkpointing", 1), ("mine", 2)])
def test_a_hook_that_is_registered_itself_is_refused_when_it_is_saved(module: str, workers: int) -> None:
    def state_dict() -> None:
        refuse_first_rank_only(workers)

    saver = types.ModuleType(module)
    exec("def save(state_dict):\n    state_dict()\n", saver.__dict__)
    if (module, workers) == ("accelerate.checkpointing", 2):
        with pytest.raises(UserError, match="Accelerate saves the state of the first rank only; register EveryRankState"):
            saver.save(state_dict)
    else:
        saver.save(state_dict)
