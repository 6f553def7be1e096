"""``paceline explain``: what the step waits for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import answer, run
from planning_commands import JOB


def test_explain(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = answer(capsys, f"explain {JOB} --trace {tmp_path / 'step.json'}")
    assert sum(data["exposed"].values()) == pytest.approx(data["step_time_s"])
    assert data["critical_path"] and data["if_gone"][0]["resource"] == data["bottleneck"]
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    text = run(capsys, f"explain {JOB}")[1]
    assert data["bottleneck"] in text and "Critical path" in text
