"""Which layers are split, where the times are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slimming.methods.low_rank import reconstruction_error
from paceline.slimming.methods.low_rank_choice import Way, ranks_for
from paceline.slimming.structures.shrink import load
from slimming_networks import Transformer, tokens


class Network(nn.Module):
    """A convolution of low rank, one of full rank, one that runs twice, and what cannot be split."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.low, self.full = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.twice, self.grouped = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, groups=2)
        self.one, self.other = nn.Linear(32, 32), nn.Linear(32, 32)
        self.other.weight, self.unused = self.one.weight, nn.Linear(16, 16)
        with torch.no_grad():
            self.low.weight.copy_((torch.randn(32, 8) @ torch.randn(8, 144)).view(32, 16, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.twice(self.twice(self.full(self.low(x))))
        result: torch.Tensor = self.other(self.one(self.grouped(x).mean((2, 3))))
        return result


INPUTS = (torch.randn(1, 16, 8, 8),)


def multiplications(chains: Mapping[Way, Sequence[nn.Module]], shape: tuple[int, ...]) -> dict[Way, float]:
    """Seconds at a million products a second; the pictures keep their size."""
    places = shape[2] * shape[3] if len(shape) == 4 else 1
    return {way: sum(each.weight.numel() for each in layers) * places / 1e6 for way, layers in chains.items()}  # type: ignore[operator, misc, union-attr]


def test_a_budget_is_met_by_what_loses_least() -> None:
    model = Network().train()
    found = ranks_for(model, INPUTS, budget_s=2.3, whole_s=2.5, seconds=multiplications)
    assert found.splits["low"].ranks == (8,) and found.splits["low"].error < 1e-9 and set(found.splits) == {"low"}
    assert found.seconds == pytest.approx(2.5 - (32 * 144 - 8 * (144 + 32)) * 64 / 1e6) and model.training
    tighter = ranks_for(model, INPUTS, budget_s=1.0, whole_s=2.5, seconds=multiplications)
    assert set(tighter.splits) == {"low", "full", "twice"} and tighter.seconds <= 1.0
    saved = sum(tighter.whole[name].seconds - each.seconds for name, each in tighter.splits.items())
    assert tighter.seconds == pytest.approx(2.5 - saved)
    for name, each in tighter.splits.items():
        weight = model.get_submodule(name).weight
        assert each.error == pytest.approx(reconstruction_error(weight, each.form, each.ranks), abs=1e-9)  # type: ignore[arg-type]
        assert all(rank % 8 == 0 for rank in each.ranks)
    small = load(tighter.plan, model)
    assert small(*INPUTS).shape == (1, 32)


def test_what_a_budget_leaves_over_goes_back() -> None:
    """The next better split of any layer would no longer meet it."""
    found = ranks_for(Network(), INPUTS, budget_s=1.4, whole_s=2.5, forms=["svd"], seconds=multiplications)
    for name, each in found.splits.items():
        more = each.ranks[0] + 8
        columns = 144 if name == "low" else 288
        runs = 2 if name == "twice" else 1
        costs = min((more - each.ranks[0]) * (32 + columns), 32 * columns - each.ranks[0] * (32 + columns)) * 64 * runs / 1e6
        assert name == "low" or found.seconds + costs > 1.4


def test_an_error_bounds_each_layer() -> None:
    found = ranks_for(Network(), INPUTS, error=0.3, seconds=multiplications)
    assert {"low", "full", "twice"} == set(found.splits) and all(each.error <= 0.3 for each in found.splits.values())
    assert found.seconds < 0, "without the whole network's latency it is what is saved"
    exact = ranks_for(Network(), INPUTS, error=1e-6, seconds=multiplications)
    assert set(exact.splits) == {"low"}


def test_layers_that_stay_are_named_with_the_reason() -> None:
    found = ranks_for(Network(), INPUTS, error=0.9, seconds=multiplications)
    assert "2 groups" in found.kept["grouped"] and "another module's" in found.kept["one"] == found.kept["other"]
    assert "does not run" in found.kept["unused"]

    def slower(chains: Mapping[Way, Sequence[nn.Module]], shape: tuple[int, ...]) -> dict[Way, float]:
        return {way: float(len(layers)) for way, layers in chains.items()}

    none = ranks_for(Network(), INPUTS, error=0.9, seconds=slower)
    assert not none.plan.replacements and "faster" in none.kept["full"], "what was measured not to pay is not split"


def test_layers_of_a_transformer_are_split_and_still_run_by_its_fast_path() -> None:
    model = Transformer()
    found = ranks_for(model, tokens(), error=0.9, seconds=multiplications)
    assert {"encoder.layers.0.linear1", "encoder.layers.1.linear2", "output"} <= set(found.splits)
    small = load(found.plan, model).eval()
    slow = small(*tokens()).detach()
    with torch.no_grad():  # without gradients PyTorch's encoder reads the weights of its linear layers
        assert torch.allclose(small(*tokens()), slow, atol=1e-4)


def test_a_budget_that_cannot_be_met_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"a latency of 1\.00 ms .*cannot be met.*the least that ranks allow is") as refused:
        ranks_for(Network(), INPUTS, budget_s=0.001, whole_s=2.5, seconds=multiplications)
    *_, number, name, factor = str(refused.value).split()
    least, unit = float(number), {"s": 1.0, "ms": 1e-3}[name]
    assert float(factor.strip("()x")) == pytest.approx(2.5 / (least * unit), rel=0.02)
    ranks_for(Network(), INPUTS, budget_s=least * unit * 1.01, whole_s=2.5, seconds=multiplications)
    for more in ({}, {"budget_s": 1.0, "error": 0.1}):
        with pytest.raises(UserError, match="give one of `budget_s` and `error`"):
            ranks_for(Network(), INPUTS, seconds=multiplications, **more)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unknown form 'cp'"):
        ranks_for(Network(), INPUTS, error=0.1, forms=["cp"])
