"""Thinner layers against the whole ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slimming.methods.low_rank import factors, most_ranks, product, rank_at, ranks_at, reconstruction_error, split
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.replacements import replaced
from paceline.slimming.structures.shrink import differs, load

LAYERS = {
    "strided": (lambda: nn.Conv2d(6, 10, (3, 5), stride=(2, 1), padding=(1, 2), dilation=2), (2, 6, 19, 20)),
    "reflected": (lambda: nn.Conv2d(6, 10, 3, padding="same", padding_mode="reflect", bias=False), (2, 6, 8, 8)),
    "pointwise": (lambda: nn.Conv2d(10, 4, 1), (2, 10, 5, 5)),
    "one dimension": (lambda: nn.Conv1d(5, 7, 3), (2, 5, 9)),
    "linear": (lambda: nn.Linear(5, 9), (3, 5)),
}


@pytest.mark.parametrize("form", ["svd", "tucker"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_split_at_full_rank_is_the_layer(name: str, form: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make().eval()
    if name == "linear" and form == "tucker":
        with pytest.raises(UserError, match="unknown form 'tucker'"):
            split(layer, {"form": form, "ranks": [1, 1]})
        return
    thin = split(layer, {"form": form, "ranks": list(most_ranks(layer.weight, form))})
    assert isinstance(thin, nn.Sequential) and {type(each) for each in thin} == {type(layer)}
    assert len(thin) == (2 if form == "svd" else 3) and not thin.training
    assert differs(layer, thin, (torch.randn(shape),)) < 1e-5


def test_the_rank_is_the_smallest_within_the_error() -> None:
    left, right = (torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(n)))[0] for n in (1, 2))
    squares = torch.tensor([50.0, 25, 15, 5.5, 4.5, *[0] * 7])
    weight = (left * squares.sqrt()) @ right.T
    assert [rank_at(weight, error) for error in (0, 0.044, 0.046, 0.099, 0.101, 0.251, 0.49, 0.51, 1)] == [
        5,
        5,
        4,
        4,
        3,
        2,
        2,
        1,
        0,
    ]
    assert rank_at(torch.zeros(3, 4)) == 0
    for error in (0.046, 0.101):
        (rank,) = ranks_at(weight, "svd", error)
        assert reconstruction_error(weight, "svd", [rank]) <= error < reconstruction_error(weight, "svd", [rank - 1])


def test_svd_is_the_nearest_and_tucker_is_within_the_sum_of_both_sides() -> None:
    torch.manual_seed(0)
    weight = torch.randn(8, 6, 3, 3)
    values = torch.linalg.svdvals(weight.flatten(1)).square()
    assert reconstruction_error(weight, "svd", [5]) == pytest.approx(float(values[5:].sum() / values.sum()), rel=1e-5)
    for error in (0.1, 0.3):
        assert reconstruction_error(weight, "tucker", ranks_at(weight, "tucker", error)) <= error
    exact = torch.einsum("no,oiyx,ic->ncyx", torch.randn(8, 3), torch.randn(3, 2, 3, 3), torch.randn(2, 6))
    assert ranks_at(exact, "tucker", 1e-8) == (3, 2)
    assert torch.allclose(product(factors(exact, "tucker", (3, 2))).float(), exact, atol=1e-5)


def test_a_plan_is_loaded_onto_fresh_code_then_its_weights(tmp_path: Path) -> None:
    def code() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False), nn.Flatten(), nn.Linear(32, 6))

    replacements = {
        "0": {"kind": "low_rank", "form": "svd", "ranks": [4]},
        "2": {"kind": "low_rank", "form": "tucker", "ranks": [3, 5]},
        "4": {"kind": "low_rank", "form": "svd", "ranks": [2]},
    }
    small = load(SlimPlan({}, {}, {}, replacements), code())
    SlimPlan({}, {}, {}, replacements).save(tmp_path / "plan.json")
    with torch.device("meta"):
        empty = code()
    again = load(SlimPlan.load(tmp_path / "plan.json"), empty).to_empty(device="cpu")
    again.load_state_dict(small.state_dict())
    assert differs(small, again, (torch.randn(2, 3, 6, 6),)) == 0
    assert sum(each.numel() for each in small.parameters()) < sum(each.numel() for each in code().parameters())
    small(torch.randn(2, 3, 6, 6)).sum().backward()
    assert all(each.grad is not None for each in small.parameters())


def test_a_split_draws_no_random_numbers_and_freezes_what_was_frozen() -> None:
    layer = nn.Conv2d(4, 4, 3).requires_grad_(False)
    state = torch.random.get_rng_state()
    thin = split(layer, {"ranks": [2]})
    assert torch.equal(state, torch.random.get_rng_state()) and not any(each.requires_grad for each in thin.parameters())


class Doubled(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("layer", "settings", "message"),
    [
        (nn.Conv2d(4, 4, 3, groups=2), {"ranks": [1]}, "a convolution of 2 groups has no form of low rank"),
        (nn.LSTM(2, 2), {"ranks": [1]}, "a LSTM has no form"),
        (Doubled(2, 2, 1), {"ranks": [1]}, "a Doubled has no form"),
        (nn.Conv2d(4, 6, 3), {"ranks": [7]}, r"ranks \[7\] of svd for Conv2d; give a list of 1 to 6"),
        (nn.Conv2d(4, 6, 3), {"ranks": [0]}, r"ranks \[0\]"),
        (nn.Conv2d(4, 6, 3), {"form": "tucker", "ranks": [2]}, "give a list of 1 to 6 and 1 to 4"),
        (nn.Conv2d(4, 6, 3), {"form": "cp", "ranks": [2]}, "unknown form 'cp'"),
        (nn.Conv2d(4, 6, 3), {}, "ranks None"),
    ],
)
def test_what_has_no_form_is_refused(layer: nn.Module, settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replaced(nn.Sequential(layer), {"0": {"kind": "low_rank", **settings}})
