"""Forces between filters against the gradient that they are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.slimming.methods.force import ForceRegularizer, tangent_force
from paceline.slimming.methods.low_rank import rank_at


def filters(seed: int = 0) -> Tensor:
    return torch.randn(9, 3, 2, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regularizer(model: nn.Module, **more: object) -> ForceRegularizer:
    settings: dict[str, object] = {"strength": 0.1, **more}
    return ForceRegularizer(torch.optim.SGD(model.parameters(), lr=0.5), model, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("force", ["L1", "L2"])
def test_a_force_is_the_gradient_of_distances_of_normalised_filters(force: str) -> None:
    """Times the square of the filter's norm: the gradient by a filter falls with its norm, the force grows with it."""
    weight = filters().requires_grad_()
    flat = weight.flatten(1)
    directions = flat / flat.norm(dim=1, keepdim=True)
    squares = (directions[:, None] - directions).square().sum(-1)[*torch.triu_indices(9, 9, 1)]
    energy = squares.sum() / 2 if force == "L2" else squares.sqrt().sum()
    (gradient,) = torch.autograd.grad(energy, weight)
    expected = -gradient * flat.detach().square().sum(1).view(-1, 1, 1, 1)
    assert torch.allclose(tangent_force(weight, force), expected, atol=1e-10)


@pytest.mark.parametrize("force", ["L1", "L2"])
def test_norms_stay_to_first_order(force: str) -> None:
    weight = filters()
    norms = weight.flatten(1).norm(dim=1)
    pull = tangent_force(weight, force)
    changes = [float(((weight + step * pull).flatten(1).norm(dim=1) - norms).abs().max()) for step in (1e-2, 1e-3)]
    assert changes[0] / changes[1] == pytest.approx(100, rel=0.05), "a tenth of the step, a hundredth of the change"


@pytest.mark.parametrize("force", ["L1", "L2"])
def test_the_rank_falls_and_filters_of_zero_or_alike_stay_finite(force: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 16, 3, bias=False))
    with torch.no_grad():
        model[0].weight[0] = 0
        model[0].weight[2] = model[0].weight[1]
    before = rank_at(model[0].weight)
    optimizer = regularizer(model, force=force, strength=0.02)
    for _ in range(60):
        model[0].weight.grad = torch.zeros_like(model[0].weight)
        optimizer.step()
    assert model[0].weight.isfinite().all() and not model[0].weight[0].any()
    assert rank_at(model[0].weight) < before / 2


def test_a_step_is_the_optimizers_then_the_force_at_the_groups_rate() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 3))
    other = copy.deepcopy(model)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        one.grad = torch.randn_like(one)
        two.grad = one.grad.clone()
    torch.optim.SGD(other.parameters(), lr=0.5).step()
    regularizer(model).step()
    expected = other[0].weight + 0.5 * 0.1 * tangent_force(other[0].weight)
    assert torch.allclose(model[0].weight, expected, atol=1e-6) and not torch.equal(model[0].weight, other[0].weight)
    for number in (1, 3):
        assert torch.equal(model[number].weight, other[number].weight), "neither grouped nor linear layers by default"


def test_linear_layers_and_named_layers_are_asked_for() -> None:
    torch.manual_seed(0)
    for more, moved in (({"linear": True}, {0, 1}), ({"layers": ["1"]}, {1}), ({}, {0})):
        model = nn.Sequential(nn.Conv1d(2, 4, 1), nn.Linear(4, 3))
        before = copy.deepcopy(model)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        regularizer(model, **more).step()
        assert {number for number in (0, 1) if not torch.equal(model[number].weight, before[number].weight)} == moved


def test_components_against_the_loss_are_dropped_and_the_force_is_scaled_to_the_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False))
    start = model[0].weight.detach().clone()
    gradient = torch.randn_like(start)
    moves = []
    for more in ({"same": True}, {"adaptive": True}):
        with torch.no_grad():
            model[0].weight.copy_(start)
        model[0].weight.grad = gradient.clone()
        optimizer = regularizer(model, **more)
        optimizer.step()
        moves.append(model[0].weight.detach() - (start - 0.5 * gradient))
    assert (moves[0] * gradient <= 1e-7).all() and 0.2 < float((moves[0].abs() > 1e-6).float().mean()) < 0.8
    assert float(moves[1].norm()) == pytest.approx(0.5 * 0.1 * float(gradient.norm()), rel=1e-4)


def test_it_goes_on_bit_for_bit() -> None:
    def made() -> tuple[nn.Module, ForceRegularizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 8, 3))
        return model, ForceRegularizer(torch.optim.Adam(model.parameters(), lr=0.01), model, 0.3, force="L1")

    def trained(model: nn.Module, optimizer: ForceRegularizer, seed: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
        optimizer.step()

    model, optimizer = made()
    trained(model, optimizer, 1)
    optimizer.strength = 0.2
    again, resumed = made()
    again.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for seed in (2, 3):
        trained(model, optimizer, seed)
        trained(again, resumed, seed)
    assert torch.equal(model[0].weight, again[0].weight)


def test_what_has_no_filters_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.ReLU())
    with pytest.raises(UserError, match="unknown force 'L3'"):
        regularizer(model, force="L3")
    with pytest.raises(UserError, match="unknown layer 'conv'"):
        regularizer(model, layers=["conv"])
    for name in "01":
        with pytest.raises(UserError, match=f"{name} is a .*name convolutions of one group"):
            regularizer(model, layers=[name])
