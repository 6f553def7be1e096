"""Branches of a run: each continues the checkpoint with its own batch, and what cannot be compared is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.prediction.learning.branched_batch import read_rows
from paceline.strategy import Strategy
from paceline.training.runs.compute import branches
from paceline.training.runs.training_run import TrainingRun


def run_of(**changes: Any) -> TrainingRun:
    strategy = Strategy.of(world_size=2, global_batch_size=24)
    return TrainingRun(**{"model": "user_module:even", "data": "user_module:fewer", "strategy": strategy, **changes})


def test_each_branch_continues_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[TrainingRun] = []

    def train(run: TrainingRun) -> tuple[Any, None]:
        ran.append(run)
        return SimpleNamespace(curve=[{"held_out_loss": 1.0 + 0.004 * len(ran) ** 2}]), None

    monkeypatch.setattr(branches.checkpoint, "load", lambda folder: {"epoch": 3, "step": 0, "run": run_of(epochs=3)})
    monkeypatch.setattr(branches, "train_run", train)
    found = branches.critical_batch(tmp_path, [48, 72], epochs=2)
    assert [run.batch_growth for run in ran] == ["", "48@432", "72@432"]
    assert {(run.resume, run.epochs) for run in ran} == {(str(tmp_path), 5)}
    assert len({run.out for run in ran}) == 3
    assert found.critical_batch == 24 and read_rows(tmp_path / "critical_batch.csv") == [(432, 24)]
    assert branches.critical_batch(tmp_path, [48], tolerance=1.0).critical_batch == 48


@pytest.mark.parametrize(
    ("state", "changes", "said"),
    [
        ({"step": 2}, {}, "from step 2 of epoch 4"),
        ({}, {"decay": 1.0}, "decays"),
        ({}, {"batch_growth": "48@24"}, "batch grows"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    state: dict[str, Any], changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = {"epoch": 3, "step": 0, "run": run_of(**changes), **state}
    monkeypatch.setattr(branches.checkpoint, "load", lambda folder: loaded)
    with pytest.raises(UserError, match=said):
        branches.critical_batch(tmp_path, [48])
