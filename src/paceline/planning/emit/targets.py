"""Every target by name, and what writes a strategy for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import check_name
from paceline.hardware import Cluster
from paceline.planning.emit.accelerate import ACCELERATE
from paceline.planning.emit.clouds import DSTACK, SKYPILOT
from paceline.planning.emit.deepspeed import DEEPSPEED
from paceline.planning.emit.job import Job, Target
from paceline.planning.emit.megatron import MEGATRON
from paceline.planning.emit.nemo import NEMO
from paceline.planning.emit.slurm import SBATCH
from paceline.planning.emit.torchrun import TORCHRUN
from paceline.planning.emit.torchtitan import TORCHTITAN
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

TARGETS: Mapping[str, Target] = {
    "torchrun": TORCHRUN,
    "sbatch": SBATCH,
    "accelerate": ACCELERATE,
    "deepspeed": DEEPSPEED,
    "skypilot": SKYPILOT,
    "dstack": DSTACK,
    "megatron": MEGATRON,
    "torchtitan": TORCHTITAN,
    "nemo": NEMO,
}


def searched(target: str | None) -> Mapping[str, Any]:
    """Fields of ``Space`` with what a plan tries for a target, where nobody names them; none without a target."""
    return TARGETS[target].searched if target else {}


def emit(target: str, strategy: Strategy, workload: Workload, cluster: Cluster) -> str:
    """``strategy`` for ``workload`` on ``cluster`` as text that the target reads: arguments, a script, TOML, JSON or YAML.

    Raises:
        UserError: no such target; a choice that it does not have.
    """
    check_name("target", target, TARGETS)
    job = Job(target, strategy, workload, cluster)
    _check(job, TARGETS[target])
    return TARGETS[target].write(job)


def launch(target: str, strategy: Strategy, workload: Workload, cluster: Cluster, place: str) -> str:
    """The command that starts what ``emit`` wrote to the file ``place``. Raises UserError for an unknown target."""
    check_name("target", target, TARGETS)
    return TARGETS[target].launch(Job(target, strategy, workload, cluster), place)


def _check(job: Job, target: Target) -> None:
    """Raises UserError for what only some kinds of targets have."""
    strategy, workload = job.strategy, job.workload
    mesh, exchange = strategy.parallelism, strategy.gradient_exchange
    if not target.runs_script:
        if exchange.compression != "dense":
            raise job.refused(f"compression {exchange.compression}", "gradients travel as they are")
        if exchange.exchange != "allreduce":
            raise job.refused(f"exchange {exchange.exchange}", "gradients travel by all-reduce or reduce-scatter")
    if strategy.precision not in target.precisions:
        raise job.refused(f"precision {strategy.precision}", f"here it has {', '.join(target.precisions)}")
    if mesh.offload != "none":
        raise job.refused(f"offload {mesh.offload}", "what lies in the host's memory is not written here")
    if mesh.gather_bits or mesh.gradient_bits:
        raise job.refused("bits of what travels", "widths of weights and gradients on the wire are not written here")
    if target.trains_transformers:
        if not (workload.attends and job.tokens):
            raise job.refused(workload.name, "it trains transformers on sequences of tokens")
        if workload.frozen:
            raise job.refused(f"the adapters of {workload.name}", "what is written here trains all weights")
