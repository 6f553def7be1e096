"""Fixtures: a run directory with the two runs of the demonstration."""

from __future__ import annotations

from pathlib import Path

import pytest

import samples
from paceline.rundir import RunDir


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    directory = RunDir(tmp_path / "run")
    for label in ("dense", "terngrad"):
        directory.write_prediction(label, samples.metrics(label))
        directory.add_record(label, samples.record(label))
    return directory
