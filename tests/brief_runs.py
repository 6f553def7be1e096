"""A whole training run in the process of a test, without the time that it takes to measure the machine."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from paceline.errors import Interrupted
from paceline.training.runs import step_agreement, worker
from paceline.training.runs.stop_requests import StopRequests
from training_jobs import quick


def run_briefly(run: Any, rank: int, stops: StopRequests | None = None) -> str:
    """Train as one rank of a group. Returns what an interrupted one says."""
    quick()
    step_agreement.EVERY_S = 0.0  # steps take a millisecond
    dist.barrier()
    try:
        worker.train(worker.prepare(run, first=rank == 0), torch.device("cpu"), stops)
    except Interrupted as stop:
        return f"{stop.code} {stop}"
    return ""


class AskedAt(StopRequests):
    """Asked to stop by SIGTERM as soon as the run has come so far; looked at once a step."""

    def __init__(self, looks: int) -> None:
        self._left = looks
        super().__init__()

    @property
    def number(self) -> int:
        self._left -= 1
        return 15 if self._left < 0 else 0

    @number.setter
    def number(self, value: int) -> None:
        pass
