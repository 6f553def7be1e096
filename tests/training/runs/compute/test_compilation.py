"""Modules that are compiled, and a machine without a compiler."""

from __future__ import annotations

import shutil

import pytest
from torch import nn

from paceline.errors import UserError
from paceline.training.runs.compute.compilation import check_compiler, compile_network


def test_blocks_are_compiled_each_by_itself() -> None:
    block = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    assert compile_network(nn.Sequential(block, nn.Linear(2, 2))) == ["0"]
    assert compile_network(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == [""]


def test_a_processor_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    check_compiler("cuda")
    with pytest.raises(UserError, match="C\\+\\+ compiler"):
        check_compiler("cpu")
