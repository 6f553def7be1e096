"""YAML of dstack: a task that starts torchrun on each node, and in its comments the fleet that holds the nodes.

``dstack apply`` reads one configuration of a file, and a task of several nodes runs in a fleet whose placement is ``cluster``.
"""

from __future__ import annotations

from paceline.planning.emit.clouds.names import DSTACK_NAMES, packages, price_remark, rented, torchrun_line
from paceline.planning.emit.job import EmittedJob, Emitter, Tool
from paceline.planning.emit.script import PRECISIONS
from paceline.planning.emit.torchrun import SEARCHED, checked, remarks

TOOL = Tool(
    "dstack",
    "0.22.5",
    "dstack/_internal/core/models; https://dstack.ai/docs/reference/dstack.yml/task/",
    "`parse_apply_configuration`, names of devices",
)
_TWO_MEMORIES = ("A100", "V100")
"""Devices for which dstack uses one name for two sizes of memory."""
_FLEET_REMARK = "The fleet rents nodes for a run and returns idle ones. dstack apply reads it from the standard input:"
FLEET = "#| "
"""Start of each line of the fleet."""


def _write(job: EmittedJob) -> str:
    nodes = rented(checked(job), DSTACK_NAMES)
    count = job.cluster.num_nodes
    command = torchrun_line(job, "DSTACK_NODE_RANK", "$DSTACK_MASTER_NODE_IP")
    memory = f":{job.cluster.device.memory.value / 2**30:g}GB" if nodes.device in _TWO_MEMORIES else ""
    backend = nodes.provider.dstack if nodes.provider else ""
    rent = f"backends: [{backend}]\n" if backend else ""
    rent += f"regions: [{nodes.region}]\n" if backend and nodes.region else ""
    rent += f"resources:\n  gpu: {nodes.device}{memory}:{nodes.devices}\n"
    placement = "placement: cluster\n" if count > 1 else ""
    fleet = f"type: fleet\nname: {job.title}-nodes\nnodes: 0..{count}\n{placement}{rent}"
    fleet = "".join(f"{FLEET}{line}\n" for line in fleet.splitlines())
    return f"""# {job.written_for(TOOL)}
{price_remark(job)}{remarks(job)}# {_FLEET_REMARK}
{fleet}type: task
name: {job.title}
nodes: {count}
fleets: [{job.title}-nodes]
python: "3.12"
repos:
  - .  # this directory, a Git repository
commands:
  - pip install {packages(job)}
  - {command}
{rent}"""


def _launch(job: EmittedJob, place: str) -> str:
    return f"sed -n 's/^{FLEET}//p' {place} | dstack apply -y -f - && dstack apply -f {place}"


DSTACK = Emitter(tool=TOOL, write=_write, launch=_launch, precisions=PRECISIONS, searched=SEARCHED, runs_script=True)
