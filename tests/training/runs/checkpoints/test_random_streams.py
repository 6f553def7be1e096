"""Random streams go on where they were saved, through a file that is read without running code."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from paceline.training.runs.checkpoints.random_streams import random_state, set_random_state


def draws() -> list[float]:
    # Normal draws keep a second value: it is part of the state.
    return [random.gauss(0, 1), float(np.random.normal()), float(torch.randn(1)), random.random(), float(torch.rand(1))]


def test_the_next_draws_are_those_after_the_saved_state(tmp_path: Path) -> None:
    draws()
    torch.save(random_state(torch.device("cpu")), tmp_path / "state.pt")
    expected = [draws() for _ in range(3)]
    set_random_state(torch.load(tmp_path / "state.pt", weights_only=True), torch.device("cpu"))
    assert [draws() for _ in range(3)] == expected
