"""A module of the user's with networks in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

NETWORKS = """
import torch
from torch import nn

def with_batch():
    return nn.Linear(4, 2), torch.empty(8, 4)

def with_attribute():
    module = nn.Linear(4, 2)
    module.example_input = torch.empty(8, 4)
    return module

def bare():
    return nn.Linear(4, 2)

def text():
    return "no"

answer = 42
"""


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's in the current directory, which is not on the import path before."""
    name = f"networks_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name
