"""TernGrad learns what dense learns, in as many epochs."""

from __future__ import annotations

import csv
import os
import statistics
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from distributed import TESTS, launch
from paceline.strategy import Strategy
from paceline.training.attach.attach import attach, wrap
from paceline.training.runs.data import Dataset, load
from paceline.training.runs.loop import Trainer, make_optimizer
from paceline.training.runs.starting_model import build_model

RESULTS = TESTS.parent / "benchmarks" / "results"
MNIST_RUNS = {(workers, optimizer) for workers in "248" for optimizer in ("sgd", "momentum", "adam")}
SHARED = Path(os.environ.get("PACELINE_SHARED", TESTS.parent.parent / "shared"))
MNIST = SHARED / "data" / "datasets" / "mnist"
BATCH = 64  # of all workers together, as TernGrad's LeNet runs have it
CAP = 25 << 20


def train_lenet(
    rank: int, workers: int, data: str, samples: int, epochs: int, optimizer: str, lr: float, ways: list[str]
) -> dict[str, float]:
    """Held-out accuracy of LeNet-5 after ``epochs`` over the first ``samples``, by compression."""
    whole = load(data)
    part = Dataset(whole.name, whole.train_x[:samples], whole.train_y[:samples], whole.test_x, whole.test_y)
    result = {}
    for way in ways:
        strategy = Strategy.of(
            world_size=workers, global_batch_size=BATCH, compression=way, first_bucket_bytes=CAP, bucket_bytes=CAP
        )
        model = wrap(build_model("lenet5", 0), strategy)
        hook = attach(model, way)
        stepper = make_optimizer(optimizer, model.parameters(), lr)
        trainer = Trainer(model, hook, stepper, part, strategy, 0, torch.device("cpu"))
        steps = epochs * trainer.steps_per_epoch
        decay = torch.optim.lr_scheduler.LambdaLR(stepper, lambda step, steps=steps: max(0.0, 1 - step / steps))
        trainer.settle_buckets()
        for epoch in range(epochs):
            trainer.train_epoch(epoch, lambda _, decay=decay: decay.step())
            trainer.check_replicas()
        result[way] = trainer.evaluate()[0]
        assert hook.meter.nonfinite_steps == 0
    return result


@pytest.mark.long
def test_lenet_on_digits_is_as_good_as_dense_in_equal_epochs():
    ranks = launch(
        train_lenet,
        2,
        timeout=280,
        data="digits",
        samples=1438,
        epochs=5,
        optimizer="momentum",
        lr=0.02,
        ways=["dense", "terngrad"],
    )
    assert all(r == ranks[0] for r in ranks)
    accuracy = ranks[0]
    assert accuracy["dense"] > 0.93, accuracy
    assert accuracy["terngrad"] > accuracy["dense"] - 0.02, accuracy


@pytest.mark.full
@pytest.mark.skipif(not MNIST.is_dir(), reason=f"needs MNIST files in {MNIST}; PACELINE_SHARED may name another place")
def test_lenet_on_26_000_of_mnist_passes_97_percent_in_one_epoch():
    (accuracy, *_) = launch(
        train_lenet,
        2,
        timeout=280,
        data=f"mnist:{MNIST}",
        samples=26_000,
        epochs=1,
        optimizer="momentum",
        lr=0.05,
        ways=["terngrad"],
    )
    assert accuracy["terngrad"] > 0.97, accuracy


def table(name: str) -> tuple[dict[tuple[str, str, str], list[float]], list[dict[str, str]]]:
    """Accuracies in percent of a committed table by (workers, optimizer, compression), and its rows."""
    path = RESULTS / name
    if not path.exists():
        pytest.skip(f"needs benchmarks/results/{name}: run benchmarks/terngrad_accuracy.py")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        found[row["workers"], row["optimizer"], row["compression"]].append(100 * float(row["accuracy"]))
    return found, rows


def lines(found: dict[tuple[str, str, str], list[float]]) -> str:
    return "\n" + "\n".join(f"{' '.join(key):28s} {statistics.fmean(v):.2f} % of {len(v)}" for key, v in sorted(found.items()))


@pytest.mark.parametrize("workers", ["2", "4", "8"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_the_committed_table_on_digits_is_within_half_a_point_of_dense(workers, optimizer):
    found, rows = table("terngrad_accuracy_digits.csv")
    dense, terngrad = found[workers, optimizer, "dense"], found[workers, optimizer, "terngrad"]
    assert len(dense) == len(terngrad) == 5, lines(found)
    assert statistics.fmean(terngrad) >= statistics.fmean(dense) - 0.5, lines(found)
    assert len({row["epochs"] for row in rows}) == 1 and len({row["lr"] for row in rows if row["optimizer"] == optimizer}) == 1


def test_the_committed_table_on_mnist_reaches_99_percent():
    found, rows = table("terngrad_accuracy_mnist.csv")
    assert rows
    for (_, _, compression), values in found.items():
        assert compression == "dense" or statistics.fmean(values) >= 99.0, lines(found)
    assert {key[:2] for key in found if key[2] == "terngrad"} >= MNIST_RUNS, lines(found)
