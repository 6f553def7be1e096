"""The proximal step of group Lasso."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slimming.methods.group_lasso import GroupLasso, StructureNorms
from paceline.slimming.structures.shrink import differs, shrunk
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import Recurrent, Residual, images, tokens, unlike


def two_layers() -> tuple[nn.Sequential, Structures]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    return model, structures_of(model, (torch.randn(3, 4),))


def test_norms_are_those_of_all_slices_of_a_structure() -> None:
    model, found = two_layers()
    first, last = model[0], model[2]
    norms = StructureNorms(model, found).norms()
    for unit, norm in enumerate(norms.tolist()):
        parts = (first.weight[unit], first.bias[unit : unit + 1], last.weight[:, unit])
        assert math.isclose(norm, math.sqrt(sum(float(part.detach().square().sum()) for part in parts)), rel_tol=1e-5)


@pytest.mark.parametrize("make", [Residual, Recurrent])
def test_norms_of_any_network_are_counted_slice_by_slice(make: type[nn.Module]) -> None:
    model = unlike(make())
    found = structures_of(model, images() if make is Residual else tokens())
    groups, tensors = StructureNorms(model, found), dict(model.named_parameters())
    for structure, norm in zip(found.every, groups.norms().tolist(), strict=True):
        slices = [(tensors[p.parameter], p) for p in structure.slices if p.parameter in tensors]
        square = sum(float(t.detach().index_select(p.dim, torch.tensor(p.indices)).square().sum()) for t, p in slices)
        assert math.isclose(norm, math.sqrt(square), rel_tol=1e-4)


def test_one_step_is_the_proximal_operator_and_exact_zeros_come_of_it() -> None:
    """Without a gradient each structure is scaled by max(0, 1 - lr s m / |W|), m the layer's median norm."""
    model, found = two_layers()
    before, groups = copy.deepcopy(model), StructureNorms(model, found)
    norms = groups.norms()
    lasso = GroupLasso(
        torch.optim.SGD(model.parameters(), lr=0.5), model, found, 2.0 * float(norms.max() / norms.median()) * 0.9
    )
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    lasso.step()
    pull = 0.5 * lasso.strength * float(norms.median())
    factors = (1 - pull / norms).clamp(min=0)
    assert torch.allclose(model[0].weight, before[0].weight * factors[:, None], atol=1e-7)
    assert torch.allclose(model[2].weight, before[2].weight * factors, atol=1e-7)
    assert torch.equal(model[2].bias, before[2].bias), "what belongs to no structure stays"
    zero = {number for number, factor in zip(groups.numbers, factors.tolist(), strict=True) if factor == 0}
    assert lasso.removed() == zero and 0 < len(zero) < 6
    small = shrunk(model, found, lasso.removed())
    assert differs(model, small, (torch.randn(3, 4),)) < 1e-6, "zeros are removed without any change"


@pytest.mark.long
def test_it_finds_the_inputs_that_matter() -> None:
    """A wide network learns a function of two hidden units; the rest becomes zero, and the fit stays."""
    torch.manual_seed(1)
    x = torch.randn(256, 4)
    y = torch.stack([torch.relu(x[:, 0] + x[:, 1]), torch.relu(x[:, 2] - x[:, 3])], 1)
    model = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2))
    lasso = GroupLasso(torch.optim.Adam(model.parameters(), lr=0.01), model, structures_of(model, (x,)), 0.5)
    for _ in range(800):
        lasso.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        lasso.step()
    assert len(lasso.removed()) >= 16 and float(loss) < 0.05


def test_chosen_structures_fade_and_the_others_stop_shrinking() -> None:
    model, found = two_layers()
    lasso = GroupLasso(torch.optim.SGD(model.parameters(), lr=0.1), model, found, 2.0)
    before = lasso.groups.norms()
    chosen = {each.number for each in found.every[:2]}
    lasso.only(chosen)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(20):
        lasso.step()
    assert lasso.removed() == chosen
    assert torch.equal(lasso.groups.norms()[2:], before[2:])


def test_rates_are_shared_and_a_state_goes_on_bit_for_bit() -> None:
    def trained(lasso: GroupLasso, model: nn.Module, steps: int) -> None:
        schedule = torch.optim.lr_scheduler.StepLR(lasso, 1, 0.5) if steps < 0 else None
        generator = torch.Generator().manual_seed(3)
        for _ in range(abs(steps)):
            lasso.zero_grad()
            model(torch.randn(3, 4, generator=generator)).square().sum().backward()
            lasso.step()
            if schedule is not None:
                schedule.step()

    def made() -> tuple[nn.Module, GroupLasso]:
        model, found = two_layers()
        return model, GroupLasso(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, found, 0.1)

    model, lasso = made()
    trained(lasso, model, -2)
    assert lasso.inner.param_groups[0]["lr"] == lasso.rate == 0.025
    state, weights = copy.deepcopy(lasso.state_dict()), copy.deepcopy(model.state_dict())
    trained(lasso, model, 3)
    again, other = made()
    again.load_state_dict(weights)
    other.load_state_dict(state)
    trained(other, again, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_negative_strength_is_refused() -> None:
    model, found = two_layers()
    with pytest.raises(UserError, match="a strength of -1"):
        GroupLasso(torch.optim.SGD(model.parameters(), lr=0.1), model, found, -1.0)
