"""``--report``: the answer also as a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import run
from planning_commands import JOB, PLAN


@pytest.mark.parametrize(
    "command", [f"predict {JOB}", f"{PLAN} --goal cheapest", f"whatif {JOB} --change nodes=4", f"explain {JOB}"]
)
def test_report(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, f"{command} --report {tmp_path}")
    assert (code, err) == (0, "") and out.splitlines()[-1] == f"report: {tmp_path}/report.html"
    assert "<svg" in (tmp_path / "report.html").read_text()
