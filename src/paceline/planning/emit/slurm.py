"""Batch script for Slurm that starts torchrun once on each node. Options: https://slurm.schedmd.com/sbatch.html."""

from __future__ import annotations

from paceline.planning.emit.job import PORT, SCRIPT, EmittedJob, Emitter
from paceline.planning.emit.script import PRECISIONS
from paceline.planning.emit.torchrun import SEARCHED, checked, remarks


def _write(job: EmittedJob) -> str:
    job = checked(job)
    local = job.cluster.devices_per_node
    return f"""#!/bin/bash
#SBATCH --job-name={job.title}
#SBATCH --nodes={job.cluster.num_nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={local}
#SBATCH --requeue
#SBATCH --open-mode=append
# Written by paceline plan --emit sbatch for {job.cluster.device.name}; add your partition, account and --time.
# A requeued job starts {SCRIPT} again: let it load its newest checkpoint.
{remarks(job)}set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node {local} \\
  --rdzv-id "$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}" --rdzv-backend c10d --rdzv-endpoint "$head:{PORT}" \\
  {SCRIPT} "$@"
"""


def _launch(job: EmittedJob, place: str) -> str:
    return f"sbatch {place}"


SBATCH = Emitter(write=_write, launch=_launch, precisions=PRECISIONS, searched=SEARCHED, runs_script=True)
