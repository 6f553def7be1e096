"""Checkpoints of models in shards: every rank writes its own rows once, none gathers, and any mesh goes on from them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from distributed import launch
from everyday import cases_of
from paceline.errors import UserError
from paceline.training.runs import epochs, worker
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.starting_model import build_model, load_weights, weights_in
from paceline.training.runs.training_run import TrainingRun
from training_jobs import MODEL, assert_same, flatten, job, keep_first, quick

TOPK = {"compression": "topk", "options": {"density": 0.2}}
CASES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "copies": (4, "adam", {"sharding": "zero3", "shard_devices": 2, **TOPK}),
    "zero1 in copies": (4, "adam", {"sharding": "zero1", "shard_devices": 2}),
    "no state": (2, "sgd", {"sharding": "zero1"}),
    "apart": (2, "momentum", {"sharding": "zero2", **TOPK}),  # no directory that all ranks see
}
"""Workers, optimizer and sharding."""
OTHER = {"copies": 2, "zero1 in copies": 2, "apart": 3}
"""Workers that go on from the first epoch."""
NAMES = pytest.mark.parametrize("name", CASES)


def run_of(name: str, out: Path, workers: int, **changes: Any) -> TrainingRun:
    _, optimizer, choices = CASES[name]
    run = job(out, optimizer=optimizer, workers=workers, **{"data": "user_module:fewest", "epochs": 2, **changes})
    return replace(run, strategy=run.strategy.changed(**choices))


def train(run: TrainingRun, rank: int) -> None:
    worker.train(worker.prepare(run, first=rank == 0), torch.device("cpu"))
    dist.barrier()


def whole_and_rest(rank: int, workers: int, folder: str, names: list[str]) -> list[str]:
    """Two epochs, and the second again behind the first. Returns the gathers of whole tensors; evaluation has none."""
    quick()
    keep_first()
    gathered, full_tensor, is_shared = [], DTensor.full_tensor, epochs.is_shared

    def noted(self: DTensor, **options: Any) -> torch.Tensor:
        gathered.append(str(tuple(self.shape)))
        return full_tensor(self, **options)

    DTensor.full_tensor = noted
    for name in names:
        base = Path(folder) / name
        epochs.is_shared = (lambda _: False) if name == "apart" else is_shared
        whole = run_of(name, base / "whole", workers)
        for run in (whole, replace(whole, out=str(base / "rest"), resume=str(base / "first"))):
            train(run, rank)
    return gathered


def on_others(rank: int, workers: int, folder: str, name: str) -> None:
    quick()
    base = Path(folder) / name
    train(replace(run_of(name, base / "others", workers), resume=str(base / "first")), rank)
    train(replace(run_of(name, base / "of old", workers), resume=str(base / "old")), rank)


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs that the selected tests look at."""
    folder = tmp_path_factory.mktemp("shards")
    wanted = {case.get("name", "copies") for case in cases_of(request)}
    for workers in (2, 4):
        if names := [name for name in CASES if name in wanted and CASES[name][0] == workers]:
            assert launch(whole_and_rest, workers, folder=str(folder), names=names) == [[]] * workers
    return folder


@pytest.mark.everyday("copies", "no state", "apart", others="long")
@NAMES
def test_a_run_goes_on_bit_for_bit(folder: Path, name: str) -> None:
    whole, rest = checkpoint.load(folder / name / "whole"), checkpoint.load(folder / name / "rest")
    for part in ("model", "optimizer", "hook"):
        assert_same(whole[part], rest[part])


@pytest.mark.everyday("copies", "no state", "apart", others="long")
@NAMES
def test_every_row_is_written_once(folder: Path, name: str) -> None:
    """By the first copy; ``checkpoint.pt`` has what is alike. The whole is the network and its optimizer's state."""
    network = build_model(MODEL, 6)
    wanted = {key: value.numel() for key, value in network.state_dict().items()}
    state = torch.load(folder / name / "whole" / checkpoint.FILE, weights_only=True)
    parts = state.get("parts") or [
        torch.load(folder / name / "whole" / checkpoint.PARTS / each, weights_only=True) for each in state["part_files"]
    ]
    workers, optimizer, choices = CASES[name]
    sharers = choices.get("shard_devices", workers)
    assert len(parts) == workers and state["sharers"] == sharers and (name == "apart") == (not state["part_files"])
    found = {key: value.numel() for key, value in state["model"].items()}
    for part in parts:
        for key, (rows, _, _) in part["shards"].get("model", {}).items():
            found[key] = found.get(key, 0) + rows.numel()
    assert found == wanted
    assert all(not part["shards"] for part in parts[sharers:])
    kept = {"adam": 2, "momentum": 1, "sgd": 0}[optimizer]
    rows = [values for part in parts for _, values in flatten(part["shards"].get("optimizer", {}))]
    assert sum(each[0].numel() for each in rows) == kept * sum(p.numel() for p in network.parameters())


def old_form(state: dict[str, Any], directory: Path) -> None:
    """A checkpoint as version 2 of the schema has it: every tensor whole."""
    parts = [{key: value for key, value in part.items() if key not in ("shards", "name", "schema")} for part in state["parts"]]
    run = state.pop("run")
    kept = {key: state[key] for key in ("model", "optimizer", "curve", "workers", "skipped_steps", "noise")}
    directory.mkdir()
    checkpoint.save(directory, run, state["epoch"], {**kept, "schema": 2, "parts": parts}, step=state["step"])


@pytest.mark.everyday("copies", others="long")
@pytest.mark.parametrize("name", OTHER)
def test_another_mesh_and_earlier_checkpoints_go_on_alike(folder: Path, name: str) -> None:
    """Other workers go on from the shards, and from whole tensors, to the same bits."""
    old_form(checkpoint.load(folder / name / "first"), folder / name / "old")
    read = checkpoint.read(folder / name / "old" / checkpoint.FILE)
    assert (read["schema"], read["sharers"]) == (2, 0)
    launch(on_others, OTHER[name], folder=str(folder), name=name)
    others, of_old = (checkpoint.load(folder / name / each) for each in ("others", "of old"))
    for part in ("model", "optimizer", "hook"):
        assert_same(others[part], of_old[part])
    before, whole = checkpoint.load(folder / name / "first"), checkpoint.load(folder / name / "whole")
    assert others["curve"][0] == before["curve"][0]
    assert others["curve"][1]["loss"] == pytest.approx(whole["curve"][1]["loss"], rel=0.25)


def test_a_damaged_or_missing_shard_leads_to_the_checkpoint_before(folder: Path, tmp_path: Path) -> None:
    for number, damage in enumerate(("truncated", "flipped", "gone")):
        run = tmp_path / str(number)
        shutil.copytree(folder / "copies" / "whole", run)
        names = torch.load(run / checkpoint.FILE, weights_only=True)["part_files"]
        path = run / checkpoint.PARTS / names[1]
        data = bytearray(path.read_bytes())
        rows = torch.load(path, weights_only=True)["shards"]["model"]
        numbers = next(each for each, _, _ in rows.values() if each.numel() > 9).numpy().tobytes()
        data[data.find(numbers) + 3] ^= 1
        path.unlink() if damage == "gone" else path.write_bytes(data if damage == "flipped" else data[:-50])
        for mapped in (False, True):
            state = checkpoint.load(run, mapped=mapped)
            assert state["file"] == checkpoint.PREVIOUS and f"its part {names[1]}" in state["fallback"]


def test_weights_are_whole_for_who_begins_with_them(folder: Path, tmp_path: Path) -> None:
    run = folder / "copies" / "whole"
    wanted = checkpoint.load(run)["model"]
    for path in (run, run / checkpoint.FILE):
        assert_same(dict(weights_in(path)), wanted)
        load_weights(build_model(MODEL, 0), path, MODEL)
    alone = tmp_path / "alone.pt"
    shutil.copy(run / checkpoint.FILE, alone)
    with pytest.raises(UserError, match=r"alone\.pt cannot be read: its part"):
        weights_in(alone)
