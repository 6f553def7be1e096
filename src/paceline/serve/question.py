"""Question of a selection: a job, a cluster, a strategy and limits. No name on the page opens a file or runs code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import prod
from typing import Any

from paceline import hardware, verbs
from paceline.errors import UserError, unknown
from paceline.hardware import Cluster
from paceline.hardware.prices import Price, price
from paceline.planning import TrainingTarget
from paceline.planning.search.deadline import seconds_until
from paceline.planning.search.lighter_jobs import AdjustableJob
from paceline.prediction import ORDINARY, Predictor
from paceline.serve.configurations import Configurations
from paceline.serve.controls import controls
from paceline.serve.network_text import network_text
from paceline.serve.selection import UPLOADED, Selection, about, value
from paceline.strategy import Strategy
from paceline.strategy.parallelism import MODEL
from paceline.strategy.tasks.lengths import SampleLengths
from paceline.strategy.tasks.task import Reward, StepTask
from paceline.strategy.worker_counts import settled_batch
from paceline.workload import Workload, names
from paceline.workload.builders.adapters.lora import parse_lora
from paceline.workload.catalogue import canonical


@dataclass(frozen=True)
class Question:
    """Question of a selection.

    Attributes:
        target: amount of training. ``by_s``, ``budget_usd``: limits in seconds and dollars; None without.
        price: of the device on such nodes: the visitor's, else the cheapest listing; None without both.
        job: the job as it may become lighter.
    """

    chosen: Selection
    workload: Workload
    cluster: Cluster
    strategy: Strategy
    predictor: Predictor = ORDINARY
    target: TrainingTarget = field(default_factory=TrainingTarget)
    by_s: float | None = None
    budget_usd: float | None = None
    price: Price | None = None
    job: AdjustableJob | None = None

    @property
    def prices(self) -> Mapping[str, float | Price]:
        """Price of the device, as every answer takes it; empty without one."""
        return {self.cluster.device.name: self.price} if self.price else {}

    @property
    def batch_given(self) -> bool:
        """True if the visitor states the batch."""
        return "global-batch" in self.chosen or "micro-batch-size" in self.chosen


def question(chosen: Selection, configurations: Configurations) -> Question:
    """Return the question of a selection. Raises UserError for unknown or conflicting values."""
    workload, cluster = model(chosen, configurations), machines(chosen)
    predictor = _predictor(chosen)
    strategy = verbs.strategy_of(workload, cluster, strategy_choices(chosen, cluster), predictor)
    by = chosen.get("by")
    with about("by"):
        by_s = seconds_until(by, datetime.now().astimezone()) if by else None
    own = value(chosen, "price")
    known = price(cluster.device.name, None if own is None else {cluster.device.name: own}, cluster.node_sizes)
    return Question(
        chosen,
        workload,
        cluster,
        strategy,
        predictor,
        target=amount(chosen, workload, strategy),
        by_s=by_s,
        budget_usd=value(chosen, "budget"),
        price=known,
        job=_job(chosen, workload, configurations),
    )


def machines(chosen: Selection) -> Cluster:
    """Return the cluster of a selection. Raises ControlError."""
    per_node, nodes = value(chosen, "devices-per-node"), value(chosen, "nodes") or 1
    with about("device"):
        hardware.device(chosen["device"])
    with about("devices-per-node"):
        hardware.cluster(chosen["device"], per_node)
    network = network_text(chosen)
    with about("network"):
        return hardware.cluster(chosen["device"], per_node, nodes, network)


def strategy_choices(chosen: Selection, cluster: Cluster) -> dict[str, Any]:
    """Return the choices of a strategy by name. The samples of a micro batch become a global batch. Raises UserError."""
    choices: dict[str, Any] = {}
    for control in controls():
        if control.keyword and control.option in chosen:
            choices[control.keyword] = value(chosen, control.option)
    if (each := value(chosen, "micro-batch-size")) is not None:
        batch, steps = choices.get("global_batch_size"), choices.get("grad_accum_steps")
        with about("micro-batch-size"):
            divided = prod(choices.get(name, 1) for name in MODEL)
            choices["global_batch_size"], choices["grad_accum_steps"] = settled_batch(
                each, cluster.world_size, divided, batch, steps
            )
    return choices


def amount(chosen: Selection, workload: Workload, strategy: Strategy) -> TrainingTarget:
    """Return the amount of training, a million samples by default. Raises ControlError for two amounts, or tokens of images."""
    samples, tokens = value(chosen, "samples"), value(chosen, "tokens")
    if samples is not None and tokens is not None:
        with about("tokens"):
            raise UserError("samples and tokens both say how much is trained", "give one of them")
    if tokens is not None:
        with about("tokens"):
            if not workload.tokens:
                raise UserError(f"a sample of {workload.name} is {workload.sample}", "give samples instead")
            each = workload.tokens * strategy.task.sequences
            return TrainingTarget(title=f"{tokens:,.0f} tokens", total=tokens / each)
    return TrainingTarget() if samples is None else TrainingTarget(title=f"{samples:,.0f} samples", total=samples)


def model(chosen: Selection, configurations: Configurations, lora: str = "", tokens: int = 0) -> Workload:
    """Return the model: one of the package by name, or an uploaded configuration. ``lora``, ``tokens``: other adapters and
    another length than chosen. Raises ControlError."""
    name, length = chosen["workload"], tokens or _length(chosen)
    adapters = lora or chosen.get("lora", "")
    with about("lora"):
        if adapters:
            parse_lora(adapters)
    with about("workload" if not length else "seq-len"):
        if name.startswith(UPLOADED):
            made = configurations.workload(name, length)
            return made.with_lora(adapters) if adapters else made
        known = canonical(name)
        if known not in names():
            with about("workload"):
                raise unknown("model", name, names(), "name one of the list, or drop its config.json on the page")
        return Workload.named(known, length, lora=adapters)


def _length(chosen: Selection) -> int | None:
    """Return the tokens of a sample: as given, else as the task or the lengths of samples say; None: the model's own."""
    length: int | None = value(chosen, "seq-len")
    if length is None and "task" in chosen:
        with about("task"):
            task = StepTask.of(chosen["task"])
        length = task.prompt + task.completion if isinstance(task, Reward) and task.prompt else None
    if length is None and "tokens-per-sample" in chosen:
        with about("tokens-per-sample"):
            lengths = SampleLengths.of(chosen["tokens-per-sample"])
        length = lengths.longest if lengths.vary and not lengths.packed else None
    return length


def _job(chosen: Selection, workload: Workload, configurations: Configurations) -> AdjustableJob:
    """Return the job with the parts that may become lighter."""
    adapters = parse_lora(chosen["lora"]) if "lora" in chosen else None
    return AdjustableJob(lambda lora, tokens: model(chosen, configurations, lora, tokens), adapters, workload.tokens)


def _predictor(chosen: Selection) -> Predictor:
    given = {option: value(chosen, option) for option in ("framework", "attention", "compile") if option in chosen}
    if not given:
        return ORDINARY
    with about(next(iter(given))):
        return Predictor(**given)
