"""Slimming in a loop of one's own, without measuring: the budget is of bytes, or a table is given."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline
from opaque_modules import Branching, around
from paceline.errors import UserError
from paceline.slimming.latency.latency import Latency
from paceline.slimming.methods.low_rank_choice import ranks_for
from paceline.slimming.slim import Slim
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import differs, load, masked, weight_bytes


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        x = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(x), (x.mean((1, 2, 3)) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_stock_loop_with_two_more_lines(tmp_path: Path) -> None:
    model = network()
    slim = paceline.slim(model, budget="size=12kB")  # the first batch says what the inputs are
    optimizer = slim.wrap(torch.optim.SGD(model.parameters(), 0.05, 0.9), steps=20)
    train(model, optimizer, 20)
    small = slim.shrink()
    assert slim.inputs[0].shape == (1, 1, 8, 8)
    assert 4 * sum(each.numel() for each in small.parameters()) <= 12_000 < weight_bytes(slim.structures)
    assert [type(each) for each in small] == [type(each) for each in model]  # type: ignore[call-overload]
    assert slim.plan is not None
    slim.plan.save(tmp_path / "plan.json")
    x = torch.randn(2, 1, 8, 8)
    for again in (paceline.slim.load(tmp_path / "plan.json", network()), slim.load(slim.plan, network())):
        again.load_state_dict(small.state_dict())
        assert torch.equal(small(x), again(x))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_a_size_counts_weights_in_their_own_type(kind: torch.dtype) -> None:
    def saved(model: nn.Module) -> int:
        return sum(each.nbytes for each in model.state_dict().values())

    model = network().to(kind)
    budget = 0.6 * saved(model)
    slim = Slim(model, (torch.randn(1, 1, 8, 8, dtype=kind),), budget=f"size={budget:.0f}B")
    with pytest.warns(UserWarning, match="not zero yet"):
        small = slim.shrink()
    assert 0.7 * budget < saved(small) <= budget


def test_a_loop_that_was_broken_off_goes_on_bit_for_bit() -> None:
    straight = network()
    slim = Slim(straight, (torch.randn(1, 1, 8, 8),), budget="size=12kB")
    optimizer = slim.wrap(torch.optim.SGD(straight.parameters(), 0.05, 0.9), steps=20)
    train(straight, optimizer, 6)
    weights, state = copy.deepcopy(straight.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(straight, optimizer, 9)
    resumed = network()
    resumed.load_state_dict(weights)
    again = Slim(resumed, (torch.randn(1, 1, 8, 8),), budget="size=12kB")
    other = again.wrap(torch.optim.SGD(resumed.parameters(), 0.05, 0.9), steps=20)
    other.load_state_dict(state)
    train(resumed, other, 9)
    assert all(torch.equal(a, b) for a, b in zip(straight.state_dict().values(), resumed.state_dict().values(), strict=True))


def test_what_is_removed_before_it_is_zero_is_said() -> None:
    model, inputs = network(), (torch.randn(1, 1, 8, 8),)
    slim = Slim(model, inputs, budget="size=12kB")
    with pytest.warns(UserWarning, match=r"(\d+) of \1 structures that were removed were not zero yet"):
        slim.shrink()
    assert len(slim.notes) == 1
    optimizer = slim.wrap(torch.optim.SGD(model.parameters(), 0.05, 0.9), steps=20)
    train(model, optimizer, 9)
    with pytest.warns(UserWarning, match=r"\d of \d+ structures that were removed were not zero yet"):
        slim.shrink()
    train(model, optimizer, 11)
    with warnings.catch_warnings(action="error"):
        slim.shrink()
    assert not slim.notes


def test_weights_that_the_user_froze_do_not_change() -> None:
    model = network()
    model[2].weight.requires_grad_(False)  # type: ignore[index, union-attr]
    before = model[2].weight.clone()  # type: ignore[index, union-attr]
    slim = Slim(model, (torch.randn(1, 1, 8, 8),), budget="size=12kB")
    with pytest.raises(UserError, match=r"nothing that could be removed \(0: frozen, or tied to a frozen weight"):
        slim.check()
    measured = {"whole": {"median_s": 1e-3, "low_s": 1e-3, "high_s": 1e-3, "turns": 1}, "least_s": 1e-3}
    forced = Slim(model, slim.inputs, method="force", table=measured)
    train(model, forced.wrap(torch.optim.SGD(model.parameters(), 0.05), steps=3), 3)
    assert torch.equal(model[2].weight, before)  # type: ignore[index, union-attr]
    assert ranks_for(model, slim.inputs, error=0.9).kept["2"] == "frozen"


def test_a_model_in_eval_mode_stays_so() -> None:
    model = network().eval()
    slim = Slim(model, (torch.randn(1, 1, 8, 8),), budget="size=12kB")
    with pytest.warns(UserWarning):
        assert not slim.shrink().training and not model.training


def test_what_cannot_be_is_refused() -> None:
    model, inputs = network(), (torch.randn(1, 1, 8, 8),)
    with pytest.raises(UserError, match="unknown method 'sl'"):
        Slim(model, inputs, method="sl")
    with pytest.raises(UserError, match="unknown target 'onnx'"):
        paceline.slim(model, inputs, target="onnx")
    with pytest.raises(UserError, match="no example of the inputs"):
        Slim(model, budget="size=12kB").shrink()
    with pytest.raises(UserError, match="0 steps"):
        Slim(model, inputs).wrap(torch.optim.SGD(model.parameters(), 0.1), 0)
    with pytest.raises(UserError, match=r"it meets size=1.00MB already"):
        Slim(model, inputs, budget="size=1MB").check()
    with pytest.raises(UserError, match=r"a budget of 20(\.0)? B cannot be met; .*the least that its structures allow"):
        Slim(model, inputs, budget="size=20B").check()
    with pytest.raises(UserError, match="iss finds nothing"):
        Slim(model, inputs, method="iss", budget="size=12kB").check()


def test_a_tensor_is_an_example_and_nonsense_is_refused() -> None:
    assert Slim(network(), torch.randn(1, 1, 8, 8), budget="size=12kB").inputs[0].shape == (1, 1, 8, 8)
    for given, says in (
        ({"threads": 0}, "0 threads"),
        ({"budget": "accuracy=-1pt"}, "accuracy=-1pt needs the data"),
        ({"budget": "decode=2x", "method": "force"}, "decode=2x with force"),
        ({"budget": "decode=2x", "context": 0}, "0 tokens of context"),
    ):
        with pytest.raises(UserError, match=says):
            Slim(network(), **given)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the model is of type function"):
        paceline.slim(network)  # type: ignore[arg-type]


def test_a_module_that_cannot_be_traced_is_named() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if float(x.sum()) > 0 else x

    with pytest.raises(UserError, match="Branches cannot be traced"):
        Slim(Branches(), (torch.randn(2),), budget="size=1kB").check()


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.mse_loss(model(x), x[:, :2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.long
@pytest.mark.everyday("True")
@pytest.mark.parametrize("training", [True, False])
def test_a_network_with_a_module_that_cannot_be_traced_meets_a_size(training: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = around(nn.Dropout(0.1), nn.Linear(6, 16), nn.Linear(16, 6), Branching()).train(training)
    slim = paceline.slim(model, budget="size=1.2kB")
    fit(model, slim.wrap(torch.optim.SGD(model.parameters(), 0.05, 0.9), steps=60), 60)
    with warnings.catch_warnings(action="error"):
        small = slim.shrink()
    assert all(each.training == training for net in (model, small) for each in net.modules())
    assert weight_bytes(slim.structures) > 1_200 >= 4 * sum(each.numel() for each in small.parameters())
    assert slim.plan is not None and "6 (Branching) cannot be traced: `if y.sum() > 0:`" in slim.kept["6"]
    whole = masked(model, slim.structures, slim.plan.removed(slim.structures))
    assert all(differs(whole, small, (torch.randn(rows, 4),)) < 1e-5 for rows in (1, 7))
    slim.plan.save(tmp_path / "plan.json")
    again = load(SlimPlan.load(tmp_path / "plan.json"), copy.deepcopy(model))
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), small.parameters(), strict=True))
    fit(small.train(), torch.optim.SGD(small.parameters(), 0.05), 2)


@pytest.mark.long
@pytest.mark.everyday("speedup=2x-auto")
@pytest.mark.parametrize(("budget", "method"), [("speedup=2x", "auto"), ("latency=1us", "ssl"), ("speedup=2x", "sparse")])
def test_a_latency_of_what_cannot_be_exported_is_refused_before_the_first_step(budget: str, method: str) -> None:
    model = around(Branching())
    before = copy.deepcopy(model.state_dict())
    slim = Slim(model, budget=budget, method=method)
    says = (
        r"Sequential cannot be exported to ONNX: 3 \(Branching\): `if y.sum\(\) > 0:` \(.*opaque_modules.py, line \d+\): .*; "
        r'rewrite that line, or slim for a size in your own loop: `paceline.slim\(model, inputs, budget="size=4MB"\)`$'
    )
    with pytest.raises(UserError, match=says) as error:
        fit(model, slim.wrap(torch.optim.SGD(model.parameters(), 0.05)), 1)
    assert "\n" not in str(error.value)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


class Named(nn.Module):
    """Takes two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.last = nn.Linear(4, 8), nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(
        self, x: torch.Tensor, scale: float = 1.0, other: torch.Tensor | None = None, turn: bool = True
    ) -> torch.Tensor:
        y = self.first(x) * scale
        result: torch.Tensor = self.last(torch.relu(y if other is None else y + self.other(other)))
        return result


def test_inputs_may_be_named() -> None:
    x, other = torch.randn(5, 4), torch.randn(5, 3)
    for inputs in ({"other": other, "x": x}, (x, 1.0, other), [x, 1.0, other]):
        slim = Slim(Named(), inputs, budget="size=300B")  # type: ignore[arg-type]
        assert slim.inputs == (x, 1.0, other) and len(slim.structures.every) == 8
    model = Named()
    slim = Slim(model, budget="size=300B")
    model(x=x, other=other)
    assert [getattr(each, "shape", each) for each in slim.inputs] == [(1, 4), 1.0, (1, 3)]
    with pytest.warns(UserWarning):
        assert slim.shrink()(x=x, other=other).shape == (5, 2)


def test_inputs_that_do_not_fit_are_refused() -> None:
    class ByName(nn.Module):
        def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
            return x if mask is None else x * mask

    x = torch.randn(2, 4)
    with pytest.raises(UserError, match=r"inputs of Named: missing a required argument: 'x'; its arguments are \(x: "):
        Slim(Named(), {"other": x})
    with pytest.raises(UserError, match=r"inputs of Named: got an unexpected keyword argument 'y'"):
        Slim(Named(), {"x": x, "y": x})
    assert Slim(ByName(), {"x": x}).inputs == (x,)
    with pytest.raises(UserError, match="ByName takes mask by name alone, and exported files go by order; give its forward"):
        Slim(ByName(), {"x": x, "mask": x})
    with pytest.raises(UserError, match="inputs of type str; give a tensor, a tuple, or a dict by argument"):
        Slim(Named(), "x")  # type: ignore[arg-type]


class Tied(nn.Module):
    """Predicts tokens with the weights of its own embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.output = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        self.output.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.output(torch.relu(self.inner(self.table(x))))
        return result


class AnySize(nn.Module):
    """Images of any size."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3)
        self.body = nn.Sequential(first, nn.BatchNorm2d(16), nn.ReLU(), second, nn.AdaptiveAvgPool2d(2))
        self.last = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.body(x).flatten(1))
        return result


@pytest.mark.parametrize(
    ("model", "budget", "inputs"),
    [
        (Tied(), "size=700B", [torch.randint(0, 20, shape) for shape in ((2, 3), (1, 1), (5, 9))]),
        (AnySize(), "size=4kB", [torch.randn(shape) for shape in ((2, 3, 12, 12), (1, 3, 9, 14), (4, 3, 21, 8))]),
    ],
)
def test_a_slimmed_network_runs_on_other_sizes(model: nn.Module, budget: str, inputs: list[torch.Tensor]) -> None:
    slim = Slim(model, inputs[0], budget=budget)
    with pytest.warns(UserWarning):
        small = slim.shrink()
    assert slim.plan is not None
    whole = masked(model, slim.structures, slim.plan.removed(slim.structures))
    assert all(differs(whole, small, (each,)) < 1e-5 for each in inputs)
    if isinstance(small, Tied):
        assert small.output.weight is small.table.weight and small.table.weight.shape[1] < 8


def test_a_state_that_is_saved_again_before_any_step_is_still_the_path() -> None:
    model = network()
    optimizer = Slim(model, (torch.randn(1, 1, 8, 8),), budget="size=12kB").wrap(torch.optim.SGD(model.parameters(), 0.05), 20)
    train(model, optimizer, 6)
    state = copy.deepcopy(optimizer.state_dict())
    again = Slim(model, (torch.randn(1, 1, 8, 8),), budget="size=12kB").wrap(torch.optim.SGD(model.parameters(), 0.05), 20)
    again.load_state_dict(state)
    assert again.state_dict()["wrapper"] == state["wrapper"]


def test_a_resumed_loop_goes_by_what_the_first_one_measured() -> None:
    table = {"whole": {"median_s": 1.0, "low_s": 1.0, "high_s": 1.0, "turns": 1}}
    model, x = network(), torch.randn(1, 1, 8, 8)
    first = Slim(model, (x,), budget="speedup=1.5x", table=table).wrap(torch.optim.SGD(model.parameters(), 0.05), 20)
    second = Slim(model, (x,), budget="speedup=1.5x")
    second.wrap(torch.optim.SGD(model.parameters(), 0.05), 20).load_state_dict(first.state_dict())
    assert second.measured == table and second.whole.median_s == 1.0


class TimeFirst(nn.Module):
    """(time, samples, 5): its first dimension is no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.lstm(x)[0][-1])
        return result


def test_an_example_whose_first_dimension_is_time_stays_whole() -> None:
    model = TimeFirst()
    slim = paceline.slim(model, budget="size=3kB")
    model(torch.randn(7, 4, 5))
    with pytest.warns(UserWarning, match=r"latencies are of inputs of shape \(7, 4, 5\)"):
        assert slim.inputs[0].shape == (7, 4, 5)


def test_a_batch_becomes_one_sample_and_what_is_no_batch_stays() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.inner(x * scale)
            return result

    model = Scaled()
    slim = paceline.slim(model, budget="size=12kB")
    model(torch.randn(6, 1, 8, 8), torch.ones(8))
    assert [each.shape for each in slim.inputs] == [(1, 1, 8, 8), (8,)]


@pytest.mark.parametrize("steps", [0, 1.5, "9", True])
def test_steps_are_whole_numbers(steps: Any) -> None:
    model = network()
    with pytest.raises(UserError, match="steps; give a whole number from 1 up"):
        paceline.slim(model, budget="size=12kB").wrap(torch.optim.SGD(model.parameters(), 0.1), steps)


def test_optimizers_and_budgets_of_another_kind_are_refused() -> None:
    model = network()
    slim = paceline.slim(model, budget="size=12kB")
    with pytest.raises(UserError, match="an optimizer of type int"):
        slim.wrap(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="holds no parameter of this network"):
        slim.wrap(torch.optim.SGD(network().parameters(), 0.1))
    with pytest.raises(UserError, match="a budget of type NoneType"):
        paceline.slim(model, budget=None)  # type: ignore[arg-type]


def test_tables_are_corrected_by_widths_as_a_plan_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(1, 48, 3), nn.ReLU(), nn.Conv2d(48, 48, 3), nn.Flatten(), nn.Linear(48 * 16, 4))
    slim = Slim(model, (torch.randn(1, 1, 8, 8),), budget="speedup=1.6x")
    even, measured = Latency(1e-3, 1e-3, 1e-3, 1), list[set[int]]()

    class Times:
        def seconds(self, removed: set[int]) -> float:
            return 1e-3 * (1 - len(removed) / len(slim.structures.every))

        def corrected(self, removed: set[int], ratio: float) -> Times:
            measured.append(removed)
            return self

    for each in (slim, Slim(model, slim.inputs, budget="speedup=1000x")):  # which nothing meets
        each._whole = even
        monkeypatch.setattr(each, "latency", lambda models: dict.fromkeys(models, even))
        each._corrected(Times())  # type: ignore[arg-type]
    assert len(measured[0]) < len(measured[1]), "the smallest network"
    layers = [[each.number not in measured[0] for each in every] for every in slim.structures.layers().values()]
    kept = [sum(each) for each in layers if len(each) == 48]
    assert len(kept) == 2 and sum(kept) < 96 and all(each % slim.round_to == 0 for each in kept)
