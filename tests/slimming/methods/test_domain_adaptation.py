"""Adaptation without labels: each term in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from paceline.slimming.methods.domain_adaptation import (
    DomainLoss,
    Strengths,
    coral,
    entropy,
    mmd,
    normalised_for,
    ramp,
    reversed_gradient,
)

NONE = Strengths(0, 0, 0, 0)


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
