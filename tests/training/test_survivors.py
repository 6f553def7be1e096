"""A run that loses a rank goes on from the memory of the others; only what the lost rank owed is lost, and that is said."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from distributed import TESTS, executable, free_port
from fault_driver import FEATURES
from paceline.errors import UserError
from paceline.training import checkpoint, survivors
from training_jobs import job

WARM_WORKERS = "import sys; sys.executable = sys.argv.pop(1); from paceline.cli import main; sys.exit(main())"


def left(folder: Path, rank: int, step: int, workers: int = 3, **changes: Any) -> None:
    hook = {"rank": rank, "step": step, "feedback": {"residual": {"a": torch.full((4,), 1.0 + rank)}, "velocity": {}}}
    shared = {"model": {"a": torch.full((4,), float(step))}, "curve": [], "workers": workers}
    survivors.leave(job(folder, **changes), 1, step, shared, {"rank": rank, "hook": hook})


def test_those_at_the_last_step_count_and_the_lost_one_owes_nothing(tmp_path: Path) -> None:
    run = job(tmp_path)
    assert survivors.found(tmp_path, run) is None
    left(tmp_path, 0, 6)
    left(tmp_path, 2, 7)
    left(tmp_path, 1, 7)
    state = survivors.found(tmp_path, run)
    assert state is not None and (state["epoch"], state["step"], state["lost"]) == (1, 7, [0])
    assert state["model"]["a"].tolist() == [7.0] * 4 and [hook["rank"] for hook in state["hook"]] == [0, 1, 2]
    assert [hook["feedback"]["residual"]["a"][0].item() for hook in state["hook"]] == [0.0, 2.0, 3.0]
    said = (
        "going on from step 7 of epoch 2, in the memory of rank 1, 2 when the group broke; rank 0 was lost, and its residuals"
    )
    assert survivors.said(state) == f"{said} with it"
    survivors.remove(tmp_path)
    assert survivors.found(tmp_path, run) is None


def test_what_is_damaged_or_of_another_run_does_not_count(tmp_path: Path) -> None:
    left(tmp_path, 0, 6)
    left(tmp_path, 1, 9, seed=5)
    left(tmp_path, 2, 9)
    path = tmp_path / "survivor.2.pt"
    path.write_bytes(path.read_bytes()[:-400])
    state = survivors.found(tmp_path, job(tmp_path))
    assert state is not None and state["step"] == 6 and state["lost"] == [1, 2]
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.load(tmp_path)


class Watched:
    """A process with its error stream's lines."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path = TESTS) -> None:
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def wait_for(self, text: str, within_s: float = 120, after: int = 0) -> str:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            for line in self.lines[after:]:
                if text in line:
                    return line
            time.sleep(0.05)
        raise AssertionError(f"no {text!r} in {self.lines}")


WORDS = ["--model", "user_module:small_and_idle", "--data", "user_module:few", "--global-batch", "8", "--epochs", "1000000"]
WORDS += ["--compression", "topk", "--timeout", "5s", "--elastic"]


@pytest.mark.full
def test_a_killed_worker_is_started_again_and_all_go_on_from_memory(tmp_path: Path) -> None:
    """Nothing but the memory of the other has it: a checkpoint is written once an hour."""
    out = str(tmp_path / "out")
    words = ["train", *WORDS, "--workers", "2", "--checkpoint-every", "1h", "--out", out]
    run = Watched([sys.executable, "-c", WARM_WORKERS, executable(), *words], FEATURES)
    try:
        run.wait_for("epoch 2/")
        client = subprocess.run(["pgrep", "-P", str(run.process.pid)], capture_output=True, text=True).stdout.split()
        assert len(client) == 2
        for process in client:
            if b"RANK=1" in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                os.kill(int(process), signal.SIGKILL)
        before = len(run.lines)
        line = run.wait_for("going on from ", after=before)
        assert re.search(
            r"going on from step \d of epoch \d+, in the memory of rank 0 when the group broke; rank 1 was lost", line
        )
        epoch = int(re.search(r"epoch (\d+),", line)[1])  # type: ignore[index]
        assert epoch >= 2
        run.wait_for(f"epoch {epoch + 2}/")
        assert not list(Path(out).glob(survivors.PATTERN))
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(60) == 143
    finally:
        run.process.kill()
        run.process.wait()


@pytest.mark.full
def test_nodes_are_lost_and_join_under_torchrun(tmp_path: Path) -> None:
    """Two nodes of two to three; one is killed, the other waits for a third, and both go on from its memory."""
    out, port = tmp_path / "out", free_port()
    environment = {**FEATURES, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def node(name: str) -> Watched:
        folder = tmp_path / name
        folder.mkdir()
        torchrun = ["-m", "torch.distributed.run", "--nnodes", "2:3", "--nproc-per-node", "1", "--max-restarts", "3"]
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "x", "--local-addr", "localhost"]
        conf = ["--rdzv-conf", "last_call_timeout=2,join_timeout=60"]
        batch = ["--global-batch", "6", "--out", str(out), "--checkpoint-every", "1h"]
        command = [sys.executable, *torchrun, *meet, *conf, "-m", "paceline.training", *WORDS, *batch]
        return Watched(command, environment, folder)

    nodes = [node("a")]
    time.sleep(3)  # its agent keeps the rendezvous
    nodes.append(node("b"))
    try:
        nodes[0].wait_for("epoch 2/")
        nodes[1].process.kill()  # the agent; its worker follows it
        before = len(nodes[0].lines)
        nodes.append(node("c"))
        everything = lambda: [line for one in nodes for line in one.lines]  # noqa: E731
        until = time.monotonic() + 150
        while time.monotonic() < until and not any("going on from" in line for line in everything()[before:]):
            time.sleep(0.2)
        line = next((line for line in everything() if "going on from" in line), "")
        assert "in the memory of rank 0" in line, everything()
    finally:
        for one in nodes:
            one.process.terminate()
        for one in nodes:
            try:
                one.process.wait(60)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
