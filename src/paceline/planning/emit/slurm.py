"""Batch script for Slurm that starts torchrun once on each node."""

from __future__ import annotations

from paceline.errors import UserError
from paceline.hardware.hosts.host_share import host_share
from paceline.planning.emit.job import PORT, SCRIPT, EmittedJob, Emitter, Tool
from paceline.planning.emit.script import PRECISIONS
from paceline.planning.emit.torchrun import SEARCHED, checked, remarks

TOOL = Tool("Slurm", "22.05.8", "https://slurm.schedmd.com/sbatch.html", "`sbatch --test-only`")
_USUAL_CORES = 8
"""Cores for each device if its host is unknown: assumed, as many nodes of eight devices have 64 or more."""


def _cores(job: EmittedJob) -> int:
    """Return the cores of a node: those of the usual host of its devices."""
    local = job.cluster.devices_per_node
    try:
        return max(local, int(host_share(job.cluster.device, local).cores * local))
    except UserError:
        return _USUAL_CORES * local


def _write(job: EmittedJob) -> str:
    job = checked(job)
    local = job.cluster.devices_per_node
    return f"""#!/bin/bash
#SBATCH --job-name={job.title}
#SBATCH --nodes={job.cluster.num_nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={local}
#SBATCH --cpus-per-task={_cores(job)}
#SBATCH --requeue
#SBATCH --open-mode=append
# {job.written_for(TOOL)}
# For {job.cluster.device.name}: add your partition, account and --time. Give --cpus-per-task the cores of your nodes.
# A requeued job starts {SCRIPT} again: let it load its newest checkpoint.
{remarks(job)}set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 torchrun \\
  --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node {local} \\
  --rdzv-id "$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}" --rdzv-backend c10d --rdzv-endpoint "$head:{PORT}" \\
  {SCRIPT} "$@"
"""


def _launch(job: EmittedJob, place: str) -> str:
    return f"sbatch {place}"


SBATCH = Emitter(tool=TOOL, write=_write, launch=_launch, precisions=PRECISIONS, searched=SEARCHED, runs_script=True)
