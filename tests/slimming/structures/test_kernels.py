"""Kernels that become smaller: what may go, and that the smaller network computes what the masked one does."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

from paceline.edge.slim_notes import widths
from paceline.errors import UserError
from paceline.slim_record import Width
from paceline.slimming.latency import width_tables
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.latency_forecast import alike_removed
from paceline.slimming.latency.layer_times import LayerTimes
from paceline.slimming.latency.onnx_nodes import ConvolutionWindow, OnnxNode
from paceline.slimming.methods.budget_path import BudgetPath
from paceline.slimming.methods.group_lasso import StructureNorms
from paceline.slimming.methods.methods import METHODS
from paceline.slimming.methods.widths import nearest_widths
from paceline.slimming.slim import Slim
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import differs, load, masked, module_bytes, shrunk, weight_bytes
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import images, unlike


def between(layer: nn.Module, channels: int = 6) -> nn.Module:
    """A layer whose input and output are those of others, in double precision."""
    after = nn.Conv1d(channels, 2, 1) if isinstance(layer, nn.Conv1d) else nn.Conv2d(channels, 2, 1)
    return unlike(nn.Sequential(nn.Identity(), layer, nn.Tanh(), after)).double()


def kernels(found: Structures) -> dict[str, int]:
    """Pairs of each kernel's dimension."""
    return {layer: len(every) for layer, every in found.layers().items() if every[0].nested}


def outer(found: Structures, counts: dict[str, int]) -> set[int]:
    """So many pairs of each, from outside."""
    layers = found.layers()
    return {each.number for layer, count in counts.items() for each in layers[layer][:count]}


def most(size: int, padding: int, dilation: int) -> int:
    """Pairs that can go one by one while an odd kernel and a padding are left."""
    count = 0
    while size % 2 and size >= 3 and padding >= dilation:
        size, padding, count = size - 2, padding - dilation, count + 1
    return count


SIZES = st.tuples(*[st.sampled_from([1, 2, 3, 4, 5, 7, 11])] * 2)


@settings(deadline=None, max_examples=12)
@given(SIZES, *[st.tuples(*[st.integers(*ends)] * 2) for ends in ((1, 3), (0, 6), (1, 3))], st.integers(0, 2), st.data())
def test_a_smaller_kernel_computes_what_the_masked_one_does(
    size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    grouping: int,
    data: st.DataObject,
) -> None:
    groups = (1, 3, 6)[grouping]
    model = between(nn.Conv2d(6, 6, size, stride, padding, dilation, groups))
    side = [apart * (long - 1) + 4 for long, apart in zip(size, dilation, strict=True)]
    x = (torch.randn(2, 6, *side, dtype=torch.float64),)
    found = structures_of(model, x)
    counts = dict(zip(("1 kernel rows", "1 kernel columns"), map(most, size, padding, dilation), strict=True))
    assert kernels(found) == {name: count for name, count in counts.items() if count}
    counts = {name: data.draw(st.integers(0, count)) for name, count in kernels(found).items()}
    gone = outer(found, counts)
    small = shrunk(model, found, gone)
    (whole_out,), (out,) = ([each(*x)] for each in (model, small))
    assert out.shape == whole_out.shape and differs(masked(model, found, gone), small, x) < 1e-12
    assert bool(gone) == (differs(model, small, x) > 1e-6)
    layer = small.get_submodule("1")
    assert type(layer) is nn.Conv2d and layer.kernel_size == tuple(layer.weight.shape[2:])
    assert weight_bytes(found, gone) == module_bytes(small)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Conv2d(3, 6, 11, 4, 2), {"1 kernel rows": 2, "1 kernel columns": 2}),  # AlexNet's: to 7x7 without padding
        (nn.Conv2d(3, 6, 5, padding="same", dilation=(1, 2)), {"1 kernel rows": 2, "1 kernel columns": 2}),
        (nn.Conv2d(3, 6, (1, 7), padding=(0, 3)), {"1 kernel columns": 3}),
        (nn.Conv1d(3, 6, 9, 2, 6, 2), {"1 kernel points": 3}),
        (nn.Conv1d(3, 6, 3, padding="same"), {"1 kernel points": 1}),
    ],
)
def test_as_many_pairs_go_as_the_padding_holds(layer: nn.Module, expected: dict[str, int]) -> None:
    model, x = between(layer), (torch.randn(2, 3, *(37, 41)[: layer.weight.dim() - 2], dtype=torch.float64),)  # type: ignore[operator]
    found = structures_of(model, x)
    assert kernels(found) == expected
    for count in range(1, max(expected.values()) + 1):
        gone = outer(found, dict.fromkeys(expected, count)) | {found.layers()["1.weight"][0].number}
        assert differs(masked(model, found, gone), shrunk(model, found, gone), x) < 1e-12


class Derived(nn.Conv2d):
    """Its padding is a number in its code."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight, self.bias, padding=1)


class Elsewhere(nn.Module):
    """A convolution whose weight another operation uses too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + functional.conv2d(x, self.layer.weight, padding=1)


def pruned() -> nn.Module:
    return prune.l1_unstructured(nn.Conv2d(3, 6, 3, padding=1), "weight", 0.5)  # type: ignore[no-untyped-call, no-any-return]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(3, 6, 3),
        lambda: nn.Conv2d(3, 6, 3, padding="valid"),
        lambda: nn.Conv2d(3, 6, 3, padding=1, dilation=2),
        lambda: nn.Conv2d(3, 6, 3, padding=1, padding_mode="circular"),
        lambda: nn.Conv2d(3, 6, 4, padding=2),
        lambda: nn.Conv2d(3, 6, 4, padding="same"),
        lambda: nn.ConvTranspose2d(3, 6, 3, padding=1),
        lambda: Derived(3, 6, 3, padding=1),
        lambda: nn.Conv2d(3, 6, 3, padding=1).requires_grad_(False),
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 6, 3, padding=1)),
        Elsewhere,
        pruned,
    ],
)
def test_no_kernel_is_offered_that_would_not_stay_an_ordinary_one(make: Callable[[], nn.Module]) -> None:
    assert kernels(structures_of(nn.Sequential(nn.Identity(), make(), nn.Conv2d(6, 2, 1)), images())) == {}


def test_a_layer_that_runs_twice_and_weights_that_are_tied_lose_the_same_rows() -> None:
    layer, like = nn.Conv2d(3, 3, 5, padding=2), nn.Conv2d(3, 3, 5, padding=(2, 1))
    like.weight = layer.weight
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), like).double()
    x = (torch.randn(2, 3, 9, 8, dtype=torch.float64),)
    found = structures_of(model, x)
    assert kernels(found) == {"0 kernel rows": 2, "0 kernel columns": 1}, "as the least padding of both"
    gone = {each.number for each in found.every}
    small = shrunk(model, found, gone)
    assert differs(masked(model, found, gone), small, x) < 1e-12
    weight = small.get_parameter("0.weight")
    assert small.get_parameter("4.weight") is weight and weight.shape[2:] == (1, 3)


def test_a_plan_keeps_the_rows_and_refuses_to_begin_inside(tmp_path: Path) -> None:
    model, x = between(nn.Conv2d(3, 6, 5, 2, 2)), (torch.randn(1, 3, 12, 12, dtype=torch.float64),)
    found = structures_of(model, x)
    gone = outer(found, {"1 kernel rows": 1, "1 kernel columns": 2})
    plan = SlimPlan.of(found, gone)
    assert plan.kept == {("1.weight", 2): (1, 2, 3), ("1.weight", 3): (2,)} and plan.removed(found) == gone
    plan.save(tmp_path / "plan.json")
    small, again = shrunk(model, found, gone), load(SlimPlan.load(tmp_path / "plan.json"), model)
    assert differs(small, again, x) == 0 and str(small) == str(again)
    with pytest.raises(UserError, match="the 1 kernel rows would go from the inside; remove the outer ones first"):
        SlimPlan.of(found, {found.layers()["1 kernel rows"][1].number})


@settings(deadline=None, max_examples=10)
@given(st.lists(st.floats(0.0, 2.0), min_size=40, max_size=40), st.floats(0.05, 1.0))
def test_outer_pairs_go_before_inner_ones_and_the_centre_stays(norms: list[float], share: float) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 7, padding=3), nn.Conv2d(16, 8, 5, padding=2), nn.Conv2d(8, 2, 1))
    found = structures_of(model, images())
    importance = {each.number: norm for each, norm in zip(found.every, norms, strict=False)}
    whole = weight_bytes(found)
    gone, _ = nearest_widths(found, importance, lambda removed: weight_bytes(found, removed), share * whole, 8)
    small = shrunk(model, found, gone)  # refuses another order
    assert all(size % 2 for layer in small if isinstance(layer, nn.Conv2d) for size in layer.kernel_size)  # type: ignore[attr-defined]


def test_a_kernel_goes_by_pairs_where_they_matter_least() -> None:
    found = structures_of(nn.Sequential(nn.Conv2d(3, 16, 5, padding=2), nn.Conv2d(16, 2, 1)), images())
    whole = weight_bytes(found)

    def left(rows: float, budget: float) -> dict[str, int]:
        importance = {each.number: rows if each.nested else 1.0 for each in found.every}
        gone, _ = nearest_widths(found, importance, lambda removed: weight_bytes(found, removed), budget * whole, 8)
        return {layer: len(every) - sum(each.number in gone for each in every) for layer, every in found.layers().items()}

    assert left(0.01, 0.5)["0.weight"] == 16 and left(10.0, 0.5)["0.weight"] <= 8
    assert left(0.01, 0.8) == {"0.weight": 16, "0 kernel rows": 1, "0 kernel columns": 2}, "one pair is enough"
    assert set(left(0.0, 1.0).values()) == {16, 0}, "what is zero goes at once"


def test_a_row_of_a_kernel_counts_beside_those_that_stay() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 7, padding=2), nn.Conv2d(8, 2, 1))
    found = structures_of(model, images())
    with torch.no_grad():
        model[0].weight.fill_(0.1)
        model[0].weight[:, :, [0, -1]] *= 0.5
    groups = StructureNorms(model, found)
    weighed = dict(zip(groups.numbers, groups.importance().tolist(), strict=True))
    rows, columns = ([weighed[each.number] for each in found.layers()[f"0 kernel {name}"]] for name in ("rows", "columns"))
    assert rows == pytest.approx([0.5, 1.0]) and columns == pytest.approx([1.0, 1.0])
    norms = dict(zip(groups.numbers, groups.norms().tolist(), strict=True))
    assert all(weighed[each.number] == norms[each.number] for each in found.layers()["0.weight"])
    before = model[0].weight.detach().clone()
    factors = torch.tensor([0.0 if layer == "0 kernel rows" else 1.0 for layer in groups.layers])
    groups.scale(factors)
    assert (model[0].weight[:, :, [0, 1, 5, 6]] == 0).all() and (model[0].weight[:, :, 2:5] == before[:, :, 2:5]).all()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[OnnxNode]:
    """Nodes that were timed; each takes as many seconds as it has weights."""
    nodes: list[OnnxNode] = []

    def seconds(node: OnnxNode, threads: int) -> float:
        nodes.append(node)
        kernel = node.window.kernel if node.window else ()
        return float(node.inputs[1] * node.leaving * torch.tensor(kernel).prod())

    monkeypatch.setattr(width_tables, "seconds", seconds)
    return nodes


def test_smaller_kernels_are_timed_and_other_processes_read_their_times(timed: list[OnnxNode]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3), nn.Conv2d(32, 64, 3, padding=2, dilation=2), nn.Conv2d(64, 2, 1))
    found = structures_of(model, (torch.randn(1, 3, 32, 32),))
    times = LayerTimes(found, Latency(1e-3, 9e-4, 1.1e-3, 5))
    windows = {node.window for node in timed if node.window}
    assert {window.kernel for window in windows} == {*product((1, 5, 7), repeat=2), *product((1, 3), repeat=2)}
    assert ConvolutionWindow((1, 3), (1, 1), (0, 2), (2, 2)) in windows, "the padding falls by the dilation"
    gone = outer(found, {"0 kernel rows": 2, "1 kernel columns": 1})
    by_name = {name: (node, took) for name, node, took in times.nodes(gone)}
    whole = {name: (node, took) for name, node, took in times.nodes()}
    assert by_name["0"][0].window == ConvolutionWindow((3, 7), (2, 2), (1, 3), (1, 1))
    assert [node.window.kernel for node, _ in whole.values() if node.window] == [(7, 7), (3, 3), (1, 1)]
    assert by_name["1"][1] == pytest.approx(whole["1"][1] / 3, rel=0.05) and by_name["2"] == whole["2"]
    again = LayerTimes.from_json(json.loads(json.dumps(times.to_json())), found)
    assert again.by_layer(gone) == times.by_layer(gone)


def test_a_method_that_leaves_kernels_times_none_of_them(timed: list[OnnxNode]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 5, padding=2), nn.Conv2d(16, 2, 1))
    LayerTimes(structures_of(model, images()).without_kernels(), Latency(1e-3, 9e-4, 1.1e-3, 5))
    assert {node.window.kernel for node in timed if node.window} == {(5, 5), (1, 1)}


def test_ssl_removes_kernels_and_compact_does_not() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 7, padding=3), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 2, 1))
    found = structures_of(model, images())
    removable = {name: kernels(METHODS[name].structures(found, model, images())) for name in ("ssl", "auto")}
    assert removable["ssl"] == removable["auto"] == {"0 kernel rows": 2, "0 kernel columns": 2}, "3x3 stays of each"
    assert kernels(found)["1 kernel rows"] == 1 and kernels(found.without_kernels()) == {}


def test_a_report_names_the_rows_that_went_and_a_share_of_widths_leaves_kernels() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.Conv2d(8, 2, 3, padding=1))
    slim = Slim(model, images(), budget="size=1kB")
    found = slim.structures
    gone = outer(found, {"0 kernel rows": 1}) | {each.number for each in found.layers()["0.weight"][:3]}
    assert list(widths(slim, gone)) == [Width("0", 8, 5), Width("0 kernel rows", 5, 3)]
    half = alike_removed(found, 0.5)
    assert half == {each.number for each in found.layers()["0.weight"][4:]}


def test_a_path_to_a_budget_makes_rows_zero_from_the_outside_in() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(256, 2))
    x = torch.randn(64, 1, 8, 8)
    labels = (x[:, 0, :, 1:] * x[:, 0, :, :-1]).mean((1, 2)) > 0
    found = structures_of(model, (x[:1],))
    own = found.only(each for each in found.every if each.nested)
    path = BudgetPath(
        torch.optim.Adam(model.parameters(), 0.01),
        model,
        own,
        lambda gone: weight_bytes(own, gone),
        weight_bytes(own) - 4 * 8 * 20,
        80,
    )
    for _ in range(80):
        path.zero_grad()
        functional.cross_entropy(model(x), labels.long()).backward()
        path.step()
    assert path.removed() and path.cost <= weight_bytes(own) - 4 * 8 * 20
    assert differs(model, shrunk(model, found, path.removed()), (x,)) < 1e-6, "what is removed was zero already"
