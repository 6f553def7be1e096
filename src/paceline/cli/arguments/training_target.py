"""Amount of training for ``plan``: a target, epochs or samples, and the learning rates for it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paceline.calibration.records import run_records
from paceline.cli.arguments.failure_arguments import add_failure_arguments, failures_of
from paceline.cli.arguments.prediction_inputs import workload_of
from paceline.cli.guide.sections import common, section
from paceline.errors import UserError
from paceline.planning.search.goal import Goal
from paceline.planning.search.learning_rates import Recipes, of_records
from paceline.planning.search.training_target import TrainingTarget, parse_penalties
from paceline.prediction.learning import convergence
from paceline.prediction.learning.convergence import Convergence
from paceline.record import RunRecord
from paceline.strategy.tasks.lengths import SampleLengths
from paceline.strategy.tasks.task import SFT, StepTask
from paceline.units import parse_count
from paceline.workload import Workload

ACCURACY = "accuracy="
TARGETS = "give mlperf, a CSV file of global_batch,samples_to_target, or accuracy=0.97 with --records"
_TARGET = (
    "train to a quality: mlperf (default where it is known and neither a batch nor samples are given), a CSV of "
    "global_batch,samples_to_target, or accuracy=0.97, with --records of runs that reach it (at several batches, or of one run "
    "with its noise scale)"
)


def add_training_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for a target, epochs or samples."""
    training = section(parser, "training")
    training.add_argument("--target", metavar="T", help=_TARGET)
    common(training.add_argument("--epochs", metavar="E", type=float, help="train this many epochs"))
    samples = "train this many samples, such as 1.2M (default one million)"
    common(training.add_argument("--samples", metavar="S", type=parse_count, help=samples))
    tokens = "train this many tokens, such as 15B; the number of samples is tokens over --seq-len"
    common(training.add_argument("--tokens", metavar="T", type=parse_count, help=tokens))
    data = "samples of an epoch, such as 1.2M (default: of the data set that the network was published with)"
    training.add_argument("--data", metavar="N", type=parse_count, help=data)
    add_failure_arguments(parser)


def workload_and_target(o: argparse.Namespace, goal: Goal) -> tuple[Workload, TrainingTarget]:
    """Return the workload and the training target. Sequences have the target's length by default. Raises UserError."""
    network = workload_of(o)
    target = training_target(o, network, goal)
    return (workload_of(o, target.computed_tokens) if target.computed_tokens else network), target


def training_target(o: argparse.Namespace, network: Workload, goal: Goal) -> TrainingTarget:
    """Return the amount of training and its learning rates. Raises UserError."""
    given = [name for name in ("target", "epochs", "samples", "tokens") if getattr(o, name) is not None]
    if len(given) > 1:
        raise UserError(f"--{given[0]} and --{given[1]} both say how much is trained", "give one of them")
    if o.data is not None and o.epochs is None:
        raise UserError("--data says what an epoch is, and no epochs are given", "give --epochs too")
    by_default = not given and not o.global_batch and network.name in convergence.networks()
    target = "mlperf" if by_default else o.target
    runs = [record for record in run_records(o.records or ()) if record.workload == network.name]
    training = _to_target(target, network, runs, by_default, o.seq_len) if target is not None else _amount(o, network, goal)
    training = replace(training, penalties=parse_penalties(o.penalty or []), failures=failures_of(o))
    own = None if target == "mlperf" else of_records(network.name, runs)
    recipes = own or Recipes(network.name, target="mlperf" if target == "mlperf" else "")
    return replace(training, recipes=recipes) if given or by_default else training


def _to_target(
    target: str, network: Workload, runs: Sequence[RunRecord], by_default: bool, seq_len: int | None
) -> TrainingTarget:
    """Return the training to a quality, with the curve of samples to it."""
    if target.startswith(ACCURACY):
        curve = _of_runs(target.removeprefix(ACCURACY), network, runs)
    elif Path(target).suffix == ".csv" or (not by_default and Path(target).exists()):
        curve = convergence.read_points(target)
    elif target == "mlperf":
        curve = convergence.mlperf(network.name)
    else:
        raise UserError(f"target {target!r}", TARGETS)
    training = TrainingTarget.reaching(curve, network.sample, seq_len)
    why = "; taken since neither a batch nor samples are given" if by_default else ""
    return replace(training, title=training.title + why)


def _of_runs(text: str, network: Workload, runs: Sequence[RunRecord]) -> Convergence:
    """Return the samples-to-target curve of a sweep if three runs at different batches reach the accuracy. Otherwise use the
    last such run with a noise scale."""
    try:
        accuracy = float(text)
    except ValueError:
        accuracy = 0.0
    if not 0 < accuracy <= 1:
        raise UserError(f"accuracy {text!r}", "give a share from 0 to 1, such as accuracy=0.97")
    dense = convergence.uncompressed(runs)
    if not dense:
        raise UserError(f"no run of {network.name} without compression is among --records", "give its directory")
    reaching = [run for run in dense if convergence.reached(run, accuracy)]
    with_noise = next((run for run in reversed(reaching) if any(entry.get("noise_scale") for entry in run.curve)), None)
    sweep = len(reaching) > 2 and len({run.strategy["global_batch_size"] for run in reaching}) > 1
    if sweep or (with_noise is None and len({run.strategy["global_batch_size"] for run in dense}) > 1):
        return convergence.from_records(dense, accuracy)
    return convergence.from_run(with_noise or dense[-1], accuracy)


def _amount(o: argparse.Namespace, network: Workload, goal: Goal) -> TrainingTarget:
    """Return the training of given epochs or samples, for any batch."""
    for name in ("epochs", "samples", "tokens", "data"):
        value = getattr(o, name)
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"--{name} {value:g}", "give a positive number")
    epoch = round(o.data) if o.data else convergence.epoch_samples(network.name)
    lengths, sequences = SampleLengths.of(getattr(o, "tokens_per_sample", "")), StepTask.of(getattr(o, "task", SFT)).sequences
    packed = lengths.mean / network.tokens if lengths.packed and network.tokens else 1.0  # sequences of a sample
    if o.epochs is not None:
        if not epoch:
            raise UserError(
                f"how many samples an epoch of {network.name} has is unknown", "give --data, or --samples instead of --epochs"
            )
        title = f"{o.epochs:g} epochs of {epoch:,} samples"
        return TrainingTarget(title=title, total=o.epochs * epoch * packed, epoch_samples=epoch)
    if o.tokens is not None:
        if not network.tokens:
            raise UserError(f"--tokens: a sample of {network.name} is {network.sample}", "give --samples instead")
        padded = lengths.vary and not lengths.packed
        each = f"samples of {lengths.mean:g} at the mean" if padded else f"sequences of {network.tokens:,}"
        of_sample = (lengths.mean if padded else network.tokens) * sequences
        return TrainingTarget(title=f"{o.tokens:,.0f} tokens in {each}", total=o.tokens / of_sample, epoch_samples=epoch)
    if o.samples is not None:
        return TrainingTarget(title=f"{o.samples:,.0f} samples", total=o.samples * packed, epoch_samples=epoch)
    if goal.kind in ("deadline", "budget"):
        raise UserError(f"goal {goal} needs an amount of training", "give --target, --epochs, --samples or --tokens")
    return TrainingTarget(epoch_samples=epoch)
