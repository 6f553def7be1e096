"""``paceline train`` for real: one object on stdout, a bar on stderr, five files, and a report of them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import warm_python
from paceline.cli import main
from paceline.cli.commands.train import branches_screen
from paceline.prediction.learning.branched_batch import BranchedBatch, BranchedRun
from paceline.rundir import RunDir

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
    return nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))

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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two epochs on two workers with TernGrad under a pseudo-terminal, of a network whose module prints: once for this file."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "small.py").write_text(SMALL)
    words = ["--model", "small:net", "--data", "small:data", "--workers", "2", "--global-batch", "8", "--epochs", "2"]
    words += ["--compression", "terngrad", "--seed", "20260102", "--momentum", "0.8", "--json", "--out", str(folder / "out")]
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
    environment = {**warm_python.ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    done = subprocess.run(
        [warm_python.executable(), "-m", "paceline", "train", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        timeout=250,
        env=environment,
        cwd=folder,
    )
    os.close(terminal)
    reader.join(timeout=100)
    os.close(main_end)
    shown = b"".join(seen).decode(errors="replace")
    assert done.returncode == 0, shown
    return Run(folder / "out", done.stdout, shown)


def test_stdout_is_one_object_with_measured_and_predicted(trained: Run) -> None:
    data = trained.data
    for metrics in (data, data["predicted"]):
        assert all(isinstance(metrics[name], int | float) for name in METRICS.split())
        assert metrics["step_time_s"] == pytest.approx(metrics["compute_s"] + metrics["exposed_comm_s"])
        assert metrics["low_s"] <= metrics["step_time_s"] <= metrics["high_s"]
        assert isinstance(metrics["bottleneck"], str) and isinstance(metrics["assumptions"], list)
    assert data["wire_bytes_per_device"] == data["predicted"]["wire_bytes_per_device"] > 0
    assert data["compression_ratio"] > 5
    assert 0.1 < data["accuracy"] <= 1
    assert (data["epochs"], data["seed"], data["out"]) == (2, 20260102, str(trained.out))
    assert data["steps"] == 2 * 64 // 8


def test_the_directory_holds_the_five_files(trained: Run) -> None:
    assert {path.name for path in trained.out.iterdir()} == FILES | {
        "checkpoint.pt",
        "checkpoint.previous.pt",
        "checkpoint.parts",
        "progress.json",
    }
    reached = json.loads((trained.out / "progress.json").read_text())
    assert reached["epoch"] == 2 and reached["workers"] == 2 and reached["samples_per_s"] > 0
    contents = RunDir(trained.out).read()
    assert contents.labels == ["terngrad"]
    assert contents.records["terngrad"].step_time_s == trained.data["step_time_s"]
    assert contents.records["terngrad"].recipe["options"] == {"momentum": 0.8, "weight_decay": 0.0}
    assert contents.predictions["terngrad"].step_time_s == trained.data["predicted"]["step_time_s"]
    assert {event.lane for event in contents.measured["terngrad"]} == {"compute", "codec", "network"}
    assert contents.predicted["terngrad"]
    for path in trained.out.glob("*.json"):
        assert isinstance(json.loads(path.read_text()), dict)


def test_the_report_can_be_written_again(trained: Run, capsys: pytest.CaptureFixture[str]) -> None:
    report = trained.out / "report.html"
    before = report.read_text()
    report.unlink()
    assert main(["report", str(trained.out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(report)}
    assert report.read_text() == before and "terngrad" in before


def test_what_is_not_more_than_the_checkpoint_has_is_refused(trained: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for words, what in (
        (["--epochs", "2"], "already has 2 epochs"),
        (["--epochs", "3", "--lr", "0.5"], "lr 0.01 -> 0.5"),
        (["--epochs", "3", "--momentum", "0.5"], "momentum 0.8 -> 0.5"),
        (["--epochs", "3", "--optimizer", "lamb"], "optimizer 'momentum' -> 'lamb'"),
    ):
        named = ["--model", "small:net", "--data", "small:data"]
        assert main(["train", "--resume", str(trained.out), *named, *words]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("paceline: ") and err.count("\n") == 1 and what in err


def test_a_broken_run_directory_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "record.jsonl").write_text("{not json\n")
    (tmp_path / "checkpoint.pt").write_text("not a checkpoint\nat all\n")
    for words in (["report", str(tmp_path)], ["train", "--resume", str(tmp_path)]):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == "" and "cannot be read" in err and err.count("\n") == 1, err


def test_a_terminal_gets_a_bar_and_stdout_only_the_answer(trained: Run) -> None:
    shown = trained.stderr
    assert "━" in shown and "16/16" in shown and "steps" in shown
    assert "epoch 1/2" not in shown and "epoch 2/2" in shown
    assert "the user's network" in shown and "the user's" not in trained.stdout


def test_a_bound_is_told_from_a_value() -> None:
    losses = (BranchedRun(8, 1.0), BranchedRun(16, 1.005), BranchedRun(32, 1.3))
    assert "samples: 16" in branches_screen(BranchedBatch(100, losses), "runs/mine").brief
    assert "samples: at least 16" in branches_screen(BranchedBatch(100, losses[:2]), "runs/mine").brief
