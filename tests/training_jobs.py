"""A small training run of a network and data of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.strategy import Strategy
from paceline.training.training_run import TrainingRun

MODEL, DATA = "user_module:network", "user_module:samples"
"""Names of the user's network and data."""


def job(
    out: Path | str, compression: str = "dense", optimizer: str = "momentum", workers: int = 3, **changes: Any
) -> TrainingRun:
    """Three epochs on so many workers."""
    strategy = Strategy.of(world_size=workers, global_batch_size=24, compression=compression, optimizer=optimizer)
    return TrainingRun(
        **{"model": MODEL, "data": DATA, "strategy": strategy, "epochs": 3, "out": str(out), "seed": 6, **changes}
    )
