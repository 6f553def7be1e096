"""The path from the whole network to a budget."""

from __future__ import annotations

import copy
from collections.abc import Collection

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slimming.methods.budget_path import BudgetPath
from paceline.slimming.structures.shrink import differs, shrunk, weight_bytes
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of

STEPS = 60


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))


def path_of(model: nn.Module, goal: float = 0.4, momentum: float = 0.9) -> tuple[BudgetPath, Structures]:
    found = structures_of(model, (torch.randn(2, 6),))

    def cost(gone: Collection[int]) -> float:
        return weight_bytes(found, gone)

    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum)
    return BudgetPath(optimizer, model, found, cost, goal * cost(()), STEPS, round_to=4), found


def train(model: nn.Module, path: BudgetPath, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(16, 6, generator=generator)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
        path.zero_grad()
        loss.backward()
        path.step()


def test_the_path_ends_within_the_budget_with_exact_zeros() -> None:
    model = network()
    path, found = path_of(model)
    whole = weight_bytes(found)
    train(model, path, STEPS // 3)
    assert 0.4 * whole < path.cost < whole, "it goes down on the way and not at once"
    train(model, path, STEPS - STEPS // 3, STEPS // 3)
    assert path.cost <= 0.4 * whole
    small = shrunk(model, found, path.removed())
    assert differs(model, small, (torch.randn(4, 6),)) < 1e-6, "what is removed was zero already"


@pytest.mark.long
def test_weights_that_no_gradient_moves_become_zero_and_not_nearly_zero() -> None:
    """In many small steps rounding must leave nothing: squares of what is left would vanish before it does."""
    model = network()
    found = structures_of(model, (torch.randn(2, 6),))
    whole = weight_bytes(found)
    path = BudgetPath(
        torch.optim.SGD(model.parameters(), 0.05), model, found, lambda gone: weight_bytes(found, gone), 0.4 * whole, 3000, 4
    )
    for _ in range(2260):  # the descent and a little
        path.step()
    assert path.cost <= 0.4 * whole
    norms = dict(zip(path.groups.numbers, path.groups.norms().tolist(), strict=True))
    assert {number for number, norm in norms.items() if norm == 0} == path.removed()
    assert min(norm for norm in norms.values() if norm) > 1e-3


def test_the_state_of_another_network_is_refused() -> None:
    small = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    state = path_of(network())[0].state_dict()["wrapper"]
    with pytest.raises(UserError, match="the state is of 48 structures, this network has 8"):
        path_of(small)[0].load_own_state(state)


def test_zeros_stay_whatever_the_momentum_says() -> None:
    model = network()
    path, _ = path_of(model)
    train(model, path, STEPS)
    removed = path.removed()
    train(model, path, 10, STEPS)
    assert removed and path.removed() == removed


def test_a_path_that_was_broken_off_goes_on_bit_for_bit() -> None:
    model = network()
    path, _ = path_of(model)
    train(model, path, 25)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(path.state_dict())
    train(model, path, 20, 25)
    again = network()
    again.load_state_dict(weights)
    other, _ = path_of(again)
    other.load_state_dict(state)
    train(again, other, 20, 25)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    assert other.removed() == path.removed()


@pytest.mark.long
def test_an_optimizer_that_holds_out_against_the_zeros_does_not_in_the_end() -> None:
    model = network()
    found = structures_of(model, (torch.randn(2, 6),))

    def cost(gone: Collection[int]) -> float:
        return weight_bytes(found, gone)

    path = BudgetPath(torch.optim.Adam(model.parameters(), 2.0), model, found, cost, 0.3 * cost(()), 8 * STEPS, round_to=4)
    for _ in range(8 * STEPS):
        path.zero_grad()
        torch.stack([-each.abs().sum() for each in model.parameters()]).sum().backward()  # all weights grow without an end
        path.step()
    assert path.cost <= 0.3 * cost(())
