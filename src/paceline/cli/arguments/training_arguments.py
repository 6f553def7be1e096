"""Arguments of a training run, for ``paceline train`` and ``torchrun -m paceline.training``. Imports no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from paceline.cli.arguments.choice_arguments import TRAINED, add_choice_arguments, given_choices
from paceline.cli.arguments.exchange_arguments import add_compression_arguments, exchange_choices
from paceline.cli.guide.sections import common, section
from paceline.errors import UserError, unknown
from paceline.hardware.precision import ALIASES, PRECISIONS, RECIPES
from paceline.names import look_up
from paceline.strategy import OPTIMIZERS, Strategy
from paceline.strategy.choices.strategy_choices import TRAINED_BATCH
from paceline.strategy.recipe import RATE_SCALINGS
from paceline.strategy.strategy import CHOICES
from paceline.training.attach.attach_options import TIMEOUT_S
from paceline.training.runs.training_run import TrainingRun
from paceline.units import format_seconds, parse_seconds

_COMPUTING = ("precision", "stored_weights")
"""Choices of ``Strategy`` that ``slim`` does not take."""
DEFAULT_OUT = "runs/train"
OPTIMIZER_OPTIONS = tuple(dict.fromkeys(name for optimizer in OPTIMIZERS.values() for name in optimizer.options))
DEFAULTS: dict[str, Any] = {
    "model": "",
    "data": "",
    "workers": 2,
    "optimizer": "",
    **dict.fromkeys(OPTIMIZER_OPTIONS),
    "lr": 0.0,
    "warmup": 0.0,
    "decay": 0.0,
    "scale_from": 0,
    "scaling": None,
    "global_batch": TRAINED_BATCH,
    "seed": 0,
    "epochs": 10,
    "start": "",
    "plan": "",
    "teacher": "",
    "distill": 0.0,
    "batch_growth": "",
}
MODELS = "lenet5, another named network, or module:function"


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all arguments of a run, except ``--workers``, ``--json`` and ``--help``."""
    model = section(parser, "model")
    learning = section(parser, "learning")
    answers = section(parser, "answer")
    run = section(parser, "run")
    common(model.add_argument("--model", metavar="NAME", help=MODELS))
    add_recipe_arguments(parser)
    model.add_argument("--plan", metavar="FILE", help="train the network that a plan of `paceline slim` leaves")
    teacher = "weights of the whole network, a run's directory or a file; this one learns from them and the labels"
    learning.add_argument("--teacher", metavar="WEIGHTS", help=teacher)
    learning.add_argument("--distill", metavar="SHARE", type=float, help="share of the teacher in the loss, from 0 to 1")
    common(
        answers.add_argument(
            "--out",
            metavar="DIR",
            default="",
            help=f"directory of the results (default {DEFAULT_OUT}; with --resume, that run's)",
        )
    )
    resume = "continue from the checkpoint in DIR, to --epochs in all"
    common(answers.add_argument("--resume", metavar="DIR", default="", help=resume))
    every = "write a checkpoint every number of steps, 100, or at an interval, 1m (default: after each epoch)"
    elastic = "continue from --out, and after a lost rank with the ranks that return or without it"
    run.add_argument("--elastic", action="store_true", help=elastic)
    compiled = "compile the network by torch.compile, block by block"
    run.add_argument("--compile", action="store_true", help=compiled)
    grows = "later stages of the global batch, 128@20k,256@80k: from 20,000 samples on it is 128; the rate grows by --scaling"
    learning.add_argument("--batch-growth", metavar="STAGES", help=grows)
    run.add_argument("--checkpoint-every", metavar="WHEN", default="", help=every)
    whole = (item for item in TRAINED if item.part == "parallelism" or item.name in _COMPUTING)
    add_choice_arguments(parser, whole, only_given=True)


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the method of training: data, choices, optimizer and learning rate."""
    model = section(parser, "model")
    learning = section(parser, "learning")
    run = section(parser, "run")
    common(
        model.add_argument(
            "--data",
            metavar="DATA",
            help="digits, digits:CxHxW (slim: by the network), mnist:DIR, fashion-mnist:DIR, cifar10:DIR, or module:function",
        )
    )
    batch = CHOICES["global_batch_size"]  # stands beside the epochs
    others = (item for item in TRAINED if item.part != "parallelism" and item.name not in (batch.name, *_COMPUTING))
    add_choice_arguments(parser, others, only_given=True)
    add_compression_arguments(parser)
    learning.add_argument("--variant", metavar="V", help="published form of lars or lamb, such as mlperf (default paper)")
    learning.add_argument(
        "--momentum", metavar="M", type=float, help="momentum of the optimizers momentum and lars (default 0.9)"
    )
    learning.add_argument(
        "--weight-decay", metavar="D", type=float, help="weight decay (default: lars 5e-4, lamb and adamw 0.01, others 0)"
    )
    common(learning.add_argument("--lr", metavar="RATE", type=float, help="learning rate, the peak (default: the optimizer's)"))
    learning.add_argument("--warmup", metavar="EPOCHS", type=float, help="epochs in which the rate rises (default 0)")
    learning.add_argument("--decay", metavar="POWER", type=float, help="power of the rate's decay to 0 (default 0: no decay)")
    learning.add_argument("--scale-from", metavar="B", type=int, help="batch that --lr and --warmup are for; both grow from it")
    learning.add_argument(
        "--scaling",
        metavar="RULE",
        help=f"how the rate grows with the batch: {', '.join(RATE_SCALINGS)} (default: the optimizer's)",
    )
    add_choice_arguments(parser, (batch,), only_given=True)
    common(learning.add_argument("--epochs", metavar="E", type=int, help="passes over the data, in all (default 10)"))
    run.add_argument("--seed", metavar="S", type=int, help="seed of weights, sample order and rounding (default 0)")
    weights = "weights to begin with: a run's directory, or a file of a state_dict (default: the seed's)"
    model.add_argument("--start", metavar="WEIGHTS", help=weights)
    waits = f"how long a rank waits for one that hangs or is cut off, such as 30s (default {format_seconds(TIMEOUT_S)})"
    run.add_argument("--timeout", metavar="TIME", default="", help=waits)


def timeout_s(options: argparse.Namespace) -> float:
    """Return the seconds that a rank waits for another. Raises UserError for an illegal time."""
    return parse_seconds(options.timeout) if options.timeout else TIMEOUT_S


def _check_precision(name: str | None) -> None:
    """Raise UserError with the trained precisions for a name that means none."""
    if name is not None and look_up(name, PRECISIONS, ALIASES) is None:
        raise unknown("precision", name, [each for each in PRECISIONS if each not in RECIPES])


def training_run(options: argparse.Namespace, workers: int | None = None) -> TrainingRun:
    """Return the run that parsed options describe. With ``--resume``, missing options have the checkpoint's values.

    Args:
        workers: number of workers, if torchrun sets it; None: that of ``--workers``.

    Raises:
        UserError: illegal options.
    """
    values: dict[str, Any] = dict(DEFAULTS)
    begun: Strategy | None = None
    if options.resume:
        from paceline.training.runs.checkpoints.checkpoint import load

        before: TrainingRun = load(Path(options.resume), checked=False)["run"]
        unnamed = {name: value for name, value in before.code.items() if getattr(options, name) is None}
        if unnamed:
            raise UserError(
                f"the checkpoint in {options.resume} names code, {' and '.join(unnamed.values())}",
                f"to run it, give {' '.join(f'--{name} {value}' for name, value in unnamed.items())}",
            )
        begun = strategy = before.strategy
        values |= {
            **before.identity,
            **dict.fromkeys(OPTIMIZER_OPTIONS),  # options of another optimizer would be illegal
            **(before.optimizer_options if options.optimizer in (None, strategy.optimizer) else {}),
            "lr": before.lr,
            "global_batch": strategy.global_batch_size,
            "workers": strategy.world_size,
        }
        values["epochs"] = before.epochs
    given = {name: getattr(options, name, None) for name in DEFAULTS}
    values |= {name: value for name, value in given.items() if value is not None}
    for name in ("model", "data"):
        if not values[name]:
            raise UserError(f"--{name} is missing", f"{options.parser.prog} --help shows an example")
    if given["lr"] is not None and not 0 < given["lr"] < float("inf"):
        raise UserError(f"learning rate {given['lr']}", "give a positive number")
    if given["scale_from"] == 0:
        raise UserError("rates of a batch of 0", "give a whole number from 1 up")
    _check_precision(getattr(options, "precision", None))
    choices = {
        **given_choices(options, TRAINED),
        "world_size": values["workers"] if workers is None else workers,
        "global_batch_size": values["global_batch"],
        "optimizer": values["optimizer"],
        **exchange_choices(options, None if begun is None else begun.gradient_exchange),
    }
    return TrainingRun(
        model=values["model"],
        data=values["data"],
        strategy=Strategy.of(**choices) if begun is None else begun.changed(**choices),
        epochs=values["epochs"],
        lr=values["lr"],
        warmup=values["warmup"],
        decay=values["decay"],
        scale_from=values["scale_from"],
        scaling=values["scaling"],
        optimizer_options={name: values[name] for name in OPTIMIZER_OPTIONS if values[name] is not None},
        seed=values["seed"],
        **{name: values[name] for name in ("start", "plan", "teacher", "distill")},
        out=str(Path(options.out or options.resume or DEFAULT_OUT)),
        resume=options.resume,
        timeout_s=timeout_s(options),
        elastic=getattr(options, "elastic", False),
        checkpoint_every=getattr(options, "checkpoint_every", ""),
        compile=getattr(options, "compile", False),
        batch_growth=values["batch_growth"],
    )
