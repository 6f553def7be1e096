"""Training on this machine: check everything first, start the workers, read their records."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Unpack

from paceline.errors import Interrupted, UserError, check_name
from paceline.lab import HostFailed, Loopback
from paceline.record import Metrics, RunRecord
from paceline.rundir import RunDir
from paceline.strategy import Strategy
from paceline.training.runs.launcher import RESTARTS, WorkerFailed, check_host_holds, interruptible, run_workers
from paceline.training.runs.training_run import RunKeywords, TrainingRun


def train(
    model: str, data: str, strategy: Strategy, *, on: Loopback | None = None, **settings: Unpack[RunKeywords]
) -> RunRecord:
    """Train on ``strategy.world_size`` workers on this machine; the prediction is written to ``out`` before training starts.

    Args:
        model: a network's name or ``module:function`` returning an ``nn.Module``.
        data: ``digits``, ``mnist:DIR``, ``fashion-mnist:DIR``, ``cifar10:DIR`` or ``module:function`` returning four tensors.
        strategy: without an optimizer, the usual one of a named network (``usual_optimizer``), and momentum for
            ``module:function``.
        on: an emulated cluster (``paceline.lab.up``) of one host a worker; by default processes of this machine.
        settings: further fields of ``TrainingRun`` by name, such as ``epochs=20``, ``lr=0.1``, ``out="runs/first"``,
            ``resume="runs/first"`` or ``elastic=True``.

    Raises:
        UserError: before training starts, for anything that cannot work, for more workers than the cores here can run, and for
            a directory that another run writes; later for a disk that is full.
        WorkerFailed: a worker died; the message names its rank and the kept files.
        Interrupted: a KeyboardInterrupt, of Ctrl-C, SIGTERM or SIGHUP; the message names the kept files.
    """
    names = [field.name for field in fields(TrainingRun)]
    for name in settings:
        check_name("setting of a run", name, names)
    run = TrainingRun(model=model, data=data, strategy=strategy, **settings)
    try:
        return train_run(run, on)[0]
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UserError("paceline.train needs PyTorch", "install it: pip install 'paceline[train]'") from None


def train_run(run: TrainingRun, on: Loopback | None = None) -> tuple[RunRecord, Metrics]:
    """Train to the end, and return the record and the earlier prediction. Raises as ``train``."""
    from paceline.training.runs.checkpoints import surviving_state as survivors
    from paceline.training.runs.worker import prepare

    if on is None:
        check_host_holds(run.strategy.world_size)
    with RunDir(run.out).locked(), interruptible() as interruption:
        run = prepare(run, local_ranks=1 if on else run.strategy.world_size)
        command = ["-m", "paceline.training", "--run", run.to_json()]
        try:
            if on is None:
                run_workers(command, run.strategy.world_size, interruption, RESTARTS if run.elastic else 0)
            else:
                on.run([sys.executable, *command], stream=True)
        except Interrupted as error:
            raise Interrupted(error.number, survivors.kept(run)) from None
        except (WorkerFailed, HostFailed) as error:
            error.args = (f"{error}\n{survivors.kept(run)}",)
            raise
        contents = RunDir(run.out).read()
    if run.label not in contents.records:
        raise UserError(f"the workers ended without a record in {run.out}", "look at their messages above")
    return contents.records[run.label], contents.predictions[run.label]
