"""Nodes as sinfo, scontrol and kubectl print them."""

from __future__ import annotations

import json

import pytest

from paceline.errors import UserError
from paceline.scheduling.starts.nodes import parse_nodes
from paceline.scheduling.traces.content import JobFile
from paceline.scheduling.traces.logs.slurm_jobs import expanded_nodes
from queues import waits

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


def _kube(name: str, product: str, **allocatable: str) -> dict[str, object]:
    resources = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in allocatable.items()}
    metadata = {"name": name, "labels": {"nvidia.com/gpu.product": product}}
    return {"kind": "Node", "metadata": metadata, "status": {"allocatable": resources}}


def test_mig_slices_of_nodes_are_devices() -> None:
    """Resources and labels of NVIDIA's device plugin and GPU feature discovery, strategies mixed and single."""
    mixed = _kube("g1", "NVIDIA-A100-SXM4-80GB", **{"gpu": "4", "mig_1g.10gb": "14", "mig_3g.40gb": "4", "mig_2g.20gb": "0"})
    only = _kube("g2", "NVIDIA-A100-SXM4-80GB", **{"gpu": "0", "mig_1g.10gb": "7"})
    single = _kube("g3", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", gpu="7")
    found = parse_nodes(JobFile.of(json.dumps({"kind": "List", "items": [mixed, only, single]}), "nodes"))
    assert list(zip(found.names, found.devices.tolist(), found.types, strict=True)) == [
        ("g1", 4, "A100 SXM 80GB"),
        ("g1", 14, "A100 1g.10gb"),
        ("g1", 4, "A100 3g.40gb"),
        ("g2", 7, "A100 1g.10gb"),
        ("g3", 7, "A100 1g.10gb"),
    ]
    assert found.pool(waits("j", 2, profile="1g.10gb")) == (1, 3, 4) and found.pool(waits("j", 2)) == (0,)
    slurm = parse_nodes(JobFile.of(SINFO.replace("gpu:a100:8(S:0-1)", "gpu:a100:6,gpu:a100_3g.40gb:4"), "nodes"))
    assert slurm.types[:2] == ("A100 SXM 80GB", "A100 3g.40gb")


def test_a_node_has_devices_of_several_types_and_each_state_says_whether_it_starts_jobs() -> None:
    """sinfo(1), "NODE STATE CODES"; power_save.html."""
    states = {
        "idle": 1,
        "idle~": 1,
        "mixed#": 1,
        "planned": 1,
        "mixed$": 0,
        "reserved": 0,
        "down*": 0,
        "IDLE+CLOUD+POWERED_DOWN": 1,
    }
    rows = "".join(f"g{at}|gpu|gpu:a100:4,gpu:v100:2|64|{state}\n" for at, state in enumerate(states))
    found = parse_nodes(JobFile.of(f"NODELIST|PARTITION|GRES|CPUS|STATE\n{rows}", "sinfo"))
    there = [f"g{at}" for at, starts in enumerate(states.values()) if starts]
    assert list(zip(found.names, found.devices.tolist(), strict=True)) == [(name, count) for name in there for count in (4, 2)]
    assert "V100" in found.types[1] and found.away == ("g4", "g5", "g6")
    assert parse_nodes(JobFile.of(f"NODELIST|GRES|STATE\n{rows[:0]}g0|gpu:a:1,gpu:b:1|idle\n", "n"), True).total == 1


def test_sinfo_in_json_and_in_columns_of_fixed_width() -> None:
    """``sinfo --json`` (data_parser/v0.0.40) and ``sinfo -N -O``."""
    group = {"node": {"state": ["MIXED"]}, "nodes": {"nodes": ["g1"]}, "gres": {"total": "gpu:a100:8(S:0-1)"}}
    away = {"node": {"state": ["IDLE", "DRAIN"]}, "nodes": {"nodes": ["g2"]}, "gres": {"total": "gpu:a100:8"}}
    text = json.dumps({"sinfo": [{**each, "partition": {"name": "gpu"}} for each in (group, away)]})
    wide = "".join(f"{cell:<20}" for cell in ("NODELIST", "PARTITION", "GRES", "STATE"))
    rows = ["".join(f"{cell[:20]:<20}" for cell in ("g1", "gpu", "gpu:a100:8(S:0-1)", "mixed"))]
    for source in (text, "\n".join([wide, *rows])):
        found = parse_nodes(JobFile.of(source, "nodes"))
        assert (found.names, found.devices.tolist(), found.of_queue) == (("g1",), [8], {"gpu": (0,)})
    rows += ["".join(f"{cell[:20]:<20}" for cell in ("g2", "gpu", "gpu:nvidia_a100-sxm4-80gb:8", "mixed"))]
    with pytest.raises(UserError, match="cuts off the devices of g2"):
        parse_nodes(JobFile.of("\n".join([wide, *rows]), "nodes"))
