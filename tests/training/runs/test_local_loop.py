"""Whole runs of local steps: bytes as predicted, resumed bit for bit, on another number of workers, refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distributed import launch
from paceline.errors import UserError
from paceline.rundir import RunDir
from paceline.training.runs import worker
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.loop import StepMeasurements
from paceline.training.runs.training_run import TrainingRun
from training_jobs import assert_same, job, keep_first, quick

STEPS = 18

CASES: dict[str, dict[str, Any]] = {
    "int8 every 4": {"compression": "int8", "sync_every": 4},
    "sign every 5": {"compression": "sign", "sync_every": 5, "fragments": 2, "sync_delay": 2, "mixing": 0.3},
    "dense every 7": {"compression": "dense", "sync_every": 7, "outer_lr": 1.0, "outer_momentum": 0.0},
}
OF_SEVERAL: dict[str, dict[str, Any]] = {
    "shards": {"compression": "topk", "sync_every": 4, "sharding": "zero3", "shard_devices": 2, "residual_decay": 0.9},
    "copies": {"compression": "sign", "sync_every": 4, "worker_devices": 2},
}
"""Workers of two devices."""
OPTIMIZERS = {"shards": "adam", "copies": "adam", "int8 every 4": "lamb", "sign every 5": "adam", "dense every 7": "momentum"}


def local_job(out: Path, name: str, workers: int, **changes: Any) -> TrainingRun:
    run = job(out, optimizer=OPTIMIZERS[name], workers=workers, data="user_module:fewer", **changes)
    return replace(run, strategy=run.strategy.changed(**(CASES | OF_SEVERAL)[name]))


def run_whole_and_rest(rank: int, workers: int, folder: str, names: list[str]) -> None:
    """Train three epochs of six steps. Then resume after the first epoch, in the middle of a round."""
    keep_first()
    quick()
    for name in names:
        base = Path(folder) / name
        whole = local_job(base / "whole", name, workers)
        for run in (whole, replace(whole, out=str(base / "rest"), resume=str(base / "first"))):
            worker.train(worker.prepare(run, first=rank == 0), torch.device("cpu"))
            dist.barrier()


def run_on_more(rank: int, workers: int, folder: str) -> None:
    quick()
    name = "sign every 5"
    base = Path(folder) / name
    run = replace(local_job(base / "more", name, workers), resume=str(base / "first"))
    worker.train(worker.prepare(run, first=rank == 0), torch.device("cpu"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    launch(run_whole_and_rest, 2, folder=str(folder), names=list(CASES))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_ends_with_the_same_bits(runs: Path, name: str) -> None:
    whole, rest = checkpoint.load(runs / name / "whole"), checkpoint.load(runs / name / "rest")
    for part in ("model", "optimizer", "hook"):
        assert_same(whole[part], rest[part])
    assert [state["step"] for state in whole["hook"]] == [STEPS] * 2
    weights = [torch.cat([w.reshape(-1) for w in state["weights"].values()]) for state in whole["hook"]]
    assert not torch.equal(weights[0], weights[1]), "in the middle of a round workers have weights of their own"
    for key in ("loss", "accuracy", "held_out_loss"):
        assert [e[key] for e in whole["curve"]] == [e[key] for e in rest["curve"]]
    assert whole["curve"][-1]["loss"] < whole["curve"][0]["loss"]


@pytest.mark.long
def test_runs_of_workers_with_several_devices_end_with_the_same_bits(tmp_path: Path) -> None:
    launch(run_whole_and_rest, 4, folder=str(tmp_path), names=list(OF_SEVERAL))
    for name in OF_SEVERAL:
        whole, rest = (checkpoint.load(tmp_path / name / part) for part in ("whole", "rest"))
        for part in ("model", "optimizer", "hook"):
            assert_same(whole[part], rest[part])
        for key in ("loss", "accuracy", "held_out_loss"):
            assert [e[key] for e in whole["curve"]] == [e[key] for e in rest["curve"]]
        assert whole["curve"][-1]["loss"] < whole["curve"][0]["loss"]


@pytest.mark.parametrize("name", CASES)
def test_the_record_has_the_bytes_that_the_prediction_has(runs: Path, name: str) -> None:
    contents = RunDir(runs / name / "whole").read()
    record, prediction = contents.records[name], contents.predictions[name]
    assert record.wire_bytes_per_device == prediction.wire_bytes_per_device > 0
    assert record.strategy["sync_every"] == CASES[name]["sync_every"]
    assert record.steps == STEPS and record.nonfinite_steps == 0


def test_another_number_of_workers_goes_on(runs: Path) -> None:
    launch(run_on_more, 3, folder=str(runs))
    state = checkpoint.load(runs / "sign every 5" / "more")
    assert [s["step"] for s in state["hook"]] == [STEPS] * 3
    assert all(torch.isfinite(w).all() for w in state["model"].values())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sync_every": 31}, ("every 31 steps in a run of 30 steps", "up to 30, or more epochs")),
        ({"sync_every": 8, "fragments": 5}, ("5 fragments of a network with 4 trained layers", "at most 4")),
    ],
)
def test_local_steps_without_a_use_are_refused(tmp_path: Path, changes: dict[str, int], words: tuple[str, ...]) -> None:
    run = job(tmp_path / "run", workers=2)
    with pytest.raises(UserError) as caught:
        worker.prepare(replace(run, strategy=run.strategy.changed(**changes)))
    assert all(word in str(caught.value) for word in words), caught.value


def test_structures_are_not_removed_beside_local_steps(tmp_path: Path) -> None:
    run = job(tmp_path / "run", workers=2)
    with pytest.raises(UserError, match="removed while 4 local steps"):
        replace(run, strategy=run.strategy.changed(sync_every=4), slimming={"method": "x"})


def test_an_elastic_run_exchanges_nothing_beside_its_steps(tmp_path: Path) -> None:
    """It would wait in every step: the state that it keeps in memory has the exchange that is under way."""
    run = job(tmp_path / "run", workers=2, elastic=True)
    at_once = replace(run, strategy=run.strategy.changed(sync_every=4))
    with pytest.raises(UserError, match=r"an elastic run with sync_delay 2: .*; leave out elastic, or sync_delay") as caught:
        replace(at_once, strategy=at_once.strategy.changed(sync_delay=2))
    assert "\n" not in str(caught.value)
    replace(run, elastic=False, strategy=run.strategy.changed(sync_every=4, sync_delay=2))


def test_rounds_are_averaged_and_bytes_rounded_up() -> None:
    times = StepMeasurements([1.0, 2.0, 6.0, 5.0], [0.0] * 4, [0.0, 4.0, 0.0, 0.0], [0.0] * 4, [0, 5, 0, 4], [[]] * 4)
    mean = times.averaged(2)
    assert (mean.step, mean.comm, mean.sent, len(mean.events)) == ([1.5, 5.5], [2.0, 0.0], [3, 2], 2)
    assert times.averaged(3).step == [3.0] and times.averaged(5) is times
