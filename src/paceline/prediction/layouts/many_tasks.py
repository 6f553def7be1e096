"""Steps of many candidates with tasks: the trainings as arrays, and the parts before them once for each way to run them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.precision import RECIPES, WIDE
from paceline.prediction.layouts.batch import Candidate, Steps, merged_steps, refused_steps
from paceline.prediction.step.step_model import StepModel
from paceline.prediction.tasks.generation import generation
from paceline.prediction.tasks.task_step import gathers, parts, plain_step, trained_strategy, trained_workload
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.recompute import NO_RECOMPUTE
from paceline.strategy.sharding import DDP
from paceline.strategy.strategy import Strategy
from paceline.strategy.tasks.task import SFT, Reward, StepTask
from paceline.workload.table import Workload

Many = Callable[[Workload, Sequence[Candidate]], Steps]
"""Function that returns the steps of candidates with the task ``sft``."""


def steps_of_tasks(model: StepModel, candidates: Sequence[Candidate], many: Many) -> Steps:
    """Return the steps of candidates of any tasks, in their order.

    Raises:
        UserError: a network that the task cannot train.
    """
    members: dict[StepTask, list[int]] = {}
    for index, (_, strategy) in enumerate(candidates):
        members.setdefault(strategy.task, []).append(index)
    return merged_steps(*((own, _of_task(model, task, [candidates[i] for i in own], many)) for task, own in members.items()))


def _of_task(model: StepModel, task: StepTask, candidates: Sequence[Candidate], many: Many) -> Steps:
    """Return the steps of candidates of one task."""
    if task.alone:
        return many(model.workload, candidates)
    network, legal, wrong = trained_workload(model.workload, task), list[int](), dict[int, UserError]()
    trained: list[Candidate] = []
    for index, (cluster, strategy) in enumerate(candidates):
        try:
            trained.append((cluster, trained_strategy(strategy)))
            legal.append(index)
        except UserError as error:
            wrong[index] = error
    illegal = refused_steps([candidates[i] for i in wrong], wrong.values())
    steps = merged_steps((legal, many(network, trained)), (list(wrong), illegal)) if wrong else many(network, trained)
    known: dict[Hashable, tuple[float, float] | UserError] = {}
    gathered: dict[Hashable, tuple[float, bool]] = {}
    more_s, more_bytes, refused = np.zeros(len(candidates)), np.zeros(len(candidates)), dict(steps.refused)
    for index, (cluster, strategy) in enumerate(candidates):
        if index in refused:
            more_bytes[index] = np.inf
            continue
        if np.isnan(steps.step_s[index]):
            continue  # it does not fit without them
        key = _key(cluster, strategy)
        if key not in known:
            known[key] = _before(model, network, cluster, strategy, gathered)
        found = known[key]
        if isinstance(found, UserError):
            refused[index] = found.message
            more_s[index], more_bytes[index] = np.nan, np.inf
        else:
            more_s[index], more_bytes[index] = found
    return replace(steps, step_s=steps.step_s + more_s, memory_bytes=steps.memory_bytes + more_bytes, refused=refused)


def _key(cluster: Cluster, strategy: Strategy) -> Hashable:
    """Return what the parts before the training depend on."""
    mesh, task = strategy.parallelism, strategy.task
    if not (isinstance(task, Reward) and task.engine == "hf"):  # a cache fills the memory of activations
        mesh = _without_recomputation(mesh)
    exchanged: Hashable = ()
    if mesh.sharding.weights:
        exchanged = strategy.gradient_exchange, strategy.bucket_bytes
    else:
        mesh = replace(mesh, sharding=DDP, shard_devices=0, gather_bits=0, gather_format="int8", gradient_bits=0)
    return id(cluster), mesh, strategy.global_batch_size, strategy.precision, exchanged


def _without_recomputation(mesh: Parallelism) -> Parallelism:
    return replace(mesh, recompute=NO_RECOMPUTE, recompute_layers=0)


def _before(
    model: StepModel, network: Workload, cluster: Cluster, strategy: Strategy, gathered: dict[Hashable, tuple[float, bool]]
) -> tuple[float, float] | UserError:
    """Return seconds and bytes of the parts before the training, or why they cannot run.

    ``gathered``: known gathers of sharded weights, which do not depend on the batch.
    """
    try:
        settled = strategy.settled(model.workload, cluster)
        waited = 0.0, False
        if settled.parallelism.sharding.weights:
            mesh = replace(_without_recomputation(settled.parallelism), micro_batches=1)
            key = id(cluster), mesh, settled.precision, settled.gradient_exchange, settled.bucket_bytes
            if key not in gathered:
                quick = replace(settled, task=SFT, parallelism=mesh, global_batch_size=mesh.data)
                gathered[key] = gathers(plain_step(replace(model, workload=network), cluster, quick))
            waited = gathered[key]
        own = parts(model, cluster, settled, waited)
    except UserError as error:
        return error
    return sum(own.seconds.values()), sum(own.memory.values())


def least_before_s(model: StepModel, cluster: Cluster, strategy: Strategy) -> float:
    """Return a lower bound on the seconds of the parts before the training: generation, rewards, and FLOPs at the peak rate."""
    task = strategy.task
    if strategy.global_batch_size % task.group:
        return 0.0
    inner = trained_strategy(strategy)
    passes = task.has_reference + (task.old if isinstance(task, Reward) else 0)
    flops = passes * trained_workload(model.workload, task).flops_forward * inner.global_batch_size
    precision = WIDE if strategy.precision in RECIPES else strategy.precision
    least_s = flops * CAUSAL / cluster.world_size / cluster.device.peak(precision).value
    if isinstance(task, Reward):
        with suppress(UserError):
            least_s += generation(model.workload, cluster, inner, task, model.constants).seconds + task.reward
    return least_s


CAUSAL = 0.5
"""Least share of a network's FLOPs that kernels compute: those of causal attention leave out half of the scores."""
