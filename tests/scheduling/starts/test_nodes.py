"""Nodes as sinfo, scontrol and kubectl print them."""

from __future__ import annotations

import json

import pytest

from paceline.errors import UserError
from paceline.scheduling.starts.nodes import expanded_nodes, parse_nodes
from paceline.scheduling.traces.content import JobFile

SINFO = """NODELIST|PARTITION|GRES|CPUS|STATE
g1|gpu*|gpu:a100:8(S:0-1)|64|mixed
g1|long|gpu:a100:8(S:0-1)|64|mixed
g2|gpu*|gpu:a100:8|64|drained
c1|cpu|(null)|64|idle
"""
SCONTROL = """NodeName=g1 Arch=x86_64 CoresPerSocket=32
   CPUAlloc=8 CPUEfctv=64 CPUTot=64 CPULoad=1.0
   Gres=gpu:a100:8(S:0-1)
   State=MIXED ThreadsPerCore=1
   Partitions=gpu,long
NodeName=g2 CPUTot=64 Gres=gpu:a100:8 State=IDLE+DRAIN Partitions=gpu
"""
KUBE = {
    "kind": "List",
    "items": [
        {
            "kind": "Node",
            "metadata": {"name": "g1", "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}},
            "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
        }
    ],
}


@pytest.mark.parametrize("text", [SINFO, SCONTROL, json.dumps(KUBE)])
def test_every_form_gives_the_same_node(text: str) -> None:
    found = parse_nodes(JobFile.of(text, "nodes"))
    assert (found.devices.tolist(), found.names) == ([8], ("g1",)) and "A100" in found.types[0]
    assert "long" not in text or found.of_queue == {"gpu": (0,), "long": (0,)}


def test_nodes_without_gpus_count_where_jobs_name_none_and_ranges_expand() -> None:
    plain = SINFO.replace("gpu:a100:8(S:0-1)", "(null)").replace("gpu:a100:8", "(null)")
    assert parse_nodes(JobFile.of(plain, "nodes"), by_node=True).devices.tolist() == [1, 1]
    with pytest.raises(UserError, match="no node has a GPU"):
        parse_nodes(JobFile.of(plain, "nodes"))
    assert expanded_nodes("gpu[001-003,7],login") == ["gpu001", "gpu002", "gpu003", "gpu7", "login"]
