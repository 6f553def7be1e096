"""Choices of computing as ``train`` executes them, against plain loops of torch."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from distributed import launch, launch_once
from paceline.errors import UserError
from paceline.rundir import RunDir
from paceline.strategy import Strategy
from paceline.training.runs import loop, worker
from paceline.training.runs.checkpoints.run_state import own_part, restore, shared_state, snapshot
from paceline.training.runs.compute.prepared_network import check_computes, prepared
from paceline.training.runs.data import load
from paceline.training.runs.starting_model import starting_model
from paceline.training.runs.trainers import make_trainer
from paceline.training.runs.training_run import TrainingRun

DATA, BATCH, STEPS = "user_module:fewer", 24, 3


def run_of(workers: int, *, model: str = "user_module:even", out: str = "unused", **choices: Any) -> TrainingRun:
    settings = {name: choices.pop(name) for name in ("compile", "epochs", "batch_growth") if name in choices}
    strategy = Strategy.of(world_size=workers, global_batch_size=BATCH, **choices)
    return TrainingRun(model=model, data=DATA, strategy=strategy, **{"epochs": 2, "lr": 0.05, "out": out, **settings})


def trainer_of(run: TrainingRun) -> loop.Trainer:
    return make_trainer(run, prepared(run, starting_model(run)), load(run.data), torch.device("cpu"))[0]


def stepped(run: TrainingRun, steps: int = STEPS) -> dict[str, Any]:
    """Weights, losses and bytes of a rank's first steps."""
    trainer = trainer_of(run)
    batches = trainer.batches(0)
    losses = [float(trainer._step(*next(batches))) for _ in range(steps)]
    return {"weights": {n: v.clone() for n, v in trainer.weights().items()}, "losses": losses, "sent": trainer.times.sent}


def by_hand(run: TrainingRun, rank: int) -> dict[str, Any]:
    """The same steps in a loop as a user of torch writes it: DDP, autocast, no_sync."""
    model, data = DistributedDataParallel(starting_model(run), bucket_cap_mb=25), load(run.data)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    order = trainer_of(replace(run, strategy=run.strategy.changed(precision="fp32"))).order(0)
    own, count = run.strategy.micro_batch_size, run.strategy.parallelism.micro_batches
    losses: list[float] = []
    for step in range(STEPS):
        first = step * BATCH + rank * own * count
        total = 0.0
        for micro in range(count):
            rows = order[first + micro * own :][:own]
            model.require_backward_grad_sync = micro == count - 1
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.cross_entropy(model(data.train_x[rows]), data.train_y[rows])
            (loss / count).backward()
            total += float(loss) / count
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return {"weights": model.module.state_dict(), "losses": losses}


def oracles(rank: int, workers: int) -> dict[str, Any]:
    with torch.random.fork_rng():
        whole, parts = (stepped(run_of(workers, grad_accum_steps=count)) for count in (1, 3))
        coded = [stepped(run_of(workers, grad_accum_steps=count, compression="int8")) for count in (1, 3)]
        narrow = run_of(workers, precision="bf16", grad_accum_steps=2)
        found = stepped(narrow), by_hand(narrow, rank)
    return {
        "accumulated": _farthest(whole, parts),
        "bytes": [each["sent"] for each in (whole, parts)],
        "coded": _farthest(*coded),
        "coded bytes": [each["sent"] for each in coded],
        "same bits": all(torch.equal(v, found[1]["weights"][n]) for n, v in found[0]["weights"].items()),
        "losses": [each["losses"] for each in found],
    }


def _farthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(float((v - other["weights"][n]).abs().max()) for n, v in one["weights"].items())


def test_micro_batches_add_up_to_one_batch_and_are_exchanged_once() -> None:
    for result in launch_once(oracles, 2):
        assert result["accumulated"] < 1e-6 and result["bytes"][0] == result["bytes"][1]
        assert result["coded"] < 1e-3 and result["coded bytes"][0] == result["coded bytes"][1] < result["bytes"][0]


def test_autocast_is_that_of_a_loop_by_hand_bit_for_bit() -> None:
    for result in launch_once(oracles, 2):
        assert result["same bits"] and result["losses"][0] == pytest.approx(result["losses"][1], abs=1e-6)


RESUMED: list[dict[str, Any]] = [
    {"precision": "bf16", "grad_accum_steps": 2, "recompute": "full", "compression": "int8"},
    {"precision": "bf16", "grad_accum_steps": 2, "recompute": "full", "compression": "int8", "sharding": "zero3"},
    {"precision": "bf16", "grad_accum_steps": 2, "sharding": "zero1", "compression": "topk"},
    {"precision": "bf16", "stored_weights": "bf16", "grad_accum_steps": 2},
    {"precision": "bf16", "grad_accum_steps": 2, "sync_every": 2},
    {"batch_growth": "48@24", "compression": "int8"},
]


class _Stop(Exception):
    """End of a run within an epoch."""


def resumed(rank: int, workers: int) -> list[bool]:
    """Return for each case whether a run that stops inside an epoch ends with the bits of one that does not."""
    same: list[bool] = []
    for choices in RESUMED:
        run = run_of(workers, model="user_module:unnormalized", **choices)
        kept: dict[str, Any] = {}
        ends: list[dict[str, Any]] = []
        for part in ("whole", "first", "rest"):
            trainer = trainer_of(run)

            def stop(number: int, trainer: loop.Trainer = trainer, part: str = part, saved: dict[str, Any] = kept) -> None:
                if part == "first" and number == 1:
                    own = own_part(trainer)
                    saved.update(snapshot({**shared_state(trainer, []), "parts": [own], "hook": [own["hook"]], "step": 2}))
                    raise _Stop

            try:
                if part == "rest":
                    _restore(trainer, kept, workers)
                trainer.train_epoch(0, stop)
            except _Stop:
                continue
            ends.append(snapshot({**trainer.weights(), **{"rows": trainer.shards().get("model", {})}}))
        same.append(_equal(ends[0], ends[1]))
    return same


def _restore(trainer: loop.Trainer, kept: dict[str, Any], workers: int) -> None:
    from paceline.training.runs.checkpoints.checkpoint import with_shards

    parts: list[Any] = [None] * workers
    torch.distributed.all_gather_object(parts, kept["parts"][0])
    if trainer.sharers:
        kept |= with_shards(kept, [part["shards"] for part in parts], False)
    restore(trainer, {**kept, "parts": parts, "hook": [part["hook"] for part in parts]})


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return all(_equal(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


@pytest.mark.long
def test_a_run_that_stops_between_steps_goes_on_bit_for_bit() -> None:
    for result in launch(resumed, 2):
        assert result == [True] * len(RESUMED)


def compiled(rank: int, workers: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, choices in {
        "ddp": {},
        "recomputed": {"recompute": "full"},
        "zero3": {"sharding": "zero3", "compression": "int8"},
        "local": {"sync_every": 2, "grad_accum_steps": 2},
    }.items():
        run = run_of(workers, model="user_module:blocks", **choices)
        eager, compiled_run = stepped(run), stepped(replace(run, compile=True))
        found[name] = max(abs(a - b) for a, b in zip(eager["losses"], compiled_run["losses"], strict=True))
    return found


@pytest.mark.long
def test_compiled_steps_are_those_of_the_written_network() -> None:
    for result in launch(compiled, 2):
        assert max(result.values()) < 1e-5, result


def measured(rank: int, workers: int, folder: str) -> dict[str, float]:
    """Peak memory of runs with and without recomputation. Freed tensors go back to the system at once."""
    ctypes.CDLL("libc.so.6").mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD
    found: dict[str, float] = {}
    for name in ("full", "none"):
        run = run_of(workers, model="user_module:deep", out=f"{folder}/{name}", recompute=name, epochs=1)
        ready = worker.prepare(run, first=rank == 0)
        worker.train(TrainingRun.from_json(ready.to_json()), torch.device("cpu"))
        torch.distributed.barrier()
        found[name] = RunDir(run.out).read().records[ready.label].memory_bytes
    return found


@pytest.mark.long
def test_recomputation_lowers_the_measured_peak(tmp_path: Path) -> None:
    found = launch(measured, 1, folder=str(tmp_path))[0]
    assert found["full"] < 0.6 * found["none"], found


def test_what_the_machine_or_the_network_lacks_is_refused() -> None:
    network = nn.Sequential(nn.Linear(29, 9), nn.BatchNorm1d(9), nn.Linear(9, 5))
    for choices, said in (
        ({"precision": "fp16"}, "fp16 on a CPU"),
        ({"precision": "tf32"}, "tf32 on a CPU"),
        ({"precision": "bf16", "sharding": "zero3"}, "weights of 1, a batch norm"),
        ({"recompute": "selective:mlp"}, "no block has a module mlp"),
    ):
        with pytest.raises(UserError, match=said):
            check_computes(run_of(2, **choices), network, "cpu")
