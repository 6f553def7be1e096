"""A sharded run that loses ranks goes on from memory while every row is with a survivor, and else from its checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from brief_runs import run_briefly
from distributed import launch
from everyday import cases_of
from paceline.training.attach import liveness
from paceline.training.attach.hooks.sharded import ShardedHook
from paceline.training.runs import worker
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.checkpoints import surviving_state as survivors
from paceline.training.runs.loop import Trainer
from paceline.training.runs.sharded_loop import ShardedTrainer
from paceline.training.runs.shared_update import SharedUpdate
from paceline.training.runs.training_run import TrainingRun
from training_jobs import assert_same, flatten, job

UNITS = {"bucket_bytes": 1 << 12, "first_bucket_bytes": 1 << 12}
TOPK = {"compression": "topk", "options": {"density": 0.2}}
COPIES: dict[str, tuple[str, dict[str, Any]]] = {
    "zero3": ("adam", {"sharding": "zero3", "shard_devices": 2, **TOPK, **UNITS}),
    "zero2": ("lamb", {"sharding": "zero2", "shard_devices": 2, **TOPK, **UNITS}),
    "zero1": ("adam", {"sharding": "zero1", "shard_devices": 2, **TOPK}),
}
STEPS = 4  # of an epoch
AT = 6  # steps that are done when the group breaks: two of the second epoch


BRIEF: dict[str, Any] = {"data": "user_module:fewest", "epochs": 2, "checkpoint_every": "5"}


def run_of(out: Path, optimizer: str, choices: dict[str, Any], workers: int, **changes: Any) -> TrainingRun:
    run = job(out, optimizer=optimizer, workers=workers, elastic=True, **{**BRIEF, **changes})
    return replace(run, strategy=run.strategy.changed(**choices))


def cut(*_: Any, **__: Any) -> Any:
    raise RuntimeError("connection closed")


def broken(run: TrainingRun, rank: int, breaks: Callable[[Trainer], None]) -> None:
    """Train until the group breaks in the step behind ``AT``: ``breaks`` sees to that."""
    usual = {(kind, name): getattr(kind, name) for kind, name in PATCHED}
    liveness.SETTLE_S, liveness.PATIENCE_S = 0.0, 0.1  # every rank is alive, and who is lost is not asked
    step, done = Trainer._step, 0

    def counted(self: Trainer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal done
        if done == AT:
            breaks(self)
        done += 1
        return step(self, x, y)

    Trainer._step = counted
    with pytest.raises(RuntimeError, match="connection closed"):
        run_briefly(run, rank)
    for (kind, name), method in usual.items():
        setattr(kind, name, method)
    dist.barrier()


PATCHED = [(Trainer, "_step"), (Trainer, "_loss"), (ShardedHook, "reduce"), (SharedUpdate, "_gather")]


def in_backward(trainer: Trainer) -> None:
    """Behind the first exchange of a sharded model's backward pass, before any of another."""
    reduce, loss, calls = ShardedHook.reduce, Trainer._loss, []

    def second(self: ShardedHook, *given: Any) -> None:
        calls.append(given)
        cut() if len(calls) == 2 else reduce(self, *given)

    def whose_gradient_fails(self: Trainer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result = loss(self, x, y)
        result.register_hook(cut)
        return result

    ShardedHook.reduce = second
    if not isinstance(trainer, ShardedTrainer):
        Trainer._loss = whose_gradient_fails


def in_gather(_: Trainer) -> None:
    """When each rank has updated its rows."""
    SharedUpdate._gather = cut


def looked_at(run: TrainingRun) -> dict[str, Any] | None:
    state = survivors.found(Path(run.out), run)
    return state and {key: state[key] for key in ("epoch", "step", "lost", "apart", "model", "optimizer", "hook")}


LOST = {"none": (), "one": (3,), "both": (1, 3), "anew": (1, 3)}


def lose_ranks(rank: int, workers: int, folder: str, cases: list[tuple[str, str]]) -> dict[str, Any]:
    """Broken runs of which all ranks go on, or one is lost, or both who had the same rows; and unbroken ones to compare."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for name, case in cases if case != "one"):
        run_briefly(run_of(Path(folder) / name / "whole", *COPIES[name], workers), rank)
    for name, case in cases:
        optimizer, choices = COPIES[name]
        changes = {"checkpoint_every": "1h"} if case == "anew" else {}
        run = worker.prepare(run_of(Path(folder) / name / case, optimizer, choices, workers, **changes), first=rank == 0)
        broken(run, rank, in_backward)
        all_left = looked_at(run)
        dist.barrier()
        if rank in LOST[case]:
            (Path(run.out) / f"survivor.{rank}.pt").unlink()
        dist.barrier()
        found[f"{name} {case}"] = all_left, looked_at(run)
        run_briefly(run, rank)
        dist.barrier()
        assert not list(Path(run.out).glob(survivors.PATTERN))
    return found


@pytest.fixture(scope="module")
def lost(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The runs that the selected tests look at."""
    cases = [(case["name"], case["case"]) for case in cases_of(request)]
    folder = tmp_path_factory.mktemp("lost")
    return folder, launch(lose_ranks, 4, folder=str(folder), cases=cases)[2]


@pytest.mark.everyday("zero3-none")
@pytest.mark.parametrize(("name", "case"), [("zero1", "none"), ("zero2", "none"), ("zero3", "none")])
def test_a_run_that_broke_goes_on_with_the_same_bits(lost: Any, name: str, case: str) -> None:
    """All ranks are alive, as when a link was cut."""
    folder, found = lost
    rest = found[f"{name} {case}"][1]
    assert (rest["epoch"], rest["step"]) == (1, AT - STEPS)
    assert_ends_alike(folder / name, case)


def assert_ends_alike(folder: Path, case: str) -> None:
    whole, rest = (checkpoint.load(folder / each) for each in ("whole", case))
    for part in ("model", "optimizer", "hook"):
        assert_same(whole[part], rest[part])


@pytest.mark.everyday("zero1-one", others="long")
@pytest.mark.parametrize(("name", "case"), [("zero1", "one"), ("zero2", "one")])
def test_the_copy_of_a_lost_ranks_rows_has_them_and_its_residuals_are_lost(lost: Any, name: str, case: str) -> None:
    _, found = lost
    every, rest = found[f"{name} {case}"]
    assert (rest["epoch"], rest["step"], rest["lost"], rest["apart"]) == (1, AT - STEPS, [3], [])
    assert_same(rest["model"], every["model"])
    assert_same(rest["optimizer"], every["optimizer"])
    assert_same(rest["hook"][:3], every["hook"][:3])
    before, after = (dict(flatten(each["hook"][3])) for each in (every, rest))
    owed = [key for key, value in before.items() if "/residual/" in key and isinstance(value, torch.Tensor) and value.any()]
    assert owed and before.keys() == after.keys()
    for key, value in before.items():
        if key in owed:
            assert not after[key].any()
        else:
            assert torch.equal(value, after[key]) if isinstance(value, torch.Tensor) else value == after[key], key


@pytest.mark.everyday("zero3-both", others="long")
@pytest.mark.parametrize(("name", "case"), [("zero3", "both"), ("zero3", "anew")])
def test_without_a_copy_of_some_rows_the_checkpoint_is_taken(lost: Any, name: str, case: str) -> None:
    """The run resumes from the checkpoint of step 5, or restarts without one. It ends as the uninterrupted run."""
    folder, found = lost
    every, rest = found[f"{name} {case}"]
    assert every["lost"] == [] and rest is None
    assert_ends_alike(folder / name, case)


def torn(rank: int, workers: int, folder: str) -> list[str]:
    """The weights of a rank are part new, part old: nobody may go on from them."""
    run = worker.prepare(run_of(Path(folder), "adam", {"sharding": "zero1", **TOPK}, workers), first=rank == 0)
    broken(run, rank, in_gather)
    return [path.name for path in Path(folder).glob(survivors.PATTERN)]


def test_a_rank_in_the_middle_of_an_update_leaves_nothing(tmp_path: Path) -> None:
    assert launch(torn, 2, folder=str(tmp_path)) == [[]] * 2
