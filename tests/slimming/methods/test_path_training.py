"""Settings of a path as plain data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.path_training import settings, wrapped


def test_settings_lead_to_the_penalty(tmp_path: Path) -> None:
    whole = {"median_s": 2e-3, "low_s": 2e-3, "high_s": 2e-3, "turns": 1}
    (tmp_path / "table.json").write_text(json.dumps({"whole": whole}))
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    given = json.loads(json.dumps(settings("auto", Budget("size", 300.0), tmp_path / "table.json")))
    optimizer = wrapped(torch.optim.SGD(model.parameters(), 0.1), model, torch.randn(2, 4), given, 12)
    for _ in range(12):
        model(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert int((model[0].weight.abs().sum(1) == 0).sum()) > 16
    with pytest.raises(UserError, match=r"none.json cannot be read"):
        wrapped(optimizer, model, torch.randn(2, 4), {**given, "table": str(tmp_path / "none.json")}, 12)
