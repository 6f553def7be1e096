"""Modes of modules come back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.slimming.structures.eval_mode import eval_mode
from paceline.slimming.structures.shrink import shrunk
from paceline.slimming.structures.tracing import structures_of


def test_a_frozen_norm_stays_frozen() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4))
    model[1].eval()
    with pytest.raises(KeyError), eval_mode(model):
        assert not any(module.training for module in model.modules())
        raise KeyError
    found = structures_of(model, (torch.randn(1, 1, 8, 8),))
    small = shrunk(model, found, {found.every[0].number})
    for each in (model, small):
        assert [module.training for module in each.modules()] == [True, True, False, True, True]
