"""YAML of SkyPilot that rents the nodes and starts torchrun on each."""

from __future__ import annotations

from paceline.planning.emit.clouds.names import SKYPILOT_NAMES, packages, price_remark, rented, torchrun_line
from paceline.planning.emit.job import EmittedJob, Emitter, Tool
from paceline.planning.emit.script import PRECISIONS
from paceline.planning.emit.torchrun import SEARCHED, checked, remarks

TOOL = Tool(
    "SkyPilot",
    "0.14.1",
    "sky/utils/schemas.py; https://docs.skypilot.co/en/latest/reference/yaml-spec.html",
    "`Task.from_yaml`, names of devices",
)


def _write(job: EmittedJob) -> str:
    nodes = rented(checked(job), SKYPILOT_NAMES)
    command = torchrun_line(job, "SKYPILOT_NODE_RANK", "$head")
    cloud = nodes.provider.skypilot if nodes.provider else ""
    resources = {
        "infra": "/".join(filter(None, (cloud, nodes.region if cloud else ""))),
        "accelerators": f"{nodes.device}:{nodes.devices}",
        "network_tier": "best" if nodes.fast and (nodes.provider is None or nodes.provider.tiers) else "",
    }
    lines = "".join(f"  {key}: {value}\n" for key, value in resources.items() if value)
    return f"""# {job.written_for(TOOL)}
{price_remark(job)}{remarks(job)}name: {job.title}
workdir: .
num_nodes: {job.cluster.num_nodes}
resources:
{lines}setup: pip install {packages(job)}
run: |
  head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
  {command}
"""


def _launch(job: EmittedJob, place: str) -> str:
    return f"sky launch {place}"


SKYPILOT = Emitter(tool=TOOL, write=_write, launch=_launch, precisions=PRECISIONS, searched=SEARCHED, runs_script=True)
