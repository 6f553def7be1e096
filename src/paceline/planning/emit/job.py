"""What is written for another program, and how a choice that the program does not have is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.prediction.mesh.stages import block_begins, part_sizes
from paceline.strategy.optimizer import usual_optimizer
from paceline.strategy.recipe import Recipe
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

Options = list[tuple[str, object]]
"""Names and values; a value of None is an option without one."""
SCRIPT = "train.py"
"""Stands for the user's script."""
PORT = 29500
"""Where processes meet: torchrun's default."""
_TOKENS = re.compile(r"sequence of (\d+) tokens")
_WHERE = "ask for another target, or name sizes that it has"


@dataclass(frozen=True, slots=True)
class EmittedJob:
    """One strategy of a network on a cluster of even nodes.

    Attributes:
        recipe: learning rates of the strategy; None where no source has them.
        remark: what the reader of the file must know of the strategy; empty where nothing.
    """

    target: str
    strategy: Strategy
    workload: Workload
    cluster: Cluster
    recipe: Recipe | None = None
    remark: str = ""

    @property
    def optimizer(self) -> str:
        """The strategy's, or what is usual for such a network: the same for every target."""
        return self.strategy.optimizer or usual_optimizer(self.workload)

    @property
    def title(self) -> str:
        """The network's name in letters, digits and hyphens, as schedulers take it."""
        return re.sub(r"[^a-z0-9]+", "-", self.workload.name.casefold()).strip("-")[:40] or "training"

    @property
    def tokens(self) -> int:
        """Tokens of one sample, where samples are sequences; else 0."""
        length = _TOKENS.fullmatch(self.workload.sample)
        return int(length[1]) if length else 0

    @property
    def parts(self) -> list[range]:
        """Blocks of each part of the pipeline, in the order of the network."""
        mesh = self.strategy.parallelism
        ends = mesh.first_stage_layers, mesh.last_stage_layers
        sizes = part_sizes(len(block_begins(self.workload)), mesh.pipeline, mesh.virtual_stages, ends)
        starts = [sum(sizes[:n]) for n in range(len(sizes))]
        return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]

    def refused(self, choice: str, why: str) -> UserError:
        """The error for a choice that the target does not have."""
        return UserError(f"{self.target} has no option for {choice}: {why}", _WHERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A program that runs a strategy.

    Attributes:
        write: the text of its file.
        launch: the command that starts the training, from the job and the place of the file.
        precisions: those that it is written for.
        left: what its file leaves to the user, in a sentence or two; empty where nothing.
        searched: fields of ``Space`` with what a plan tries where nobody names them: what is refused is left out before.
        runs_script: it starts the user's own script, in which ``paceline.attach`` may stand.
        trains_transformers: it brings the network itself, a transformer on sequences of tokens.
    """

    write: Callable[[EmittedJob], str]
    launch: Callable[[EmittedJob, str], str]
    precisions: tuple[str, ...]
    searched: Mapping[str, Any]
    left: Callable[[EmittedJob], str] = lambda job: ""
    runs_script: bool = False
    trains_transformers: bool = False


DENSE: Mapping[str, Any] = {"compressions": ("dense",), "exchanges": ("allreduce",)}
"""What is searched where gradients travel as they are."""
ONE_ORDER: Mapping[str, Any] = {"schedules": ("1f1b",), "node_groups": False, "offloads": False}
"""What is searched where pipelines run 1F1B and shares are of all devices."""
UNDIVIDED: Mapping[str, Any] = dict.fromkeys(("tensors", "contexts", "pipelines", "experts"), (1,))
"""What is searched where no network is divided."""


def torchrun(job: EmittedJob, script: str) -> str:
    """The line that starts one process a device on a node. Of several, each runs it with the first one's name in ``HEAD``."""
    local = job.cluster.devices_per_node
    if job.cluster.num_nodes == 1:
        return f"torchrun --standalone --nproc-per-node {local} {script}"
    meet = f'--rdzv-id {job.title} --rdzv-backend c10d --rdzv-endpoint "$HEAD:{PORT}"'
    return f"torchrun --nnodes {job.cluster.num_nodes} --nproc-per-node {local} {meet} {script}"
