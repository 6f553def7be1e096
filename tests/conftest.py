"""Fixtures: a run directory with the two runs of the demonstration; which tests do not run beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest

import samples
from paceline.rundir import RunDir

# They build networks, time something or write where others do: one after another, beside the rest.
_IN_A_ROW = ("lab/", "hardware/", "test_bench", "test_docs", *(f"training/test_{name}" for name in ("lab", "guards", "lost")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups for ``pytest -n``: those in a row are one, every other file is one, so that its fixtures are made once."""
    for item in items:
        path = item.path.relative_to(Path(__file__).parent).as_posix()
        item.add_marker(pytest.mark.xdist_group("in a row" if path.startswith(_IN_A_ROW) else path))


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    directory = RunDir(tmp_path / "run")
    for label in ("dense", "terngrad"):
        directory.write_prediction(label, samples.metrics(label))
        directory.add_record(label, samples.record(label))
    return directory
