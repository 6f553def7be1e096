"""What methods could give before training, against the tables and rooflines that it rests on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.slimming.latency import layer_times
from paceline.slimming.latency.edge_times import Machine, edge_times, on_device
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.latency_forecast import RANKS, Prospects, alike_removed, of_ranks, of_widths
from paceline.slimming.latency.layer_times import REST, LayerTimes
from paceline.slimming.latency.onnx_nodes import OnnxNode
from paceline.slimming.latency.sparse_roofline import Advice, SparseRoof
from paceline.slimming.methods import methods
from paceline.slimming.methods.low_rank import split
from paceline.slimming.methods.methods import METHODS
from paceline.slimming.slim import Slim
from paceline.slimming.structures.shrink import module_bytes
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import Residual, images

WHOLE = Latency(2e-3, 2e-3, 2e-3, 5)


class Thick(nn.Module):
    """A convolution and a linear layer that gain from a split, and layers that have none, or none that is faster."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.depthwise = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.second, self.thin = nn.Conv2d(64, 72, 3, padding=1), nn.Conv2d(72, 8, 1)
        self.wide, self.output = nn.Linear(8 * 36, 200), nn.Linear(200, 10)
        self.square, self.frozen = nn.Linear(10, 10), nn.Linear(10, 64).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(self.depthwise(torch.relu(self.first(x)))))
        x = torch.relu(self.wide(self.thin(x).flatten(1)))
        result: torch.Tensor = self.frozen(self.square(self.output(x)))
        return result


def work(node: OnnxNode, threads: int = 1) -> float:
    """In place of a measurement."""
    return 1e-9 * node.products + 1e-10 * node.bytes


@pytest.fixture(scope="module")
def thick() -> tuple[nn.Module, tuple[torch.Tensor, ...], LayerTimes]:
    model, inputs = Thick().eval(), (torch.randn(1, 3, 6, 6),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.slimming.latency.width_tables.seconds", work)
        times = LayerTimes(structures_of(model, inputs), WHOLE)
    return model, inputs, times


def ranked(thick: tuple[nn.Module, tuple[torch.Tensor, ...], LayerTimes], monkeypatch: pytest.MonkeyPatch) -> Prospects:
    monkeypatch.setattr(layer_times, "seconds", work)
    return of_ranks(*thick)


def faster(times: LayerTimes, full: dict[str, int], share: float) -> dict[str, int]:
    """Ranks near a share, of the layers that ``LayerTimes.low_rank`` says gain alone."""
    ranks = {name: max(8, round(share * most / 8) * 8) for name, most in full.items()}
    layers, whole = times.by_layer(), times.seconds()
    alone = {name: times.low_rank({name: rank}) - whole for name, rank in ranks.items() if rank < full[name]}
    return {name: ranks[name] for name, change in alone.items() if layers[name] + change < 0.95 * layers[name]}


def test_ranks_are_those_of_the_layer_times(
    thick: tuple[nn.Module, tuple[torch.Tensor, ...], LayerTimes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (model, _, times), found = thick, ranked(thick, monkeypatch)
    full = {"first": 27, "second": 72, "thin": 8, "wide": 200, "output": 10, "square": 10}
    assert found.varied == "rank" and tuple(each.share for each in found.every) == found.shown == RANKS == (0.5, 0.25, 0.125)
    counts = []
    for each in found.every:
        ranks = faster(times, full, each.share)
        assert {"second", "wide"} <= ranks.keys()
        assert each.seconds == pytest.approx(times.low_rank(ranks)) and each.layers == len(ranks)
        assert each.seconds == pytest.approx(sum(took for *_, took in each.nodes) + each.rest_s)
        thin = {name: split(model.get_submodule(name), {"form": "svd", "ranks": [rank]}) for name, rank in ranks.items()}
        size = module_bytes(model) - sum(module_bytes(model.get_submodule(name)) for name in thin)
        assert each.weight_bytes == size + sum(map(module_bytes, thin.values()))
        counts.append(each.layers)
    assert found.every[0].seconds > found.every[1].seconds > found.every[2].seconds


def test_layers_without_a_split_are_named_with_the_reason(
    thick: tuple[nn.Module, tuple[torch.Tensor, ...], LayerTimes], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ranked(thick, monkeypatch).kept
    assert kept["depthwise"] == "a convolution of 64 groups has no form of low rank here" and kept["frozen"] == "frozen"
    assert kept["thin"] == "its full rank is 8; ranks are multiples of 8"
    assert kept["square"] == "no split of it is predicted to be faster" and not kept.keys() & {"second", "wide"}


def test_a_layer_that_runs_twice_is_split_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.slimming.latency.width_tables.seconds", work)
    monkeypatch.setattr(layer_times, "seconds", work)
    layer = nn.Linear(64, 64)
    once = LayerTimes(structures_of(nn.Sequential(layer), (torch.randn(4, 64),)), WHOLE)
    twice = LayerTimes(structures_of(nn.Sequential(layer, nn.ReLU(), layer), (torch.randn(4, 64),)), WHOLE)
    for times, count in ((once, 1), (twice, 2)):
        name = next(iter(times.by_layer()))
        assert len(times.low_rank_nodes({name: 8})) == 2 * count == 2 * len(times.nodes())
        thin = sum(took for *_, took in times.low_rank_nodes({name: 8}))
        assert times.low_rank({name: 8}) == pytest.approx(thin + times.by_layer()[REST])


@pytest.mark.long
def test_widths_are_those_of_the_layer_times() -> None:
    structures = structures_of(Residual(), images())
    times = LayerTimes(structures, WHOLE)
    found = of_widths(structures, times)
    assert found.varied == "width" and set(found.shown) < {each.share for each in found.every} and not found.only_here
    half = next(each for each in found.every if each.share == 0.5)
    assert half.seconds == pytest.approx(times.seconds(alike_removed(structures, 0.5)))
    assert dict(found.kept) == dict(structures.kept) and half.layers > 1


def test_another_processor_takes_what_its_operations_take_there(
    thick: tuple[nn.Module, tuple[torch.Tensor, ...], LayerTimes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.hardware.edge import edge_device

    pi, here = edge_device("pi 4"), Machine(1e11, 1e10)
    monkeypatch.setattr("paceline.slimming.latency.edge_times.this_machine", lambda: here)
    times, found = thick[2], structures_of(thick[0], thick[1])
    half = next(each for each in of_widths(found, times).every if each.share == 0.5)
    theirs = edge_times(times, pi, alike_removed(found, 0.5), 4)
    assert on_device(half.nodes, half.rest_s, pi, 4) == theirs and theirs.seconds < edge_times(times, pi, (), 4).seconds
    thin = next(each for each in ranked(thick, monkeypatch).every if each.share == 0.25)
    assert {name for name, *_ in thin.nodes} == {name for name, *_ in times.nodes()} and len(thin.nodes) > len(times.nodes())


ROOFS = {
    "0": Advice(None, "refused: first"),
    "1": Advice(SparseRoof(1e-3, 2.0, 1e-4, 1000)),
    "2": Advice(SparseRoof(2e-4, 1.0, 1e-4, 1000)),
    "3": Advice(SparseRoof(1e-4, 2.0, 2e-4, 1000)),
}


def test_sparsities_are_those_of_the_rooflines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "advice", lambda *_: ROOFS)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    table = {"whole": {"median_s": 4e-3, "low_s": 4e-3, "high_s": 4e-3, "turns": 1}, "least_s": 2e-3}
    slim = Slim(model, (torch.randn(1, 1, 12, 12),), budget="latency=3ms", method="sparse", table=table)
    found = METHODS["sparse"].prospects(slim)
    by_share = {each.share: each for each in found.every}
    assert found.varied == "sparsity" and found.shown == (0.5, 0.7, 0.8, 0.9, 0.95) and set(found.shown) <= by_share.keys()
    roofs = [ROOFS[name].roof for name in ("1", "2")]
    for zeros, each in by_share.items():
        saved = sum(max(roof.dense_s - roof.seconds(zeros), 0.0) for roof in roofs if roof is not None)
        assert each.seconds == pytest.approx(2 * (2e-3 - saved)), zeros
    assert by_share[0.5].layers == 1 and by_share[0.9].layers == 2
    values_and_places = 8 * round(0.25 * 2 * 4 * 4 * 9)
    dense = module_bytes(model) - 4 * 2 * 4 * 4 * 9
    assert by_share[0.75].weight_bytes == pytest.approx(dense + values_and_places)
    assert found.kept == {"0": "refused: first", "3": "more zeros do not make it faster"} and found.only_here
    first = next(each.share for each in found.every if each.seconds <= slim.goal)
    assert METHODS["sparse"].measure(slim)["sparsities"] == {"1": first, "2": first}, "what the method then trains to"
