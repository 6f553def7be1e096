"""A host whose cable is pulled in the middle of an exchange: every rank ends soon and says why, that rank too."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from distributed import ENVIRONMENT
from paceline import lab

LIMIT_S, TIMEOUT_S, LOST = 30, 10, 1
SCRIPT = """
import json, os, sys, time
from pathlib import Path

import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from paceline.training.attach.attach import attach

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, where = dist.get_rank(), Path(sys.argv[1])
model = DDP(nn.Linear(200_000, 4, bias=False))
hook = attach(model, "int8", timeout_s=float(sys.argv[2]))
hook.dense.clear()  # its only layer is the last one
x = torch.randn(2, 200_000)
said = "no error"
try:
    for step in range(1_000_000):
        model(x).square().mean().backward()
        if step == 3:
            (where / f"{rank}.going").touch()
except Exception as error:
    said = f"{type(error).__name__}: {error}"
print(said, flush=True)
(where / f"{rank}.said").write_text(json.dumps([time.time(), said]))
"""

pytestmark = [
    pytest.mark.skipif(bool(lab.missing()), reason=f"needs for an emulated cluster: {'; '.join(lab.missing())}"),
    pytest.mark.usefixtures("warm"),
]


@pytest.mark.long
def test_every_rank_ends_and_says_so_when_a_host_is_cut_off(tmp_path: Path) -> None:
    cuts: list[float] = []

    def pull() -> None:
        until = time.monotonic() + 100
        while len(list(tmp_path.glob("*.going"))) < 3 and time.monotonic() < until:
            time.sleep(0.1)
        cluster.cut(LOST)
        cuts.append(time.time())

    with lab.up(3, "1Gb/s", name=f"c{os.getpid()}") as cluster:
        thread = threading.Thread(target=pull)
        thread.start()
        command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(TIMEOUT_S)]
        cluster.run(command, env={**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "pl0"}, timeout=200)
        thread.join()
        ended = time.time()
    said = [json.loads((tmp_path / f"{rank}.said").read_text()) for rank in range(3)]
    for rank, (when, text) in enumerate(said):
        assert when - cuts[0] < LIMIT_S, (rank, when - cuts[0], text)
        if rank == LOST:
            assert "LostRank: the store on rank 0 does not answer: this rank's link is cut or rank 0 is lost" in text
        else:
            assert f"LostRank: rank {LOST} is lost" in text
    assert ended - cuts[0] < LIMIT_S + 10, "said so, but did not end"
