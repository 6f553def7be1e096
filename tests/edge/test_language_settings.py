"""Settings of slimming a language model are checked, and say what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.edge.language_settings import FORMS, LanguageRun
from paceline.errors import UserError
from paceline.slimming.language.checkpoint import TextParts
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.weight_forms import INT8


def run_of(folder: Path, **changes: Any) -> LanguageRun:
    given = {"budget": Budget.parse("decode=1.5x"), "context": 16, "prompt": 32, "out": str(folder / "out"), **changes}
    return LanguageRun(model=str(folder / "model"), text="text.txt", **given)


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for changes, says in (
        ({"budget": Budget("accuracy", 1.0)}, "accuracy=-1pt for a language model"),
        ({"context": 1}, "a context of 1 token"),
        ({"prompt": 0}, "0 for `prompt`"),
        ({"epochs": -1}, "-1 epochs"),
        ({"distill": 2.0}, "a share of 2"),
        ({"lr": 0.0}, "learning rate 0"),
        ({"widths": "fre"}, "fre"),
        ({"out": str(tmp_path)}, "model would be replaced by the smaller model"),
        ({"weights": (INT8,), "target": "torch-compile"}, "weights in int8 for torch-compile"),
        ({"weights": (INT8,), "target": "litert"}, "a language model on litert; .* onnxruntime, executorch, torch-compile"),
    ):
        with pytest.raises(UserError, match=says):
            run_of(tmp_path, **changes)
    parts = TextParts(torch.arange(16 * 8 * 10), torch.arange(0), torch.arange(0))
    steps = {epochs: run_of(tmp_path, epochs=epochs).steps(parts) for epochs in (0, 0.01, 0.5, 2)}
    assert steps == {0: 0, 0.01: 1, 0.5: 5, 2: 20}
    assert str(run_of(tmp_path, budget=Budget.parse("speedup=2x")).budget) == "decode=2x"
    run = run_of(tmp_path)
    assert run.forms == FORMS and run_of(tmp_path, weights=()).forms == ()
    assert run.timing == {"context": 16, "prompt": 32, "threads": 1} and run.longest == 32
    assert run_of(tmp_path, target="torch-compile").forms == ()
    assert not run_of(tmp_path, out=str(tmp_path), writes=False).writes
