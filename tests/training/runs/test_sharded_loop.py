"""Whole runs of sharded models: as accurate as whole ones, bytes as predicted, resumed bit for bit and on other workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distributed import launch
from everyday import cases_of
from paceline.errors import UserError
from paceline.rundir import RunDir
from paceline.training.runs import worker
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.training_run import TrainingRun
from training_jobs import assert_same, flatten, job, keep_first, quick

STEPS = 12

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dense zero3": ("momentum", {"sharding": "zero3"}),
    "topk zero3": ("adam", {"sharding": "zero3", "compression": "topk", "options": {"density": 0.2}}),
    "dense zero1": ("adam", {"sharding": "zero1"}),
    "topk zero1": ("lamb", {"sharding": "zero1", "compression": "topk", "options": {"density": 0.2}}),
    "int8 zero2": ("lamb", {"sharding": "zero2", "compression": "int8", "gather_bits": 16}),
}


def sharded_job(out: Path, name: str, workers: int, **changes: Any) -> TrainingRun:
    optimizer, choices = CASES[name]
    run = job(out, optimizer=optimizer, workers=workers, data="user_module:fewest", **changes)
    return replace(run, strategy=run.strategy.changed(**choices))


def run_all(rank: int, workers: int, folder: str, wanted: dict[str, list[str]]) -> None:
    """Train three epochs of four steps. Resume after the first epoch, and train once without sharding."""
    keep_first()
    quick()
    for name, parts in wanted.items():
        base = Path(folder) / name
        whole = sharded_job(base / "whole", name, workers)
        runs = {
            "whole": whole,
            "rest": replace(whole, out=str(base / "rest"), resume=str(base / "first")),
            "ddp": replace(whole, strategy=whole.strategy.changed(sharding="ddp", gather_bits=0), out=str(base / "ddp")),
        }
        for part in parts:
            worker.train(worker.prepare(runs[part], first=rank == 0), torch.device("cpu"))
            dist.barrier()


def run_on_more(rank: int, workers: int, folder: str, names: list[str]) -> None:
    quick()
    for name in names:
        base = Path(folder) / name
        run = replace(sharded_job(base / "more", name, workers), resume=str(base / "first"))
        worker.train(worker.prepare(run, first=rank == 0), torch.device("cpu"))


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs that the selected tests look at."""
    wanted: dict[str, set[str]] = {}
    for case in cases_of(request):
        wanted.setdefault(case["name"], {"whole"}).update([case["other"]] if "other" in case else [])
    folder = tmp_path_factory.mktemp("sharded")
    launch(run_all, 2, folder=str(folder), wanted={name: sorted(parts, reverse=True) for name, parts in wanted.items()})
    return folder


@pytest.mark.everyday("rest-topk zero3", "rest-int8 zero2", "rest-dense zero1")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("other", ["rest"])
def test_a_resumed_run_ends_with_the_same_bits(runs: Path, name: str, other: str) -> None:
    whole, rest = checkpoint.load(runs / name / "whole"), checkpoint.load(runs / name / other)
    for part in ("model", "optimizer", "hook"):
        assert_same(whole[part], rest[part])
    assert [state["step"] for state in whole["hook"]] == [STEPS] * 2
    for key in ("loss", "accuracy", "held_out_loss"):
        assert [e[key] for e in whole["curve"]] == [e[key] for e in rest["curve"]]


@pytest.mark.everyday("ddp-dense zero1", "ddp-dense zero3", others="long")
@pytest.mark.parametrize("name", ["dense zero1", "topk zero1", "dense zero3"])
@pytest.mark.parametrize("other", ["ddp"])
def test_a_run_is_that_of_an_unsharded_model(runs: Path, name: str, other: str) -> None:
    """Bit for bit where the same gradients are updated element by element; norms of shards are added up in another order."""
    sharded, alone = checkpoint.load(runs / name / "whole"), checkpoint.load(runs / name / other)
    for part in ("model", "optimizer"):
        found, wanted = dict(flatten(sharded[part])), dict(flatten(alone[part]))
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            if name == "dense zero1" or not isinstance(value, torch.Tensor):
                assert torch.equal(found[key], value) if isinstance(value, torch.Tensor) else found[key] == value, key
            else:
                torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4)


@pytest.mark.everyday("topk zero3", "int8 zero2", "dense zero1", "dense zero3")
@pytest.mark.parametrize("name", CASES)
def test_the_record_has_the_bytes_that_the_prediction_has(runs: Path, name: str) -> None:
    contents = RunDir(runs / name / "whole").read()
    (label,) = contents.labels
    record, prediction = contents.records[label], contents.predictions[label]
    assert record.wire_bytes_per_device == prediction.wire_bytes_per_device > 0
    assert record.strategy["sharding"] == CASES[name][1]["sharding"]


@pytest.mark.everyday("int8 zero2")
@pytest.mark.parametrize("name", CASES)
def test_another_number_of_workers_goes_on(runs: Path, name: str) -> None:
    """The residuals keep their sum: ``tests/training/attach/shards/test_sharded_state.py``."""
    launch(run_on_more, 3, folder=str(runs), names=[name])
    state = checkpoint.load(runs / name / "more")
    assert [s["step"] for s in state["hook"]] == [STEPS] * 3
    assert all(torch.isfinite(w).all() for w in state["model"].values())
    assert state["curve"][-1]["loss"] < state["curve"][0]["loss"]


@pytest.mark.parametrize(("changes", "words"), [({"slimming": {"method": "x"}}, "slim")])
def test_what_does_not_go_with_shards_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    run = sharded_job(tmp_path / "run", "dense zero3", 2)
    with pytest.raises(UserError, match=words):
        replace(run, **changes)
