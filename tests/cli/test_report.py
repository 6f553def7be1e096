"""``paceline report``: the page of a run directory."""

from __future__ import annotations

import pytest

from command import answer, run
from paceline.rundir import RunDir


def test_report(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, f"report {run_dir.path}") == {"report": str(run_dir.report_path)}
    assert "<html" in run_dir.report_path.read_text()
    assert run(capsys, f"report {run_dir.path}") == (0, f"report: {run_dir.report_path}\n", "")
