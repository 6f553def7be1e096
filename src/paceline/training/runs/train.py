"""Train on this machine: check everything first, start the workers, read what they recorded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

from paceline.errors import Interrupted, UserError
from paceline.lab import HostFailed, Loopback
from paceline.record import Metrics, RunRecord
from paceline.rundir import RunDir
from paceline.strategy import Strategy
from paceline.strategy.recipe import RateScaling
from paceline.training.runs.launcher import RESTARTS, WorkerFailed, check_host_holds, interruptible, run_workers
from paceline.training.runs.training_run import TIMEOUT_S, TrainingRun


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
    scaling: RateScaling | None = None,
    optimizer_options: Mapping[str, float | str] = MappingProxyType({}),
    seed: int = 0,
    out: str = "runs/train",
    resume: str = "",
    timeout_s: float = TIMEOUT_S,
    checkpoint_every: str = "",
    elastic: bool = False,
    on: Loopback | None = None,
) -> RunRecord:
    """Train on ``strategy.world_size`` workers here; the prediction is written to ``out`` before training starts.

    Args:
        model: a network's name or ``module:function`` returning an ``nn.Module``.
        data: ``digits``, ``mnist:DIR``, ``fashion-mnist:DIR``, ``cifar10:DIR`` or ``module:function`` returning four tensors.
        strategy: without an optimizer, that which is usual for a named network (``usual_optimizer``), and momentum for
            ``module:function``.
        lr: learning rate, the peak; 0 takes the optimizer's default.
        warmup: epochs over which the rate rises to it. ``decay``: power of its fall to 0 by the last epoch; 0 keeps it.
        scale_from: the batch that ``lr`` and ``warmup`` are for, if another than the strategy's. ``scaling``: of the rate,
            ``linear`` or ``sqrt``; None takes the optimizer's usual rule.
        optimizer_options: ``variant`` (LARS, LAMB), ``momentum``, ``weight_decay``; the optimizer's own where left out.
        resume: directory of an earlier run to go on with.
        timeout_s: seconds that a rank waits for another one, which hangs or cannot be reached, before the run ends.
        checkpoint_every: when a checkpoint is written beside the end, steps such as ``"100"`` or a time such as ``"1min"``;
            empty: after each epoch. Writing goes on in the background.
        elastic: go on from what is in ``out`` of this run, and start the workers again, three times at most, when one is lost:
            from the last step in the memory of the others, else from the newest checkpoint.
        on: an emulated cluster (``paceline.lab.up``) of one host a worker; by default processes of this machine.

    Raises:
        UserError: before training starts, for anything that cannot work, for more workers than the cores here can run, and for
            a directory that another run writes; later for a disk that is full.
        WorkerFailed: a worker died; the message names its rank, and says what is kept.
        Interrupted: a KeyboardInterrupt, of Ctrl-C, SIGTERM or SIGHUP; the message says what is kept.
    """
    run = TrainingRun(
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
        timeout_s=timeout_s,
        checkpoint_every=checkpoint_every,
        elastic=elastic,
    )
    try:
        return train_run(run, on)[0]
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UserError("paceline.train needs PyTorch", "install it: pip install 'paceline[train]'") from None


def train_run(run: TrainingRun, on: Loopback | None = None) -> tuple[RunRecord, Metrics]:
    """Train to the end: the record, and the prediction that was made before it. Raises as ``train``."""
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
