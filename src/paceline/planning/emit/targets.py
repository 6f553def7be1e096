"""Targets by name, and the file that each writes for a strategy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import UserError, check_name
from paceline.hardware import Cluster
from paceline.planning.emit.accelerate import ACCELERATE
from paceline.planning.emit.clouds.dstack import DSTACK
from paceline.planning.emit.clouds.skypilot import SKYPILOT
from paceline.planning.emit.deepspeed import DEEPSPEED
from paceline.planning.emit.job import EmittedJob, Emitter
from paceline.planning.emit.lightning import LIGHTNING
from paceline.planning.emit.megatron import MEGATRON
from paceline.planning.emit.nemo import NEMO
from paceline.planning.emit.slurm import SBATCH
from paceline.planning.emit.torchrun import TORCHRUN
from paceline.planning.emit.torchtitan import TORCHTITAN
from paceline.planning.emit.torchtune import TORCHTUNE
from paceline.planning.emit.unsloth import UNSLOTH
from paceline.strategy.recipe import Recipe
from paceline.strategy.strategy import Strategy, unwritten
from paceline.workload.table import Workload

TARGETS: Mapping[str, Emitter] = {
    "torchrun": TORCHRUN,
    "sbatch": SBATCH,
    "accelerate": ACCELERATE,
    "deepspeed": DEEPSPEED,
    "skypilot": SKYPILOT,
    "dstack": DSTACK,
    "megatron": MEGATRON,
    "torchtitan": TORCHTITAN,
    "nemo": NEMO,
    "lightning": LIGHTNING,
    "torchtune": TORCHTUNE,
    "unsloth": UNSLOTH,
}


def searched(target: str | None) -> Mapping[str, Any]:
    """Return the target's default values of ``Space`` fields; none without a target."""
    return TARGETS[target].searched if target else {}


@dataclass(frozen=True, slots=True)
class Emitted:
    """A file that runs a strategy, with its command.

    Attributes:
        text: text of the target's file: arguments, a script, TOML, JSON or YAML.
        left: settings that the file leaves to the user, in a sentence or two; empty without anything.
        job: the job of the file.
    """

    text: str
    left: str
    job: EmittedJob

    def launch(self, place: str) -> str:
        """Return the command that starts the job, from the path of the file."""
        return TARGETS[self.job.target].launch(self.job, place)

    @property
    def placeholders(self) -> str:
        """Explain the words in capitals of the command in a sentence; empty without any."""
        words = re.findall(r"\$?\b[A-Z_]{4,}\b", self.launch(""))
        meanings = [f"{word} is {_STANDS_FOR[word]}" for word in dict.fromkeys(words) if word in _STANDS_FOR]
        local = self.job.cluster.devices_per_node
        return f"{', '.join(meanings)}.".format(local=local) if meanings else ""


_STANDS_FOR: Mapping[str, str] = {
    "FIRST_NODE": "the host name of the first node",
    "$HEAD": "the host name of the first node",
    "$RANK": "the number of the node, from 0",
    "HOSTS": "a file with a line for each node: its host name, then slots={local}",
}
"""Placeholders in commands that start a training run."""


def emitted(job: EmittedJob) -> Emitted:
    """Write ``job`` for its target. Raises UserError for an unknown target, and for a choice that it lacks."""
    check_name("target", job.target, TARGETS)
    target = TARGETS[job.target]
    _check(job, target)
    return Emitted(target.write(job), target.left(job), job)


def emit(target: str, strategy: Strategy, workload: Workload, cluster: Cluster, recipe: Recipe | None = None) -> str:
    """Return the target's file for ``strategy``, with the rates of ``recipe``. Raises UserError as ``emitted``."""
    return emitted(EmittedJob(target, strategy, workload, cluster, recipe)).text


def check_machine(target: str, clusters: Sequence[Cluster]) -> None:
    """Raise UserError for an unknown target, or if it runs on none of ``clusters``."""
    check_name("target", target, TARGETS)
    errors = [error for cluster in clusters if (error := _machine_error(target, TARGETS[target], cluster))]
    if errors and len(errors) == len(clusters):
        raise errors[0]


def _machine_error(name: str, target: Emitter, cluster: Cluster) -> UserError | None:
    """Return why the devices or the nodes do not suit the target; None if they do."""
    device = cluster.device
    if device.kind == "tpu":
        why = "what runs there is PyTorch/XLA or JAX (MaxText)"
        return UserError(f"{name} has no option for device {device.name}: {why}", "plan without --emit")
    if target.runs_script and device.kind != "gpu":
        return UserError(f"{name} has no option for device {device.name}: it starts a process for each GPU", "name a GPU")
    if target.runs_script and not cluster.even:
        why = "it starts equally many processes on each node"
        return UserError(f"{name} has no option for nodes of {cluster.node_text} devices: {why}", "name even nodes")
    return None


def _check(job: EmittedJob, target: Emitter) -> None:
    """Raise UserError for a choice that this kind of target lacks."""
    check_machine(job.target, (job.cluster,))
    strategy, workload = job.strategy, job.workload
    if strategy.precision not in target.precisions:
        raise job.refused(f"precision {strategy.precision}", f"here it has {', '.join(target.precisions)}")
    for choice, why in unwritten(strategy, target.runs_script):
        raise job.refused(choice, why)
    if (offload := strategy.parallelism.offload) and offload.name not in target.offloads:
        none = "what lies in the host's memory is not written here"
        raise job.refused(f"offload {offload}", f"here it has {', '.join(target.offloads)}" if target.offloads else none)
    if target.trains_transformers:
        if not (workload.attends and job.tokens):
            raise job.refused(workload.name, "it trains transformers on sequences of tokens")
        if not target.has_scans and any(layer.kind == "Scan" for layer in workload.layers):
            raise job.refused(workload.name, "its networks have no blocks that scan a sequence (Mamba and the like)")
        if workload.frozen:
            raise job.refused(f"the adapters of {workload.name}", "what is written here trains all weights")
