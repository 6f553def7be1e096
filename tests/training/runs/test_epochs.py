"""A run that is stopped, saved by time, or goes on with another number of workers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from brief_runs import AskedAt, run_briefly
from distributed import launch
from paceline.errors import ReplicasDiverged, TrainingDiverged, UserError
from paceline.training.runs import epochs as epochs_module
from paceline.training.runs import worker
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.epochs import Epochs
from paceline.training.runs.stop_requests import StopRequests
from training_jobs import job


def stop_and_go_on(rank: int, workers: int, folder: str) -> list[str]:
    whole = job(Path(folder) / "whole", "topk", "adam", workers, epochs=2, data="user_module:fewest")
    parts = replace(whole, out=str(Path(folder) / "parts"))
    said = [run_briefly(whole, rank)]
    said.append(run_briefly(parts, rank, AskedAt(3) if rank == 1 else StopRequests()))  # one rank is asked
    said.append(run_briefly(replace(parts, resume=parts.out), rank))
    return said


def test_all_stop_where_one_is_asked_to_and_go_on_with_the_same_bits(tmp_path: Path) -> None:
    said = launch(stop_and_go_on, 2, folder=str(tmp_path))
    assert said[0] == said[1] and said[0][0] == said[0][2] == ""
    assert said[0][1].startswith("143 interrupted by SIGTERM; the checkpoint of step ")
    a, b = (checkpoint.load(tmp_path / name) for name in ("whole", "parts"))
    for name, tensor in a["model"].items():
        assert torch.equal(tensor, b["model"][name]), name
    for one, other in zip(a["hook"], b["hook"], strict=True):
        for name, tensor in one["feedback"]["residual"].items():
            assert torch.equal(tensor, other["feedback"]["residual"][name]) and tensor.any()
    assert [entry["loss"] for entry in a["curve"]] == [entry["loss"] for entry in b["curve"]]


def change_workers(rank: int, workers: int, folder: str) -> list[Any]:
    """Three ranks begin, and are stopped within an epoch."""
    run = job(Path(folder) / "run", "topk", "momentum", workers, epochs=2, checkpoint_every="0.001s", data="user_module:fewest")
    return [run_briefly(run, rank, AskedAt(3))]


def go_on(rank: int, workers: int, folder: str) -> list[Any]:
    before = checkpoint.load(Path(folder) / "run")
    residuals = [hook["feedback"]["residual"] for hook in before["hook"]]
    owed = {name: torch.stack([residual[name] for residual in residuals]).mean(0) for name in residuals[0]}
    kept: list[float] = []
    restore = worker.restore

    def and_look(trainer: Any, state: Any) -> None:
        restore(trainer, state)
        for name, tensor in owed.items():
            mine = trainer.hook.state_dict()["feedback"]["residual"][name]
            dist.all_reduce(mine)
            kept.append(float((mine / workers - tensor).abs().max() / tensor.abs().max()))

    worker.restore = and_look
    strategy = before["run"].strategy.changed(world_size=workers)
    said = run_briefly(replace(before["run"], strategy=strategy, label="", resume=f"{folder}/run"), rank)
    return [said, kept, before["step"], before["workers"]]


def test_another_number_of_workers_goes_on_within_an_epoch_and_owes_the_same(tmp_path: Path) -> None:
    assert launch(change_workers, 3, folder=str(tmp_path))[0][0].startswith("143")
    for said, kept, step, workers in launch(go_on, 2, folder=str(tmp_path)):
        assert said == "" and workers == 3 and step > 0
        assert kept and max(kept) < 1e-6
    state = checkpoint.load(tmp_path / "run")
    assert (state["epoch"], state["step"], state["workers"], len(state["parts"])) == (2, 0, 2, 2)
    assert len(state["curve"]) == 2


def go_on_from_two_places(rank: int, workers: int, folder: str) -> str:
    """Two runs with the same settings stop at other steps; the ranks go on from one each."""
    stopped = [job(Path(folder) / str(looks), "topk", "momentum", workers, epochs=2) for looks in (3, 5)]
    for looks, run in zip((3, 5), stopped, strict=True):
        assert run_briefly(run, rank, AskedAt(looks)).startswith("143")
    try:
        return run_briefly(replace(stopped[0], resume=stopped[rank].out), rank)
    except UserError as error:
        return f"{error.message}; {error.fix}"


def test_ranks_that_go_on_from_different_checkpoints_are_told(tmp_path: Path) -> None:
    said = set(launch(go_on_from_two_places, 2, folder=str(tmp_path)))
    assert len(said) == 1
    place = r"step \d+ of epoch 1, weights [0-9a-f]{16}"
    assert re.fullmatch(
        rf"the ranks disagree on the checkpoint \(rank 0: {place}; rank 1: {place}\); "
        "let `resume` be the same directory on every rank",
        said.pop(),
    )


@pytest.mark.parametrize(
    ("text", "every"), [("", (0, 0.0)), ("100", (100, 0.0)), ("1min", (0, 60.0)), ("1m", (0, 60.0)), ("90 s", (0, 90.0))]
)
def test_when_checkpoints_are_written(tmp_path: Path, text: str, every: tuple[int, float]) -> None:
    assert job(tmp_path, checkpoint_every=text).save_every == every


@pytest.mark.parametrize("text", ["0", "-3", "soon", "1e400", "0s", "1 epoch", "1.5"])
def test_an_interval_that_cannot_be_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="a checkpoint every"):
        job(tmp_path, checkpoint_every=text)


@pytest.mark.parametrize(
    ("defect", "rows", "held_out", "error", "text"),
    [
        ("", [[0, 0], [5, 5]], 1.0, None, ""),
        ("weights are NaN", [[1, 1], [5, 5]], 1.0, TrainingDiverged, "after step 3 of epoch 2: weights are NaN"),
        ("", [[0, 1], [5, 5]], 1.0, TrainingDiverged, "rank 1 has NaN or infinity"),
        ("", [[0, 0], [5, 5]], float("nan"), TrainingDiverged, "the held-out loss is nan.* resume from the last checkpoint"),
        ("", [[0, 0], [5, 6]], 1.0, ReplicasDiverged, "the training samples of rank 1 differ from those of rank 0"),
    ],
)
def test_nothing_is_saved_of_a_network_that_is_nan_or_of_ranks_with_other_samples(
    defect: str, rows: list[list[int]], held_out: float, error: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs_module, "of_all_ranks", lambda group, own, device: rows)
    made = Epochs.__new__(Epochs)
    made._run = SimpleNamespace(label="int8", learning_rate=0.5)  # type: ignore[assignment]
    made._trainer = SimpleNamespace(  # type: ignore[assignment]
        defect=lambda: defect, samples_checksum=lambda epoch: 5, group=None, device=None, rank=0
    )
    made.curve, saved = [], list[int]()
    monkeypatch.setattr(epochs_module, "shared_state", lambda *of: saved.append(1) or {})
    made.writer = SimpleNamespace(save=lambda *of: "")  # type: ignore[assignment]
    monkeypatch.setattr(epochs_module, "own_part", lambda *of: {})
    if error is None:
        made._save(1, 3)
        assert saved
        return
    with pytest.raises(error, match=text):
        made._check_health(1, 3, held_out)
    if held_out == 1.0:
        with pytest.raises(error, match=text):
            made._save(1, 3)
        assert not saved


def diverging(rank: int, workers: int, folder: str) -> list[str]:
    run = job(Path(folder) / "run", "int8", "momentum", workers, epochs=3, lr=1e30, data="user_module:fewest")
    try:
        return [run_briefly(run, rank)]
    except TrainingDiverged as error:
        return [str(error)]


@pytest.mark.long
def test_a_network_that_is_nan_ends_its_run_on_every_rank_and_is_not_saved(tmp_path: Path) -> None:
    said = launch(diverging, 2, folder=str(tmp_path))
    assert all("the network has diverged, and is not saved; lower the learning rate of 1e+30" in text for [text] in said)
    assert not (tmp_path / "run" / checkpoint.FILE).exists()
