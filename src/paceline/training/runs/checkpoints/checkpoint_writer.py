"""Checkpoints in the background: training continues while each rank writes its part of a copy of the state."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from paceline.errors import UserError
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.checkpoints.run_state import snapshot
from paceline.training.runs.training_run import TrainingRun

LOOK_S = 0.02
"""Between two looks whether the other ranks have written their parts."""


class CheckpointWriter:
    """Writer of the checkpoints of one run, on each of its ranks; every rank must call ``save`` at the same steps.

    At most one is in flight, and ``save`` waits for the previous one. A rank that cannot write a checkpoint reports it, and
    training continues; for the last one of a run it is an error (``finish``). Files of before are kept in any case.

    Args:
        shared: whether all ranks see one directory: each writes its part into it. Otherwise rank 0 collects the parts, and
            every rank waits for that.
    """

    def __init__(self, run: TrainingRun, rank: int, workers: int, shared: bool) -> None:
        self._run, self._rank, self._workers = run, rank, workers
        self._in_files = shared and workers > 1
        self._directory = Path(run.out)
        mark = [secrets.token_hex(3)]  # so that a resumed run overwrites nothing that it may still need
        if workers > 1:
            dist.broadcast_object_list(mark, 0)
        self._mark: str = mark[0]
        if rank == 0:
            checkpoint.clear_leftovers(self._directory)
        if workers > 1:
            dist.barrier()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._copy: dict[str, Any] = {}

    @property
    def busy(self) -> bool:
        """True if a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, epoch: int, step: int, shared: Mapping[str, Any], own: Mapping[str, Any]) -> str:
        """Copy the state and write it in the background.

        Args:
            epoch, step: epochs that are complete, and steps of the next one.
            shared: state that is equal on every rank, written by rank 0. ``own``: the part of this rank.

        Returns:
            The failure of the previous checkpoint since ``failure`` was called; empty if there was none.
        """
        self._join()
        failed = self.failure()  # it is none of this one
        state = {"own": own, **({"shared": shared} if self._rank == 0 else {})}
        self._copy = snapshot(state, self._copy)
        parts: list[Any] = [self._copy["own"]]
        if not self._in_files and self._workers > 1:
            gathered: list[Any] | None = [None] * self._workers if self._rank == 0 else None
            dist.gather_object(self._copy["own"], gathered)
            parts = gathered or []
        if self._in_files or self._rank == 0:
            where = (epoch, step)
            self._thread = threading.Thread(target=self._guarded, args=(where, parts), name="paceline-checkpoint", daemon=True)
            self._thread.start()
        return failed

    def failure(self) -> str:
        """Return the failure since the last call; empty if there was none."""
        failed, self._error = self._error, None
        return "" if failed is None else str(failed)

    def finish(self) -> None:
        """Wait for the last checkpoint. Raises UserError if it could not be written."""
        self._join()
        failed, self._error = self._error, None
        if failed is not None:
            raise failed

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _guarded(self, where: tuple[int, int], parts: Sequence[Mapping[str, Any]]) -> None:
        try:
            self._write(where, parts)
        except Exception as error:  # raised where training can hear it
            self._error = error

    def _write(self, where: tuple[int, int], parts: Sequence[Mapping[str, Any]]) -> None:
        epoch, step = where
        names = [f"{epoch}-{step}-{self._mark}.{rank}.pt" for rank in range(self._workers)]
        if self._in_files:
            self._write_part(names[self._rank], parts[0])
        if self._rank:
            return
        shared = self._copy["shared"]
        if self._in_files:
            try:
                self._wait_for(names)
                checkpoint.save(self._directory, self._run, epoch, shared, step=step, part_files=names)
            except Exception:
                self._remove(names)  # the disk may be full
                raise
        else:
            checkpoint.save(self._directory, self._run, epoch, {**shared, "parts": list(parts)}, step=step)

    def _write_part(self, name: str, part: Mapping[str, Any]) -> None:
        try:
            checkpoint.write_part(self._directory, name, part)
        except Exception as error:
            with suppress(OSError):  # rank 0 need not wait
                (self._directory / checkpoint.PARTS / f"{name}.failed").write_text(str(error))
            raise

    def _remove(self, names: Sequence[str]) -> None:
        """Remove the parts of a checkpoint that was not written."""
        folder = self._directory / checkpoint.PARTS
        for path in (folder / each for name in names for each in (name, f"{name}.failed")):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _wait_for(self, names: Sequence[str]) -> None:
        """Wait for the parts of all ranks. Raises UserError with the rank whose part is missing."""
        folder, until = self._directory / checkpoint.PARTS, time.monotonic() + self._run.timeout_s
        for rank, name in enumerate(names):
            while not (folder / name).exists():
                failed = (folder / f"{name}.failed").exists()
                if failed or time.monotonic() > until:
                    why = "could not write its part" if failed else f"has not written its part in {self._run.timeout_s:g} s"
                    raise UserError(f"rank {rank} {why} of the checkpoint in {folder}", "see what that rank says")
                time.sleep(LOOK_S)


def is_shared(directory: Path) -> bool:
    """Return whether every rank can see the directory of rank 0. Every rank calls it; ``directory`` exists on rank 0."""
    mark: list[Any] = [None]
    rank, path = dist.get_rank(), None
    if rank == 0:
        path = directory / f".shared-{secrets.token_hex(4)}"
        with suppress(OSError):
            path.touch()
            mark = [path.name]
    dist.broadcast_object_list(mark, 0)
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, mark[0] is not None and (directory / mark[0]).exists())
    if path is not None:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    return all(seen)
