"""Job that a target's file runs, and the error for a choice that a target lacks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.prices import Price
from paceline.prediction.passes.blocks import block_begins, part_sizes
from paceline.strategy.optimizer import usual_optimizer
from paceline.strategy.pass_order import ONE_FORWARD_ONE_BACKWARD
from paceline.strategy.recipe import Recipe
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

Options = list[tuple[str, object]]
"""Names and values; None means an option without a value."""
SCRIPT = "train.py"
"""Placeholder for the user's script."""
CHECKPOINTS_BLOCKS = "model.gradient_checkpointing_enable()"
"""Line of a script that makes a model of transformers recompute its blocks."""
PORT = 29500
"""Rendezvous port: torchrun's default."""
_WHERE = "ask for another target, or name sizes that it has"


@dataclass(frozen=True, slots=True)
class Tool:
    """Software that reads a target's file.

    Attributes:
        version: release that the file was checked against.
        source: files or pages of that release with the names that the target writes.
        checked: how it was checked: by the tool's own parser, or against a kept list of its names.
    """

    name: str
    version: str
    source: str
    checked: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class EmittedJob:
    """Strategy of a network on a cluster of equal nodes.

    Attributes:
        recipe: learning rates of the strategy; None without a source.
        remark: a remark on the strategy for the reader of the file; empty without one.
        tuned: whether the plan is for tuned software.
        samples: samples of the whole run; 0: unknown.
        price: listing by which the plan counts its cost; None without one.
    """

    target: str
    strategy: Strategy
    workload: Workload
    cluster: Cluster
    recipe: Recipe | None = None
    remark: str = ""
    tuned: bool = False
    samples: float = 0.0
    price: Price | None = None

    @property
    def steps(self) -> int:
        """Steps of the whole run; 0: unknown."""
        return math.ceil(self.samples / self.strategy.global_batch_size)

    @property
    def optimizer(self) -> str:
        """Optimizer of the strategy, or the usual one of such a network, the same for all targets."""
        return self.strategy.optimizer or usual_optimizer(self.workload)

    @property
    def title(self) -> str:
        """Name of the network in letters, digits and hyphens, as schedulers accept it."""
        return re.sub(r"[^a-z0-9]+", "-", self.workload.name.casefold()).strip("-")[:40] or "training"

    @property
    def tokens(self) -> int:
        """Tokens of one sample if samples are sequences; else 0."""
        return self.workload.tokens

    @property
    def parts(self) -> list[range]:
        """Blocks of each part of the pipeline, in the order of the network."""
        mesh = self.strategy.parallelism
        ends = mesh.first_stage_layers, mesh.last_stage_layers
        sizes = part_sizes(len(block_begins(self.workload)), mesh.pipeline, mesh.virtual_stages, ends)
        starts = [sum(sizes[:n]) for n in range(len(sizes))]
        return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]

    @property
    def pipelines_tensors(self) -> bool:
        """True if exchanges of a tensor group overlap products piece by piece, as predictions of tuned software assume."""
        mesh = self.strategy.parallelism
        return self.tuned and mesh.tensor > 1 and mesh.sequence

    def written_for(self, tool: Tool) -> str:
        """Return the first line of the file, without the sign of a comment."""
        return f"Written by paceline plan --emit {self.target} for {tool}."

    def refused(self, choice: str, why: str) -> UserError:
        """Return the error for a choice that the target lacks."""
        return UserError(f"{self.target} has no option for {choice}: {why}", _WHERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitter:
    """Target program that runs a strategy.

    Attributes:
        tool: the program, and the release that the file was checked against.
        write: returns the text of its file.
        launch: returns the command that starts the training, from the job and the path of the file.
        precisions: precisions that it supports.
        left: settings that its file leaves to the user, in a sentence or two; empty without anything.
        searched: default values of ``Space`` fields for this target, without the choices that it refuses.
        runs_script: whether it starts the user's own script, which may call ``paceline.attach``.
        trains_transformers: whether it defines the network itself, a transformer on sequences of tokens.
        offloads: names of the offloads that its file states.
        has_scans: whether its networks may have blocks that scan a sequence (Mamba, gated delta rule) next to attention.
    """

    tool: Tool
    write: Callable[[EmittedJob], str]
    launch: Callable[[EmittedJob, str], str]
    precisions: tuple[str, ...]
    searched: Mapping[str, Any]
    left: Callable[[EmittedJob], str] = lambda job: ""
    runs_script: bool = False
    trains_transformers: bool = False
    has_scans: bool = False
    offloads: tuple[str, ...] = ()


ONE_ORDER: Mapping[str, Any] = {"schedules": (ONE_FORWARD_ONE_BACKWARD.name,), "node_groups": False, "offloads": False}
"""Space with 1F1B as the only schedule and shards across all devices."""


def torchrun(job: EmittedJob, script: str) -> str:
    """Return the command that starts one process a device on a node. Each of several nodes needs the first one in ``HEAD``."""
    local = job.cluster.devices_per_node
    if job.cluster.num_nodes == 1:
        return f"torchrun --standalone --nproc-per-node {local} {script}"
    meet = f'--rdzv-id {job.title} --rdzv-backend c10d --rdzv-endpoint "$HEAD:{PORT}"'
    return f"torchrun --nnodes {job.cluster.num_nodes} --nproc-per-node {local} {meet} {script}"
