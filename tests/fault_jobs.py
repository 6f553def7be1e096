"""A job of two ranks that gets a fault, and what comes of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from distributed import free_port
from fault_ranks import LIMIT_S, PLAIN, TRAINING, Rank
from paceline.training.runs.checkpoints import checkpoint


@dataclass
class Outcome:
    """What came of a fault.

    Attributes:
        seconds: until the last rank had ended, or gone on, after the fault could be noticed.
        hung: ranks that had not by ``LIMIT_S``, and were ended.
        line: what names rank and cause.
        problems: everything that was not as it should be, in words; empty is good.
    """

    fault: str
    seconds: float = 0.0
    hung: int = 0
    line: str = ""
    problems: list[str] = field(default_factory=list)


class Job:
    """Two ranks that write to one directory."""

    def __init__(self, outcome: Outcome, folder: Path, words: Sequence[str] = PLAIN, out: Path | None = None) -> None:
        self.outcome, self.folder, self.words = outcome, folder, list(words)
        self.out = out or folder / "out"
        self.ranks: list[Rank] = []
        self.fault_at = 0.0

    def start(self, *more: Sequence[str]) -> Job:
        """Start both ranks, each with further words."""
        shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        own = {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        self.ranks = [
            Rank(
                [*TRAINING, *self.words, "--out", str(self.out), *(more[rank] if more else ())],
                self.folder / str(rank),
                {**shared, **own, "RANK": str(rank)},
            )
            for rank in (0, 1)
        ]
        return self

    def trains(self, epoch: int = 2) -> Job:
        """Wait until this many epochs are through."""
        self.check(self.ranks[0].said(f"epoch {epoch}/"), "it does not train")
        return self

    def happens(self, detectable_in_s: float = 0.0) -> None:
        """The fault is there, and can be noticed so many seconds later."""
        self.fault_at = time.monotonic() + detectable_in_s

    def check(self, true: bool, problem: str) -> None:
        if not true:
            told = " | ".join(f"rank {number}: {rank.lines[-3:]}" for number, rank in enumerate(self.ranks))
            self.outcome.problems.append(f"{problem} ({told})")

    def ends(self, *codes: int | None, limit_s: float = LIMIT_S) -> None:
        """Wait for the ranks; each has its code, where one is given."""
        until = max(self.fault_at, time.monotonic()) + limit_s
        for number, (rank, code) in enumerate(zip(self.ranks, codes, strict=True)):
            while not rank.ended_at and time.monotonic() < until:
                time.sleep(0.02)
            if not rank.ended_at:
                self.outcome.hung += 1
                self.check(False, f"rank {number} hangs")
                continue
            self.outcome.seconds = max(self.outcome.seconds, rank.ended_at - self.fault_at)
            self.check(
                code in (None, rank.process.returncode), f"rank {number} ended with {rank.process.returncode}, not {code}"
            )

    def says(self, text: str, rank: int = 0) -> None:
        line = self.ranks[rank].error
        self.outcome.line = self.outcome.line or line
        self.check(text in line, f"rank {rank} does not say {text!r}")

    def goes_on(self, line: str = "") -> None:
        """Epochs end after the fault too; then SIGTERM ends both in order."""
        known = len(self.ranks[0].lines)
        self.check(self.ranks[0].said(": epoch ", LIMIT_S, known), "it does not go on")
        self.outcome.seconds = max(0.0, time.monotonic() - self.fault_at)
        self.outcome.line = self.outcome.line or line or "goes on"
        self.stop()

    def stop(self) -> None:
        """SIGTERM, as Slurm sends it."""
        seconds, line = self.outcome.seconds, self.outcome.line
        for rank in self.ranks:
            rank.signal(signal.SIGTERM)
        self.fault_at = time.monotonic()
        self.ends(143, 143)
        self.outcome.seconds, self.outcome.line = max(seconds, self.outcome.seconds), line
        self.keeps()

    def keeps(self, least: tuple[int, int] = (1, 0)) -> tuple[int, int]:
        """What is saved is whole, and of this step or a later one."""
        try:
            state = checkpoint.load(self.out)
        except Exception as error:
            self.check(False, f"nothing is kept: {error}")
            return 0, 0
        place = (state["epoch"], state["step"])
        self.check(place >= least, f"{place} is kept, {least} was saved")
        return place

    def saved(self) -> tuple[int, int]:
        """The place of the newest checkpoint so far."""
        with suppress(Exception):
            state = checkpoint.load(self.out)
            return state["epoch"], state["step"]
        return 0, 0

    def clean_up(self) -> None:
        for rank in self.ranks:
            with suppress(OSError):
                for pid in {rank.pid, rank.process.pid} if not rank.ended_at else ():
                    os.kill(pid, signal.SIGKILL)
            rank.process.wait(150)
