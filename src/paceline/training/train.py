"""Train on this machine: check everything first, start the workers, read what they recorded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

from paceline.errors import UserError
from paceline.lab import Loopback
from paceline.record import Metrics, RunRecord
from paceline.rundir import RunDir
from paceline.strategy import Strategy
from paceline.strategy.recipe import Scaling
from paceline.training.launcher import run_workers
from paceline.training.training_run import Job


def train(
    model: str,
    data: str,
    strategy: Strategy,
    *,
    epochs: int = 10,
    lr: float = 0.0,
    warmup: float = 0.0,
    decay: float = 0.0,
    scale_from: int = 0,
    scaling: Scaling | None = None,
    optimizer_options: Mapping[str, float | str] = MappingProxyType({}),
    seed: int = 0,
    out: str = "runs/train",
    resume: str = "",
    on: Loopback | None = None,
) -> RunRecord:
    """Train on ``strategy.world_size`` workers here; the prediction is written to ``out`` before training starts.

    Args:
        model: a network's name or ``module:function`` returning an ``nn.Module``.
        data: ``digits``, ``mnist:DIR``, ``fashion-mnist:DIR``, ``cifar10:DIR`` or ``module:function`` returning four tensors.
        lr: learning rate, the peak; 0 takes the optimizer's default.
        warmup: epochs over which the rate rises to it. ``decay``: power of its fall to 0 by the last epoch; 0 keeps it.
        scale_from: the batch that ``lr`` and ``warmup`` are for, if another than the strategy's. ``scaling``: of the rate,
            ``linear`` or ``sqrt``; None takes the optimizer's usual rule.
        optimizer_options: ``variant`` (LARS, LAMB), ``momentum``, ``weight_decay``; the optimizer's own where left out.
        resume: directory of an earlier run to go on with.
        on: an emulated cluster (``paceline.lab.up``) of one host a worker; by default processes of this machine.

    Raises:
        UserError: before training starts, for anything that cannot work.
        WorkerFailed: a worker died; the message names its rank.
    """
    job = Job(
        model=model,
        data=data,
        strategy=strategy,
        epochs=epochs,
        lr=lr,
        warmup=warmup,
        decay=decay,
        scale_from=scale_from,
        scaling=scaling,
        optimizer_options=dict(optimizer_options),
        seed=seed,
        out=out,
        resume=resume,
    )
    return train_job(job, on)[0]


def train_job(job: Job, on: Loopback | None = None) -> tuple[RunRecord, Metrics]:
    """Run a job to its end: the record, and the prediction that was made before it. Raises as ``train``."""
    from paceline.training.worker import prepare

    job = prepare(job)
    command = ["-m", "paceline.training", "--job", job.to_json()]
    if on is None:
        run_workers(command, job.strategy.world_size)
    else:
        on.run([sys.executable, *command], stream=True)
    contents = RunDir(job.out).read()
    if job.label not in contents.records:
        raise UserError(f"the workers ended without a record in {job.out}", "look at their messages above")
    return contents.records[job.label], contents.predictions[job.label]
