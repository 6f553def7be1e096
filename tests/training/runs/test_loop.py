"""The training loop's parts: optimizers with their defaults, seeds, the shown step, and each rank's slice of every batch."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paceline.strategy import OPTIMIZERS, Strategy
from paceline.training.runs import loop
from paceline.training.runs.data import Dataset
from paceline.training.runs.loop import (
    Alone,
    StepMeasurements,
    Trainer,
    gradient_histogram,
    make_optimizer,
    median_step,
    options_of,
)
from paceline.training.runs.starting_model import mixed_seed


@pytest.mark.parametrize("name", [name for name, of in OPTIMIZERS.items() if of.trained])
def test_an_optimizer_has_the_options_of_its_description(name: str) -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    parameters = [("first.weight", weight), ("head.weight", nn.Parameter(torch.ones(2, 2)))] if name == "muon" else [weight]
    optimizer = make_optimizer(name, parameters, 0.125)
    assert optimizer.param_groups[0]["lr"] == 0.125
    options = options_of(optimizer)
    assert OPTIMIZERS[name].options.items() <= options.items()
    assert ("beta1" in options) == ("beta2" in options) == (OPTIMIZERS[name].state_words == 2)
    other = make_optimizer(name, parameters, 0.125, options={"weight_decay": 0.25})
    assert options_of(other) == {**options, "weight_decay": 0.25}


@given(st.lists(st.integers(0, 2**70), min_size=1, max_size=3), st.integers(0, 2**70))
def test_a_seed_of_several_numbers_is_one_that_torch_takes(parts: list[int], other: int) -> None:
    seed = mixed_seed(*parts)
    assert 0 <= seed < 2**63 and seed == mixed_seed(*parts)
    torch.Generator().manual_seed(seed)
    if other % 2**63 != parts[-1] % 2**63:
        assert mixed_seed(*parts[:-1], other) != seed


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=200))
def test_the_step_that_is_shown_is_a_kept_one_near_the_median(seconds: list[float]) -> None:
    chosen = median_step(StepMeasurements(step=seconds))
    kept = range(max(0, len(seconds) - 64), len(seconds))
    middle = float(np.median(seconds))
    assert chosen in kept and abs(seconds[chosen] - middle) == pytest.approx(min(abs(seconds[i] - middle) for i in kept))


def test_the_last_64_steps_are_kept() -> None:
    """The only step at the median is the oldest of them; one step older it is gone."""
    assert median_step(StepMeasurements(step=[1.0] * 63 + [2.0] + [3.0] * 63)) == 63
    assert median_step(StepMeasurements(step=[1.0] * 64 + [2.0] + [3.0] * 64)) > 64


@pytest.mark.parametrize("scale", [0.0, 1e-3, 4.0])
def test_every_stage_of_a_gradient_is_counted_on_one_symmetric_axis(scale: float) -> None:
    values = scale * np.linspace(-1, 1, 101, dtype=np.float32)
    stages = {"original": values, "clipped": values / 2, "ternary": np.sign(values) * scale, "averaged": values * 0}
    shown = gradient_histogram({**stages, "layer": "a", "step": 3, "sigma": 0.1, "scale": scale}, bins=9)
    assert (shown["layer"], shown["step"], shown["rank"]) == ("a", 3, 0)
    for panel in shown["panels"].values():
        assert sum(panel["counts"]) == 101 and len(panel["counts"]) == 9
        assert panel["edges"][0] == -panel["edges"][-1] == pytest.approx(-(scale or 1.0))
    assert shown["panels"]["averaged"]["counts"][4] == 101


def trainer(rank: int, workers: int, samples: int, batch: int, monkeypatch: pytest.MonkeyPatch, **choices: Any) -> Trainer:
    monkeypatch.setattr(loop.dist, "get_rank", lambda: rank)
    x = torch.arange(float(samples))[:, None]
    data = Dataset("made up", x, torch.arange(samples), x[:4], torch.arange(4))
    strategy = Strategy.of(world_size=workers, global_batch_size=batch, **choices)
    model: Any = SimpleNamespace(process_group=None, module=nn.Linear(1, 4))
    hook: Any = SimpleNamespace()
    return Trainer(model, hook, torch.optim.SGD(model.module.parameters()), data, strategy, 7, torch.device("cpu"))


@pytest.mark.parametrize(("workers", "samples", "batch"), [(1, 10, 3), (2, 25, 8), (4, 33, 4)])
def test_the_ranks_share_every_global_batch(workers: int, samples: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All samples of an epoch are different ones; a last partial batch is left out; the order is that of seed and epoch."""
    parts = [list(trainer(r, workers, samples, batch, monkeypatch).batches(2)) for r in range(workers)]
    assert {len(part) for part in parts} == {samples // batch}
    labels = [int(label) for part in parts for _, y in part for label in y]
    assert len(set(labels)) == len(labels) == samples // batch * batch
    assert all(torch.equal(x[:, 0].long(), y) for part in parts for x, y in part)
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(mixed_seed(7, 2))).tolist()
    whole = [int(label) for step in zip(*parts, strict=True) for _, y in step for label in y]
    assert whole == order[: len(whole)]


def test_another_epoch_has_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    one_rank = trainer(0, 1, 40, 8, monkeypatch)
    first, again, second = ([y.tolist() for _, y in one_rank.batches(epoch)] for epoch in (0, 0, 1))
    assert first == again != second and sorted(chain(*first)) == sorted(chain(*second))
    assert one_rank.skipped_steps == 0 and one_rank.noise is None and one_rank.noise_scale() is None


def test_weights_that_are_not_finite_and_losses_that_stay_bad_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(0, 1, 40, 1, monkeypatch)
    losses = iter([torch.nan] * loop.BAD_STEPS + [1.0] + [torch.inf] * (loop.BAD_STEPS - 1))
    monkeypatch.setattr(made, "_step", lambda x, y: (made.times.step.append(0.0), torch.tensor(next(losses)))[1])
    made.model = Alone(made.model.module)  # type: ignore[assignment]
    told: list[str] = []
    made.train_epoch(0, lambda number: told.append(made.defect()))
    assert [number for number, text in enumerate(told) if text] == [loop.BAD_STEPS - 1]
    assert told[loop.BAD_STEPS - 1] == f"the loss was NaN or infinite in the last {loop.BAD_STEPS} steps"
    with torch.no_grad():
        made.model.module.bias[1] = torch.nan
    assert made.defect() == "weights are NaN or infinite (bias)"


def test_the_checksum_of_samples_sees_another_order_and_another_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    one, same = (trainer(rank, 2, 40, 2, monkeypatch) for rank in range(2))
    assert one.samples_checksum(0) == same.samples_checksum(0) != one.samples_checksum(1)
    same.data.train_x[7] += 1
    assert one.samples_checksum(0) != same.samples_checksum(0)
