"""Checkpoints in the background: one at a time, of a copy, by every rank; what goes wrong is said and loses nothing."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distributed import launch
from paceline.errors import UserError
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.checkpoints.checkpoint_writer import CheckpointWriter, is_shared
from training_jobs import job


def state(value: float) -> dict[str, Any]:
    return {"model": {"a": torch.full((1000,), value)}, "curve": []}


def test_what_is_written_is_what_was_there_when_it_was_asked(tmp_path, monkeypatch):
    """Training changes its tensors in place while the file is written; the next one waits, and uses the same memory."""
    go, save = threading.Event(), checkpoint.save

    def slow(*given: Any, **more: Any) -> None:
        assert go.wait(60)
        save(*given, **more)

    monkeypatch.setattr(checkpoint, "save", slow)
    writer = CheckpointWriter(job(tmp_path), 0, 1, shared=True)
    shared, own = state(1.0), {"rank": 0, "hook": {"residual": torch.ones(7)}}
    writer.save(0, 3, shared, own)
    shared["model"]["a"].fill_(2.0)
    own["hook"]["residual"].fill_(2.0)
    assert writer.busy and not (tmp_path / checkpoint.FILE).exists()
    go.set()
    writer.save(0, 6, shared, own)
    writer.finish()
    assert not writer.busy
    for file, step, value in ((checkpoint.PREVIOUS, 3, 1.0), (checkpoint.FILE, 6, 2.0)):
        read = checkpoint.read(tmp_path / file)
        assert read["step"] == step and set(read["model"]["a"].tolist()) == {value} == set(read["hook"][0]["residual"].tolist())


def test_a_failure_is_said_once_and_the_last_one_is_an_error(tmp_path, monkeypatch):
    def full(*given: Any, **more: Any) -> None:
        raise UserError("cannot write x: No space left on device", "make room")

    writer = CheckpointWriter(job(tmp_path), 0, 1, shared=True)
    writer.save(0, 1, state(1), {})
    writer.finish()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", full)
        writer.save(0, 2, state(2), {})
        while writer.busy:
            pass
        assert writer.failure() == "cannot write x: No space left on device; make room" and writer.failure() == ""
        writer.save(0, 3, state(3), {})
        with pytest.raises(UserError, match="No space left"):
            writer.finish()
    assert checkpoint.load(tmp_path)["step"] == 1
    writer.save(0, 4, state(4), {})
    writer.finish()
    assert checkpoint.load(tmp_path)["step"] == 4


def test_a_failure_of_the_one_before_is_none_of_the_last(tmp_path, monkeypatch):
    """It fails while the last one waits for it."""
    save, calls = checkpoint.save, []

    def full_at_first(*given: Any, **more: Any) -> None:
        calls.append(more)
        if len(calls) == 1:
            time.sleep(0.3)
            raise UserError("cannot write x: No space left on device", "make room")
        save(*given, **more)

    writer = CheckpointWriter(job(tmp_path), 0, 1, shared=True)
    monkeypatch.setattr(checkpoint, "save", full_at_first)
    assert writer.save(0, 1, state(1), {}) == ""
    assert writer.save(0, 2, state(2), {}) == "cannot write x: No space left on device; make room"
    writer.finish()
    assert checkpoint.load(tmp_path)["step"] == 2


def full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def write(rank: int, workers: int, out: str) -> list[Any]:
    """Parts in files, then collected by rank 0, then with a rank that cannot write its own."""
    shared = is_shared(Path(out))
    apart = is_shared(Path(out) if rank == 0 else Path(out) / "elsewhere")
    run = job(out, timeout_s=20.0)
    said = []
    for number, (in_files, fails) in enumerate([(shared, False), (apart, False), (shared, True)]):
        writer, usual = CheckpointWriter(run, rank, workers, in_files), torch.save
        dist.barrier()
        if fails and rank == 1:
            torch.save = full
        writer.save(
            0, number + 1, state(number) if rank == 0 else {}, {"rank": rank, "hook": {"residual": torch.ones(5) * rank}}
        )
        try:
            writer.finish()
            said.append("")
        except UserError as error:
            said.append(str(error))
        torch.save = usual
    return [shared, apart, *said]


def test_every_rank_writes_its_part_and_the_one_that_cannot_is_named(tmp_path):
    zero, one = launch(write, 2, out=str(tmp_path))
    assert zero[:4] == one[:4] == [True, False, "", ""]
    assert zero[4].startswith("rank 1 could not write its part of the checkpoint in ")
    assert "No space left on device" in one[4] and ".1.pt" in one[4]
    left = {path.name for path in (tmp_path / checkpoint.PARTS).iterdir()}
    assert not [name for name in left if name.startswith("0-3-")]  # of the one that was not written
    for file, names in ((checkpoint.PREVIOUS, 2), (checkpoint.FILE, 0)):
        read = checkpoint.read(tmp_path / file)
        assert len(read["part_files"]) == names and [part["rank"] for part in read["parts"]] == [0, 1]
        assert [hook["residual"].sum().item() for hook in read["hook"]] == [0.0, 5.0]
