"""Adaptation without labels: each term in closed form, and a training that stops and goes on."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.slimming.methods.domain_adaptation import (
    DomainAdaptation,
    DomainLoss,
    Recipe,
    Strengths,
    adapt,
    coral,
    entropy,
    mmd,
    normalised_for,
    predictions,
    ramp,
    reversed_gradient,
)
from paceline.slimming.methods.group_lasso import GroupLasso
from paceline.slimming.structures.tracing import structures_of

NONE = Strengths(0, 0, 0, 0)


def net(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2))


def clouds(shift: float, seed: int = 0, count: int = 400) -> tuple[Tensor, Tensor]:
    """Two classes, left and right, each a cloud; all moved to the right."""
    made = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=made)
    centres = torch.stack([2.0 * labels - 1, torch.zeros(count)], 1)
    return centres + 0.2 * torch.randn(count, 2, generator=made) + torch.tensor([shift, 0.0]), labels


def test_equal_samples_have_no_discrepancy_and_two_points_have_that_of_their_kernels() -> None:
    x = torch.randn(20, 5)
    assert float(mmd(x, x)) == pytest.approx(0, abs=1e-6)
    # Of the points 0 and 1 the mean squared distance is 1, so the kernels of their distance are exp(-1/width).
    kernels = [math.exp(-1 / width) for width in (0.25, 0.5, 1, 2, 4)]
    assert float(mmd(torch.zeros(1, 1), torch.ones(1, 1))) == pytest.approx(2 - 2 * sum(kernels) / 5)
    assert float(mmd(x, x + 3)) > float(mmd(x, x + 1)) > 0
    assert float(mmd(10 * x, 10 * x + 10)) == pytest.approx(float(mmd(x, x + 1)), rel=1e-4), "no unit matters"


def test_coral_is_that_of_numpy() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 30, 4))
    wanted = np.square(np.cov(x.T) - np.cov(2 * y.T)).sum() / (4 * 4**2)
    assert float(coral(torch.tensor(x), torch.tensor(2 * y))) == pytest.approx(wanted)
    assert float(coral(torch.tensor(x), torch.tensor(x + 7))) == pytest.approx(0, abs=1e-12), "means do not count"


def test_entropy_is_in_nats() -> None:
    assert float(entropy(torch.zeros(3, 10))) == pytest.approx(math.log(10))
    assert float(entropy(torch.tensor([[1e4, 0.0, 0.0]]))) == pytest.approx(0, abs=1e-6)
    p = torch.tensor([0.5, 0.25, 0.25])
    assert float(entropy(torch.stack([p.log(), p.log() + 5]))) == pytest.approx(1.5 * math.log(2))


def test_the_gradient_is_reversed_and_scaled_and_the_values_stay() -> None:
    x = torch.randn(4, requires_grad=True)
    y = reversed_gradient(x, 0.3)
    assert torch.equal(y, x)
    (y * torch.arange(4.0)).sum().backward()
    assert x.grad is not None and torch.allclose(x.grad, -0.3 * torch.arange(4.0))


def test_strengths_rise_as_published() -> None:
    assert (
        ramp(0) == 0 and ramp(0.5) == pytest.approx(2 / (1 + math.exp(-5)) - 1) and ramp(1) == pytest.approx(0.99991, abs=1e-5)
    )


def test_terms_are_those_of_their_strengths_and_time() -> None:
    torch.manual_seed(1)
    source, target = ((torch.randn(6, 3, requires_grad=True), torch.randn(6, 2)) for _ in range(2))
    loss = DomainLoss(3, Strengths(1, 2, 3, 0.5))
    terms = loss(source, target, 0.3)
    now = ramp(0.3)
    assert float(terms["mmd"].detach()) == pytest.approx(2 * now * float(mmd(source[0], target[0]).detach()))
    assert float(terms["coral"].detach()) == pytest.approx(3 * now * float(coral(source[0], target[0]).detach()))
    assert float(terms["entropy"]) == pytest.approx(0.5 * now * float(entropy(target[1])))
    assert float(DomainLoss(3, Strengths(0, 0, 0, 1))(source, target)["entropy"]) == pytest.approx(
        float(entropy(target[1])), rel=1e-3
    )
    assert DomainLoss(3, NONE)(source, target) == {}


def test_the_classifier_of_domains_learns_while_the_features_unlearn() -> None:
    torch.manual_seed(2)
    source, target = ((torch.randn(6, 3, requires_grad=True), torch.randn(6, 2)) for _ in range(2))
    loss = DomainLoss(3, Strengths(2, 0, 0, 0))
    scores = loss.domains(torch.cat([source[0], target[0]])).squeeze(1)
    plain = nn.functional.binary_cross_entropy_with_logits(scores, torch.tensor([1.0] * 6 + [0.0] * 6))
    wanted = torch.autograd.grad(plain, [source[0], *loss.domains.parameters()])
    found = torch.autograd.grad(loss(source, target, 0.5)["adversarial"], [source[0], *loss.domains.parameters()])
    assert torch.allclose(found[0], -2 * ramp(0.5) * wanted[0])
    assert all(torch.allclose(one, other) for one, other in zip(found[1:], wanted[1:], strict=True))


def test_a_shifted_domain_is_read_without_its_labels() -> None:
    source, (target, classes) = clouds(0), clouds(1.5, seed=1)
    recipe = Recipe(steps=60, batch=32, rate=0.05)

    def right(model: nn.Module) -> float:
        return float((predictions(model, target) == classes).float().mean())

    model = net()
    before = copy.deepcopy(model.state_dict())
    alone = DomainAdaptation(copy.deepcopy(model), source, target, replace(recipe, strengths=NONE))
    alone.run()
    assert right(normalised_for(alone.model, source[0])) < 0.7
    assert right(adapt(model, source, target, recipe)) > 0.95
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "the model stays"
    assert alone.terms.keys() == {"source"}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_run_that_stops_goes_on_bit_for_bit(dropout: float) -> None:
    source, (target, _) = clouds(0), clouds(1.5, seed=1)
    recipe = Recipe(steps=9, batch=8, strengths=Strengths(1, 1, 1, 0.1))

    def run(model: nn.Module) -> DomainAdaptation:
        found = structures_of(model, (target[:2],))
        return DomainAdaptation(model, source, target, recipe, lambda optimizer: GroupLasso(optimizer, model, found, 0.1))

    whole, first, second = (run(net(dropout)) for _ in range(3))
    whole.run()
    first.run(4)
    state = first.state_dict()
    first.run()
    torch.rand(5)
    second.load_state_dict(state)
    second.run()
    assert (second.step, second.terms) == (9, whole.terms)
    for one, other, third in zip(*(each.state_dict()["model"].values() for each in (whole, first, second)), strict=True):
        assert torch.equal(one, other) and torch.equal(one, third)
    assert whole.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / (1 + 10 * 8 / 9) ** 0.75)
    other_seed = DomainAdaptation(net(), source, target, replace(recipe, seed=1))
    with pytest.raises(UserError, match="another recipe"):
        other_seed.load_state_dict(state)


def test_each_step_and_each_seed_draws_batches_of_its_own_and_the_callers_generator_goes_on() -> None:
    source, (target, _) = clouds(0), clouds(1.5, seed=1)
    seen: list[Tensor] = []
    for seed in (0, 0, 1):
        model = net()
        model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        torch.manual_seed(5)
        DomainAdaptation(model, source, target, Recipe(steps=2, batch=16, seed=seed)).run()
        assert float(torch.rand(1)) == float(torch.rand(1, generator=torch.Generator().manual_seed(5)))
    drawn = [tuple(batch.flatten().tolist()) for batch in seen]
    assert drawn[:4] == drawn[4:8] and len(set(drawn)) == 8


def test_statistics_are_those_of_the_samples_and_nothing_else_changes() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 2)).train()
    x = torch.randn(512, 2) * 3 + 5
    same = normalised_for(model, x, batch=128)
    norm = same[0]
    assert isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None and norm.running_var is not None
    assert torch.allclose(norm.running_mean, x.mean(0), atol=1e-4) and norm.momentum == 0.1 and not same.training
    assert torch.allclose(norm.running_var, torch.stack([part.var(0) for part in x.split(128)]).mean(0), atol=1e-3)
    assert model.training and torch.equal(model[0].running_mean, torch.zeros(2)), "the model stays"  # type: ignore[arg-type]
    assert torch.equal(same[2].weight, model[2].weight)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "count", "changed", "words"),
    [
        (nn.Conv2d(1, 1, 1), 4, {}, "Conv2d has no linear layer"),
        (nn.Linear(2, 2), 0, {}, "4 samples of the source and 0 of the target"),
        (nn.Linear(2, 2), 4, {"steps": 0}, "0 steps"),
        (nn.Linear(2, 2), 4, {"batch": 1}, "1 samples in a batch"),
    ],
)
def test_what_cannot_be_adapted_is_said(model: nn.Module, count: int, changed: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        DomainAdaptation(model, clouds(0, count=4), torch.zeros(count, 2), replace(Recipe(), **changed))  # type: ignore[arg-type]
