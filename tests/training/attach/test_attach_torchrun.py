"""``attach`` in a user's script under torchrun: a node is lost, and what is left goes on from the script's checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from distributed import free_port
from elastic_script import LAST, STEPS
from fault_driver import FEATURES
from warm_python import TESTS, executable


def agent(folder: Path, port: int, workers: int, **more: str) -> subprocess.Popen[str]:
    """torchrun on one of one or two nodes."""
    torchrun = ["-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", str(workers), "--max-restarts", "3"]
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "x", "--local-addr", "localhost"]
    conf = ["--rdzv-conf", "last_call_timeout=10,join_timeout=60"]
    environment = {**FEATURES, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHON_EXEC": executable(), **more}
    with (folder / f"{workers}.log").open("w") as log:
        words = [sys.executable, *torchrun, *meet, *conf, str(TESTS / "elastic_script.py"), str(folder)]
        return subprocess.Popen(words, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)


@pytest.mark.full
def test_a_lost_node_leaves_its_residuals_to_the_ranks_that_go_on(tmp_path: Path) -> None:
    """Three ranks on two nodes; the one of the second node is killed with its agent. The two of the first load the checkpoint
    of three, owe the model what the three owed it, and train to the end."""
    port = free_port()
    agents = [agent(tmp_path, port, 2)]
    try:
        time.sleep(3)  # it keeps the rendezvous
        agents.append(agent(tmp_path, port, 1, DIES="1"))
        said = tmp_path / "dies"
        until = time.monotonic() + 120
        while not said.exists() or not said.read_text():
            assert time.monotonic() < until and agents[0].poll() is None, (tmp_path / "2.log").read_text()[-4000:]
            time.sleep(0.1)
        agents[1].kill()
        os.kill(int(said.read_text()), signal.SIGKILL)
        assert agents[0].wait(120) == 0, (tmp_path / "2.log").read_text()[-4000:]
    finally:
        for one in agents:
            one.terminate()
            one.wait(60)
    saved, loaded, last = (
        torch.load(tmp_path / name) for name in (f"saved-step-{LAST}", f"loaded-step-{LAST}", f"saved-step-{STEPS}")
    )
    assert (saved["ranks"], loaded["ranks"], last["ranks"]) == (3, 2, 2)
    assert saved["owed"].keys() == loaded["owed"].keys()
    for name, owed in saved["owed"].items():
        assert owed.any() or "bias" in name
        torch.testing.assert_close(loaded["owed"][name] / 2, owed / 3, rtol=1e-6, atol=1e-9)
    assert all(torch.equal(loaded["weights"][name], values) for name, values in saved["weights"].items())
