"""``paceline train`` for real: one object on stdout, plain lines or a bar on stderr, five files, and a report of them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import paceline
from paceline.cli import main
from paceline.rundir import RunDir

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(paceline.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
FILES = {"prediction.json", "record.jsonl", "predicted.trace.json", "measured.trace.json", "report.html"}
METRICS = (
    "step_time_s samples_per_s compute_s comm_s codec_s exposed_comm_s wire_bytes_per_device memory_bytes low_s high_s "
    "compression_ratio"
)
SMALL = """
import torch
from torch import nn

print("the user's module")

def net():
    print("the user's network")
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

def data():
    x, y = torch.randn(64, 8), torch.arange(64) % 3
    return x, y, x, y
"""


class Run(NamedTuple):
    out: Path
    stdout: str
    stderr: str

    @property
    def data(self) -> dict[str, Any]:
        assert self.stdout.count("\n") == 1, self.stdout
        data: dict[str, Any] = json.loads(self.stdout)
        return data


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "paceline", "train", *arguments]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """LeNet-5 on digits, one epoch, two workers, TernGrad: once for this file."""
    out = tmp_path_factory.mktemp("run") / "digits"
    words = ["--model", "lenet5", "--data", "digits", "--workers", "2", "--compression", "terngrad", "--epochs", "1"]
    done = subprocess.run(
        command(*words, "--seed", "20260102", "--json", "--out", str(out)),
        capture_output=True, text=True, timeout=250, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Run(out, done.stdout, done.stderr)


def test_stdout_is_one_object_with_measured_and_predicted(digits: Run) -> None:
    data = digits.data
    for metrics in (data, data["predicted"]):
        assert all(isinstance(metrics[name], int | float) for name in METRICS.split())
        assert metrics["step_time_s"] == pytest.approx(metrics["compute_s"] + metrics["exposed_comm_s"])
        assert metrics["low_s"] <= metrics["step_time_s"] <= metrics["high_s"]
        assert isinstance(metrics["bottleneck"], str) and isinstance(metrics["assumptions"], list)
    assert data["wire_bytes_per_device"] == data["predicted"]["wire_bytes_per_device"] > 0
    assert data["compression_ratio"] > 5
    assert 0.1 < data["accuracy"] <= 1
    assert (data["epochs"], data["seed"], data["out"]) == (1, 20260102, str(digits.out))
    assert data["steps"] == 1438 // 64 == 22


def test_stderr_is_plain_lines(digits: Run) -> None:
    lines = digits.stderr.splitlines()
    assert len([line for line in lines if line.startswith("terngrad: epoch 1/1  loss ")]) == 1
    assert any(line.startswith("terngrad: predicted: ") for line in lines)
    assert "\x1b" not in digits.stderr and "━" not in digits.stderr and "Traceback" not in digits.stderr


def test_the_directory_holds_the_five_files(digits: Run) -> None:
    assert {path.name for path in digits.out.iterdir()} == FILES | {"checkpoint.pt"}
    contents = RunDir(digits.out).read()
    assert contents.labels == ["terngrad"]
    assert contents.records["terngrad"].step_time_s == digits.data["step_time_s"]
    assert contents.predictions["terngrad"].step_time_s == digits.data["predicted"]["step_time_s"]
    assert {event.lane for event in contents.measured["terngrad"]} == {"compute", "codec", "network"}
    assert contents.predicted["terngrad"]
    for path in digits.out.glob("*.json"):
        assert isinstance(json.loads(path.read_text()), dict)


def test_the_report_can_be_written_again(digits: Run, capsys: pytest.CaptureFixture[str]) -> None:
    report = digits.out / "report.html"
    before = report.read_text()
    report.unlink()
    assert main(["report", str(digits.out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(report)}
    assert report.read_text() == before and "terngrad" in before


def test_what_is_not_more_than_the_checkpoint_has_is_refused(digits: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for words, what in ((["--epochs", "1"], "already has 1 epochs"), (["--epochs", "2", "--lr", "0.5"], "lr 0.01 -> 0.5")):
        assert main(["train", "--resume", str(digits.out), *words]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("paceline: ") and err.count("\n") == 1 and what in err


def test_a_broken_run_directory_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "record.jsonl").write_text("{not json\n")
    (tmp_path / "checkpoint.pt").write_text("not a checkpoint\nat all\n")
    for words in (["report", str(tmp_path)], ["train", "--resume", str(tmp_path)]):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == "" and "cannot be read" in err and err.count("\n") == 1, err


def test_a_terminal_gets_a_bar_and_stdout_only_the_answer(tmp_path: Path) -> None:
    """Under a pseudo-terminal, with a network whose module prints."""
    (tmp_path / "small.py").write_text(SMALL)
    words = ["--model", "small:net", "--data", "small:data", "--workers", "2", "--global-batch", "8", "--epochs", "2"]
    main_end, terminal = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(main_end, 4096):
                seen.append(part)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    environment = {**ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    done = subprocess.run(
        command(*words, "--json", "--out", "out"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=terminal, text=True,
        timeout=250, env=environment, cwd=tmp_path,
    )  # fmt: skip
    os.close(terminal)
    reader.join(timeout=20)
    os.close(main_end)
    shown = b"".join(seen).decode(errors="replace")
    assert done.returncode == 0, shown
    assert Run(tmp_path, done.stdout, shown).data["epochs"] == 2
    assert "━" in shown and "16/16" in shown and "steps" in shown
    assert "epoch 1/2" not in shown and "epoch 2/2" in shown
    assert "the user's network" in shown and "the user's" not in done.stdout
