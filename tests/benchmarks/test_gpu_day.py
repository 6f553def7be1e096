"""The steps of a day with a GPU fit its minutes, call scripts that exist, and are those of the page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_day

ROOT = Path(__file__).parents[2]


def test_the_dry_run_lists_every_step_within_the_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_day.main(["--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs" / "gpu-day.md").read_text()
    for gpus in (1, 8):
        steps = gpu_day.chosen(gpus)
        assert sum(step.limit(gpus) for step in steps) <= gpu_day.MINUTES
        assert steps, gpus
    for step in gpu_day.STEPS:
        assert sum(step.name in line and step.decides in line for line in lines) == sum(m > 0 for m in step.minutes)
        minutes = ", ".join(f"{m:g}" if m else "-" for m in step.minutes)
        assert f"| `{step.name}` | {minutes} |" in page
        scripts = [part for part in step.command if part.endswith(".py")]
        assert scripts and all((ROOT / script).exists() for script in scripts)
    must = [f"`{step.name}`" for step in gpu_day.STEPS if step.must]
    assert f"{', '.join(must[:-1])} or {must[-1]} failed" in page.replace("\n", " ")


def test_a_step_that_fails_or_hangs_does_not_end_the_day(tmp_path: Path) -> None:
    for code, minutes, outcome in (
        ("", 1.0, "done"),
        ("raise SystemExit(3)", 1.0, "failed"),
        ("input()\n" * 9, 0.005, "too slow"),
    ):
        code = code.replace("input()", "import time; time.sleep(5)")
        step = gpu_day.Step("toy", ("-c", code), (minutes, minutes), "nothing", must=True)
        assert gpu_day.run(step, 1, tmp_path)["outcome"] == outcome


@pytest.mark.long
@pytest.mark.parametrize("step", ["waits", "optimizers", "overlap", "sharded", "exchanges"])
def test_every_measurement_runs_on_small_tensors_of_the_cpu(step: str, tmp_path: Path) -> None:
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *(ranks if step in ("overlap", "sharded", "exchanges") else [])]
    command += [str(ROOT / "benchmarks" / "gpu_day_rank.py"), step, "--device", "cpu", "--out", str(tmp_path)]
    path = os.pathsep.join(str(ROOT / part) for part in ("src", "tests", "benchmarks"))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = (tmp_path / f"{step}.jsonl").read_text().splitlines()
    assert rows and all("these figures mean nothing" in row for row in rows)
