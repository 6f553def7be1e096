"""A small training run of a network and data of the user."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from paceline.hardware import probe
from paceline.strategy import Strategy
from paceline.training.runs import calibrate, worker
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.data import Dataset
from paceline.training.runs.training_run import TrainingRun
from paceline.workload import Workload

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


def quick() -> None:
    """Measure this machine and trace a network once in this process, briefly: how long things take is not asked."""
    calibrate.STEPS, calibrate.ELEMENTS = 1, (1 << 9,)
    probe.SECONDS, probe.COPY_BYTES, probe.LINK_BYTES = 0.0, 1 << 12, 1 << 12
    worker.probe_cluster, worker.describe = _probe_once, _describe_once


_probe_once = functools.cache(probe.probe_cluster)
_describe, _described = worker.describe, dict[tuple[str, str, str], Workload]()


def _describe_once(run: TrainingRun, data: Dataset) -> Workload:
    named = run.model, run.data, run.start
    if named not in _described:
        _described[named] = _describe(run, data)
    return _described[named]


def keep_first() -> None:
    """In this process a directory's checkpoint behind the first epoch is copied to ``first`` beside it."""
    save = checkpoint.save

    def also_first(directory: Path, run: TrainingRun, epoch: int, state: dict[str, Any], **more: Any) -> None:
        save(directory, run, epoch, state, **more)
        if epoch == 1 and not (directory.parent / "first").exists():
            shutil.copytree(directory, directory.parent / "first")

    checkpoint.save = also_first


def flatten(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What is in nested mappings and lists, with its path."""
    if isinstance(state, dict | list):
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from flatten(value, f"{path}/{key}")
    else:
        yield path, state


def assert_same(first: Any, second: Any) -> None:
    """Nested mappings and lists hold the same, tensors bit for bit, and something."""
    a, b = dict(flatten(first)), dict(flatten(second))
    assert a.keys() == b.keys() and a
    for key, value in a.items():
        assert torch.equal(value, b[key]) if isinstance(value, torch.Tensor) else value == b[key], key
