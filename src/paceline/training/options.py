"""The options of a training job, shared by ``paceline train`` and ``torchrun -m paceline.training``. Imports no torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.errors import UserError
from paceline.strategy import COMPRESSIONS, EXCHANGES, OPTIMIZERS, Strategy
from paceline.training.job import Job

DEFAULT_BATCH, DEFAULT_EPOCHS, DEFAULT_OUT = 64, 10, "runs/train"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything but ``--workers``, ``--json`` and ``--help``."""
    parser.add_argument("--model", metavar="NAME", help="lenet5, another named network, or module:function")
    parser.add_argument("--data", metavar="DATA", help="digits, mnist:DIR, fashion-mnist:DIR, or module:function")
    parser.add_argument("--compression", metavar="C", default="dense", help=f"{', '.join(COMPRESSIONS)} (default dense)")
    parser.add_argument("--exchange", metavar="X", default="", help=f"{', '.join(EXCHANGES)} (default: the compression's)")
    parser.add_argument("--optimizer", metavar="O", default="momentum", help=f"{', '.join(OPTIMIZERS)} (default momentum)")
    parser.add_argument("--lr", metavar="RATE", type=float, default=0.0, help="learning rate (default: the optimizer's)")
    parser.add_argument(
        "--global-batch", metavar="B", type=int, default=DEFAULT_BATCH, help=f"samples a step, all workers ({DEFAULT_BATCH})"
    )
    parser.add_argument(
        "--epochs", metavar="E", type=int, default=DEFAULT_EPOCHS, help=f"passes over the data ({DEFAULT_EPOCHS})"
    )
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="of weights, order and rounding (0)")
    parser.add_argument("--out", metavar="DIR", default="", help=f"where results go ({DEFAULT_OUT}; when resuming, that run's)")
    parser.add_argument("--resume", metavar="DIR", default="", help="go on from the checkpoint in DIR, to --epochs in all")


def resumed(options: argparse.Namespace) -> argparse.Namespace:
    """With ``--resume``, take what the checkpoint says for every option that was left at its default."""
    if not options.resume:
        return options
    from paceline.training.checkpoint import load

    job = Job.from_json(load(Path(options.resume))["job"])
    before = {**job.identity, "global_batch": job.strategy.global_batch_size, "workers": job.strategy.world_size}
    defaults: argparse.ArgumentParser = options.parser
    for name in ("model", "data", "compression", "exchange", "optimizer", "lr", "global_batch", "seed", "workers"):
        if getattr(options, name, None) == defaults.get_default(name):
            setattr(options, name, before[name])
    return options


def job_from(options: argparse.Namespace, workers: int) -> Job:
    """The job that parsed options describe. Raises UserError for what cannot be."""
    for name in ("model", "data"):
        if not getattr(options, name):
            raise UserError(f"--{name} is missing", "paceline train --help shows an example")
    strategy = Strategy(
        world_size=workers,
        global_batch_size=options.global_batch,
        compression=options.compression,
        exchange=options.exchange,
        optimizer=options.optimizer,
    )
    return Job(
        model=options.model,
        data=options.data,
        strategy=strategy,
        epochs=options.epochs,
        lr=options.lr,
        seed=options.seed,
        out=str(Path(options.out or options.resume or DEFAULT_OUT)),
        resume=options.resume,
    )
