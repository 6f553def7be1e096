"""DDP through a lab's network cards and through its switch: what the codec on the hosts gives, and what is refused."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline import lab

pytestmark = pytest.mark.skipif(bool(lab.missing()), reason=f"needs for an emulated cluster: {'; '.join(lab.missing())}")
SCRIPT = """
import hashlib, json, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import paceline
from paceline.errors import UserError

dist.init_process_group("gloo")
torch.set_num_threads(1)
found = {}
for name, given in json.loads(sys.argv[1]).items():
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 50), nn.Tanh(), nn.Linear(50, 1)))
    try:
        options = given.pop("options", {})
        paceline.attach(model, given.pop("compression"), check_every=1, timeout_s=60, **options, **given)
    except UserError as error:
        found[name] = str(error)
        continue
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        x = torch.randn(20, 300, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        optimizer.zero_grad()
        (30 * model(x).square().mean()).backward()
        optimizer.step()
    count = torch.tensor([2**40 + dist.get_rank()])  # on the job's own group, which no card touches
    dist.all_reduce(count)
    weights = torch.cat([p.detach().reshape(-1) + 0.0 for p in model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    found[name] = {"digest": digest, "count": int(count), "weights": weights[::97].tolist()}
print("FOUND " + json.dumps(found), flush=True)
dist.barrier()
os._exit(0)  # as Paceline's own ranks end: Python's end may abort while threads of the process group live
"""
CODED = {"compression": "inceptionn", "options": {"bound": 2.0**-10}}


def run(cluster: Any, tmp_path: Path, cases: dict[str, Any]) -> list[dict[str, Any]]:
    """What every rank found."""
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT)
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(p for p in sys.path if p)}
    results = cluster.run([sys.executable, str(script), json.dumps(cases)], env=environment, timeout=250)
    return [json.loads(result.stdout.partition("FOUND ")[2]) for result in results]


@pytest.mark.long
def test_training_through_cards_is_training_with_the_codec_on_the_hosts(tmp_path: Path) -> None:
    cases = {
        "ring": {**CODED, "exchange": "ring"},
        "aggregator": {**CODED, "exchange": "parameter_server", "compress_pull": False},
    }
    with lab.up(2, "1Gb/s", f"c{os.getpid()}") as cluster:
        on_hosts = run(cluster, tmp_path, {name: {**case, "codec_at": "host"} for name, case in cases.items()})
    with lab.up(2, "1Gb/s", f"c{os.getpid()}", nic="inceptionn,bound=2^-10") as cluster:
        in_cards = run(cluster, tmp_path, {name: {**case, "codec_at": "nic"} for name, case in cases.items()})
        before, after = (
            sum(getattr(card, name) for card in cluster.cards() if card) for name in ("bytes_before", "bytes_after")
        )
        refused = run(
            cluster,
            tmp_path,
            {
                "bound": {"compression": "inceptionn", "options": {"bound": 2.0**-8}, "exchange": "ring", "codec_at": "nic"},
                "switch": {"compression": "dense", "exchange": "switch"},
            },
        )
    assert after < before / 1.5
    for rank in (0, 1):
        for name in cases:
            card, host = in_cards[rank][name], on_hosts[0][name]
            assert card["digest"] == in_cards[0][name]["digest"]  # replicas, to the bit
            assert card["digest"] == host["digest"]
            assert card["count"] == 2**41 + 1
        assert "this host's card does inceptionn,bound=2^-10" in refused[rank]["bound"]
        assert "paceline lab up --switch" in refused[rank]["switch"]


@pytest.mark.long
def test_training_through_the_switch_is_training_with_the_sharded_exchange(tmp_path: Path) -> None:
    """Ternary codes are drawn by worker and position, whatever carries them, and their sums are exact."""
    cases = {name: {"compression": "terngrad", "exchange": name} for name in ("switch", "sharded")}
    with lab.up(3, "1Gb/s", f"c{os.getpid()}", switch_adds=True) as cluster:
        found = run(cluster, tmp_path, cases)
    for rank in found:
        assert rank["switch"] == found[0]["switch"]
        # Dense tensors are added in another order.
        assert rank["switch"]["weights"] == pytest.approx(rank["sharded"]["weights"], abs=1e-5)
