"""The ways to a smaller network, with figures in place of measurements."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slimming.latency.sparse_roofline import Advice, SparseRoof
from paceline.slimming.methods import methods
from paceline.slimming.methods.low_rank import rank_at
from paceline.slimming.methods.methods import METHODS, Sparse, target_for
from paceline.slimming.slim import Slim
from paceline.slimming.structures.tracing import structures_of
from recurrent_highway import Rhn
from slimming_networks import Recurrent, tokens

WHOLE = {"median_s": 2e-3, "low_s": 2e-3, "high_s": 2e-3, "turns": 1}


def test_each_method_removes_its_own_structures() -> None:
    model = Recurrent()
    found = structures_of(model, tokens())
    layers = {name: set(METHODS[name].structures(found, model, tokens()).layers()) for name in ("auto", "ssl", "iss")}
    assert layers["iss"] and layers["ssl"] and layers["iss"] | layers["ssl"] == layers["auto"]
    assert not layers["iss"] & layers["ssl"] and all("layers" in layer for layer in layers["iss"])


class Cells(nn.Module):
    """A loop over steps."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.enter, self.cell, self.output = nn.Linear(4, 6), cell, nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: Any = None
        for step in self.enter(x).unbind(1):
            state = self.cell(step, state)
        result: torch.Tensor = self.output(state[0] if isinstance(state, tuple) else state)
        return result


class Highway(nn.Module):
    """A recurrent highway network and what reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.output = Rhn(4, 8, 2), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.output(self.layer(x))
        return result


@pytest.mark.parametrize(
    ("model", "ssl", "iss"),
    [
        (Cells(nn.LSTMCell(6, 8)), {"enter.weight"}, {"cell.weight_ih"}),
        (Cells(nn.GRUCell(6, 8)), {"enter.weight"}, {"cell.weight_ih"}),
        (Highway(), set(), {"layer.enter.weight"}),
    ],
)
def test_units_of_loops_are_recurrent_ones(model: nn.Module, ssl: set[str], iss: set[str]) -> None:
    x = (torch.randn(2, 3, 4),)
    found = structures_of(model, x)
    for name, layers in (("ssl", ssl), ("iss", iss)):
        if layers:
            assert set(METHODS[name].structures(found, model, x).layers()) == layers
        else:
            with pytest.raises(UserError, match=f"{name} finds nothing"):
                METHODS[name].structures(found, model, x)


def test_a_layer_of_two_towers_is_no_recurrent_one() -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower, self.output = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.output(self.tower(x).relu() * self.tower(-x).relu())
            return result

    assert not structures_of(Towers(), (torch.randn(2, 4),)).recurrent


def advised() -> dict[str, Advice]:
    return {"0": Advice(None, "refused: first"), "1": Advice(SparseRoof(1e-3, 2.0, 1e-4, 1000)), "2": Advice(None, "small")}


def slim_of(budget: str, method: str = "sparse", least_s: float = 2e-3) -> Slim:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    table = {"whole": WHOLE, "least_s": least_s}
    return Slim(model, (torch.randn(1, 1, 8, 8),), budget=budget, method=method, table=table)


def test_the_least_sparsity_that_meets_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "advice", lambda *_: advised())
    slim = slim_of("latency=1.6ms")
    measured = Sparse().measure(slim)
    assert measured["sparsities"] == {"1": 0.7} and measured["sparse_s"] == pytest.approx(1.6e-3)
    assert measured["kept"] == {"0": "refused: first", "2": "small"}
    with pytest.raises(
        UserError, match=r"cannot be met by zeros; .*97% zeros give 1.10 ms \(1.81x\) \(0: refused: first; 2: small\)"
    ):
        Sparse().measure(slim_of("speedup=2x"))


def test_a_busy_machine_asks_for_no_more_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are timed by their least; so is the whole network beside them, while its median is what a user sees."""
    monkeypatch.setattr(methods, "advice", lambda *_: advised())
    quiet, busy = (Sparse().measure(slim_of("speedup=1.2x", least_s=least_s)) for least_s in (2e-3, 1.2e-3))
    assert busy["sparsities"]["1"] < quiet["sparsities"]["1"], "the layer is a larger share of what is really computed"
    assert quiet["sparse_s"] == pytest.approx(2e-3 / 1.2, rel=0.02) and busy["sparse_s"] == pytest.approx(2e-3 / 1.2, rel=0.02)


@pytest.mark.long
def test_ranks_that_cannot_meet_a_budget_are_refused_before_training() -> None:
    with pytest.raises(UserError, match=r"cannot be met by low rank; .* the least that ranks allow is .*x\)"):
        Slim(nn.Sequential(nn.Conv2d(1, 4, 3)), (torch.randn(1, 1, 8, 8),), budget="speedup=50x", method="force").check()


@pytest.mark.parametrize("method", ["force", "sparse"])
def test_what_says_no_latency_is_refused(method: str) -> None:
    with pytest.raises(UserError, match=f"{method} cannot aim at size=100B"):
        slim_of("size=100B", method).check()


def test_a_method_that_only_knows_one_runtime_is_refused_on_others() -> None:
    assert target_for("litert", "iss").title == "LiteRT" and target_for("onnxruntime", "sparse").suffix == ".onnx"
    with pytest.raises(UserError, match=r"sparse weighs layers .*, not on litert; give one of auto, ssl, iss"):
        target_for("litert", "sparse")
    with pytest.raises(UserError, match=r"unknown target 'executorc'.*did you mean executorch"):
        target_for("executorc", "auto")


def test_ranks_before_and_after_the_force_are_said() -> None:
    torch.manual_seed(0)
    before, after = (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 4)) for _ in range(2))
    with torch.no_grad():
        after[0].weight.copy_(after[0].weight[:1].expand(8, -1, -1, -1))
    (note,) = METHODS["force"].changes(before, after)
    assert note == f"Ranks at 5 % error before and after the force: 0 {rank_at(before[0].weight)} -> 1, 2 4 -> 4."
    assert METHODS["auto"].changes(before, after) == ()
