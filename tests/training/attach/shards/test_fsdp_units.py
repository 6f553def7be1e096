"""Units of an FSDP2 model: which models are sharded at all. Their tensors and ranks are tested with the hook."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sharded_cases
import sharded_models
from distributed import launch_once
from paceline.training.attach.shards.fsdp_units import is_sharded


def test_a_plain_model_is_not_sharded() -> None:
    assert not is_sharded(nn.Linear(2, 2)) and not is_sharded("model")
    assert not is_sharded(torch.compile(nn.Linear(2, 2), backend="eager"))


@pytest.mark.long
def test_a_sharded_model_is_found_through_what_wraps_it() -> None:
    """``attach`` took the compiled model, whose gradients are those of the eager one."""
    alone, attached = launch_once(sharded_cases.composed, 2)[0]["compiled"]
    assert alone.keys() == attached.keys() == dict(sharded_models.network().named_parameters()).keys()
