"""Shell script for torchrun that starts the user's script, and the lines of that script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.planning.emit.job import ONE_ORDER, SCRIPT, EmittedJob, Emitter, Tool, torchrun
from paceline.planning.emit.script import PRECISIONS, check, lines
from paceline.planning.search.space import UNDIVIDED
from paceline.strategy.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from paceline.strategy.sharding import TORCH_SHARDINGS

TOOL = Tool(
    "PyTorch",
    "2.13.0",
    "https://docs.pytorch.org/docs/stable/elastic/run.html",
    "`torch.distributed.run.parse_args`; toys trained by two processes",
)
SEARCHED: Mapping[str, Any] = {
    **ONE_ORDER,
    **UNDIVIDED,
    "node_groups": True,
    "recomputes": (NO_RECOMPUTE.name, FULL_RECOMPUTE.name),
    "shardings": TORCH_SHARDINGS,
    "divided_shardings": TORCH_SHARDINGS,
}
"""Space of strategies in which the user's script wraps the model."""


def remarks(job: EmittedJob) -> str:
    """Return the lines of the user's script as comments of a shell script or of YAML."""
    head = f"# {job.remark}\n" if job.remark else ""
    return head + "".join(f"#   {line}\n" for line in (f"In {SCRIPT}, which stands for your script:", *lines(job)))


def checked(job: EmittedJob) -> EmittedJob:
    """Return the job after a check of its choices. Raises UserError for choices that a started script cannot run."""
    check(job)
    return job


def _write(job: EmittedJob) -> str:
    job = checked(job)
    head = f"#!/usr/bin/env bash\n# {job.written_for(TOOL)}\n"
    if job.cluster.num_nodes > 1:
        head += f"# Run it on each of the {job.cluster.num_nodes} nodes.\n"
    body = "set -euo pipefail\n"
    if job.cluster.num_nodes > 1:
        body += ': "${HEAD:?set HEAD to the host name of the first node}"\n'
    return f'{head}{remarks(job)}{body}exec {torchrun(job, SCRIPT)} "$@"\n'


def _launch(job: EmittedJob, place: str) -> str:
    return f"HEAD=FIRST_NODE bash {place}" if job.cluster.num_nodes > 1 else f"bash {place}"


TORCHRUN = Emitter(tool=TOOL, write=_write, launch=_launch, precisions=PRECISIONS, searched=SEARCHED, runs_script=True)
