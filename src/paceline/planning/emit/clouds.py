"""Cloud files for SkyPilot and dstack: YAML that rents the nodes and starts torchrun on each.

SkyPilot: https://docs.skypilot.co/en/latest/reference/yaml-spec.html; names of devices: ``sky/utils/gpu_names.py`` and the
fetchers of its catalogues (0.14.1). dstack: https://dstack.ai/docs/reference/dstack.yml/task/; names: its catalogue,
``gpuhunt`` (0.1.34).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from paceline.planning.emit.job import PORT, SCRIPT, EmittedJob, Emitter
from paceline.planning.emit.script import PRECISIONS, hooked
from paceline.planning.emit.torchrun import SEARCHED, checked, remarks

_LARGE_CLOUDS: Mapping[str, str] = {
    "K80": "K80",
    "P100 PCIe 16GB": "P100",
    "P100 SXM2": "P100",
    "V100 SXM2 16GB": "V100",
    "V100 PCIe 16GB": "V100",
    "V100 SXM2 32GB": "V100-32GB",
    "V100 PCIe 32GB": "V100-32GB",
    "T4": "T4",
    "A10": "A10",
    "A10G": "A10G",
    "A100 SXM 40GB": "A100",
    "A100 PCIe 40GB": "A100",
    "A100 SXM 80GB": "A100-80GB",
    "A100 PCIe 80GB": "A100-80GB",
    "L4": "L4",
    "L40": "L40",
    "L40S": "L40S",
    "H100 SXM": "H100",
    "H100 PCIe": "H100",
    "H200": "H200",
    "GH200": "GH200",
    "B200": "B200",
    "B300": "B300",
    "GB200": "GB200",
    "GB300": "GB300",
}
_RUNPOD: Mapping[str, str] = {
    **{f"RTX {number}": f"RTX{number.replace(' ', '-')}" for number in ("3070", "3080", "3080 Ti", "3090", "3090 Ti")},
    **{f"RTX {number}": f"RTX{number.replace(' ', '-')}" for number in ("4080", "4080 SUPER", "4090", "5080", "5090")},
    **{f"RTX {number} Ada": f"RTX{number}-Ada" for number in ("2000", "4000", "5000", "6000")},
    **{f"RTX A{number}": f"RTXA{number}" for number in ("4000", "4500", "5000", "6000")},
    "RTX PRO 6000 Server": "RTXPRO6000",
    "RTX PRO 6000": "RTXPRO6000-WK",
    "A30": "A30",
    "A40": "A40",
    "H100 NVL": "H100-NVL",
    "MI300X": "MI300X",
}
"""Devices of RunPod, by its catalogue in SkyPilot (``sky/catalog/data_fetchers/fetch_runpod.py``)."""
SKYPILOT_NAMES: Mapping[str, str] = {**_LARGE_CLOUDS, **_RUNPOD}
"""SkyPilot's names of devices. If clouds use one name for two of them, its optimizer may rent either."""
_TWO_MEMORIES = ("A100", "V100")
"""Devices for which dstack uses one name for two sizes of memory."""
_RTX = ("2060", "2070", "2080", "2080 Ti", "3060", "3070", "3080", "3090", "4070", "4080", "4090", "5070", "5080", "5090")
DSTACK_NAMES: Mapping[str, str] = {
    **{name: clouds.partition("-")[0] for name, clouds in _LARGE_CLOUDS.items() if name != "K80"},
    **{f"RTX {number}": f"RTX{number.replace(' ', '')}" for number in _RTX},
    "RTX A6000": "A6000",
    "RTX 6000 Ada": "RTX6000Ada",
    "RTX PRO 6000": "RTXPRO6000",
    "RTX PRO 6000 Server": "RTXPRO6000",
    "H100 NVL": "H100NVL",
    "H200 NVL": "H200NVL",
    **{name: name for name in ("A16", "A40", "MI210", "MI300X", "MI325X", "MI350X", "MI355X")},
}
"""dstack's names of devices."""


def _device(job: EmittedJob, names: Mapping[str, str]) -> str:
    name = job.cluster.device.name
    if name not in names:
        raise job.refused(f"device {name}", f"the names that are known of it are {', '.join(sorted(set(names.values())))}")
    return names[name]


def _fast(job: EmittedJob) -> bool:
    """Return whether the plan needs a network that bypasses the kernel's TCP."""
    return job.cluster.num_nodes > 1 and job.cluster.network.kind == "infiniband"


def _torchrun(nodes: str, local: str, rank: str, head: str) -> str:
    where = f'--node-rank "${rank}" --master-addr "{head}" --master-port {PORT}'
    return f'torchrun --nnodes "${nodes}" --nproc-per-node "${local}" {where} {SCRIPT}'


def _skypilot(job: EmittedJob) -> str:
    name = _device(checked(job), SKYPILOT_NAMES)
    command = _torchrun("SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_NODE_RANK", "$head")
    fast = "  network_tier: best\n" if _fast(job) else ""
    setup = "setup: pip install 'paceline[train]'\n" if hooked(job) else ""
    return f"""# Written by paceline plan --emit skypilot.
{remarks(job)}name: {job.title}
workdir: .
num_nodes: {job.cluster.num_nodes}
resources:
  accelerators: {name}:{job.cluster.devices_per_node}
{fast}{setup}run: |
  head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
  {command}
"""


def _dstack(job: EmittedJob) -> str:
    name = _device(checked(job), DSTACK_NAMES)
    device = job.cluster.device
    command = _torchrun("DSTACK_NODES_NUM", "DSTACK_GPUS_PER_NODE", "DSTACK_NODE_RANK", "$DSTACK_MASTER_NODE_IP")
    setup = "  - pip install 'paceline[train]'\n" if hooked(job) else ""
    memory = f":{device.memory.value / 2**30:g}GB" if name in _TWO_MEMORIES else ""
    return f"""# Written by paceline plan --emit dstack.
{remarks(job)}type: task
name: {job.title}
nodes: {job.cluster.num_nodes}
python: "3.12"
repos:
  - .  # this directory, a Git repository
commands:
{setup}  - {json.dumps(command)}
resources:
  gpu: {name}{memory}:{job.cluster.devices_per_node}
"""


def _sky_launch(job: EmittedJob, place: str) -> str:
    return f"sky launch {place}"


def _dstack_launch(job: EmittedJob, place: str) -> str:
    return f"dstack apply -f {place}"


SKYPILOT = Emitter(write=_skypilot, launch=_sky_launch, precisions=PRECISIONS, searched=SEARCHED, runs_script=True)
DSTACK = Emitter(write=_dstack, launch=_dstack_launch, precisions=PRECISIONS, searched=SEARCHED, runs_script=True)
