"""Batch file of a job for ``sbatch``, from a template. It runs on the first node of the job."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from paceline.scheduling.executors.executor import NodeDevices
from paceline.scheduling.executors.records import body
from paceline.scheduling.launch import Launch

_SHRINK = """shrink() { # nodes that are to be given back; what is left starts again from the checkpoint
  [ -f "$record.shrink" ] || return 1
  mv "$record.shrink" "$record.hosts"
  nodes=$(uniq "$record.hosts" | paste -sd,)
  script=$(dirname "$record")/slurm_job_${SLURM_JOB_ID}_resize # which scontrol writes where it runs
  (cd "$(dirname "$record")" && scontrol update JobId="$SLURM_JOB_ID" NodeList="$nodes" > /dev/null) || return 1
  . "$script.sh"
  rm -f "$script.sh" "$script.csh"
}
ranks() {
  exec srun --distribution=arbitrary --nodes="$(uniq "$record.hosts" | wc -l)" --ntasks="$(wc -l < "$record.hosts")" \\
    --kill-on-bad-exit=1 GPU"$@"
}
"""


def batch_file(
    launch: Launch,
    placement: NodeDevices,
    *,
    record: Path,
    master: str,
    slurm_name: str,
    python: str,
    gpus: bool = False,
    options: Sequence[str] = (),
) -> str:
    """Return the text of the batch file.

    For a ``paceline train`` job srun starts one rank per device, in the order of ``placement``. Any other command runs once, on
    the first node, with the allocation in Slurm's variables and ``SLURM_HOSTFILE``.

    Args:
        placement: nodes in Slurm's order, with devices of each.
        record: path of the job's ``NAME.json``; its other files share the stem.
        master: address of the first node.
        slurm_name: name of the job in Slurm.
        python: interpreter on every node.
        gpus: True if a device is a GPU, false for a CPU.
        options: further ``sbatch`` options.
    """
    hosts = [node for node, devices in placement.items() for _ in range(devices)]
    stem = record.with_suffix("")
    lines = [
        f"--job-name={slurm_name}",
        f"--nodes={len(placement)}",
        f"--ntasks={len(hosts)}",
        "--distribution=arbitrary",  # with this, the list of nodes says how many tasks each takes
        f"--nodelist={','.join(hosts)}",
        *(["--gpus-per-task=1"] if gpus else []),
        "--requeue",
        "--open-mode=append",
        f"--output={stem}.log",
        *options,
    ]
    head = "".join(f"#SBATCH {line}\n" for line in lines)
    start = shlex.join(launch.command)
    if launch.is_paceline:
        start = f"ranks {shlex.quote(python)} -m paceline.scheduling.executors.rank {shlex.quote(str(record))}"
    setup = (
        f"record={shlex.quote(str(stem))}\n"
        f"printf '%s\\n' {' '.join(map(shlex.quote, hosts))} > \"$record.hosts\"\n"
        'rm -f "$record.shrink"\n'
        'export SLURM_HOSTFILE="$record.hosts" PACELINE_DEVICES="$SLURM_NTASKS"\n'
        f"export MASTER_ADDR={shlex.quote(master)}\n"
    )
    shrink = _SHRINK.replace("GPU", "--gpu-bind=none " if gpus else "") if launch.is_paceline else ""
    return f"#!/bin/bash\n{head}{setup}{shrink}" + body(launch, start, Path(f"{stem}.end"), "shrink" if shrink else "false")
