"""Latency of other widths, from operations that were timed alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from paceline.errors import UserError
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.latency_forecast import alike_removed
from paceline.slimming.latency.layer_times import REST, LayerTimes
from paceline.slimming.latency.width_tables import parts_of
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import Recurrent, Residual, Transformer, images, tokens

MILLISECOND = Latency(1e-3, 9e-4, 1.1e-3, 5)


def measured(model: nn.Module, inputs: tuple[torch.Tensor, ...], whole: Latency = MILLISECOND) -> tuple[Structures, LayerTimes]:
    found = structures_of(model, inputs)
    return found, LayerTimes(found, whole)


@pytest.fixture(scope="module")
def residual() -> tuple[Structures, LayerTimes]:
    return measured(Residual(), images())


def test_all_structures_take_what_the_whole_network_took_and_fewer_take_less() -> None:
    found, times = measured(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), (torch.randn(512, 64),))
    numbers = [each.number for each in found.every]
    assert times.seconds() == pytest.approx(1e-3)
    half, quarter = times.seconds(numbers[:128]), times.seconds(numbers[:192])
    assert quarter < half < 0.8 * times.seconds()


@pytest.mark.everyday("gru")
@pytest.mark.parametrize("make", ["lstm", "gru", "transformer"])
def test_every_kind_of_operation_is_timed(make: str) -> None:
    models = {"lstm": Recurrent(), "gru": Recurrent(nn.GRU, bidirectional=True), "transformer": Transformer()}
    found, times = measured(models[make], tokens())
    first = next(iter(found.layers().values()))
    whole, less = times.by_layer(), times.by_layer([each.number for each in first[: len(first) // 2]])
    assert all(seconds > 0 for seconds in whole.values()) and whole.keys() == less.keys()


@pytest.mark.long
def test_another_process_reads_the_same_times(residual: tuple[Structures, LayerTimes]) -> None:
    found, times = structures_of(Residual(), images()), residual[1]
    again = LayerTimes.from_json(json.loads(json.dumps(times.to_json())), found)
    for removed in ([], [each.number for each in found.every[:3]], [each.number for each in found.every[5:]]):
        assert again.by_layer(removed) == times.by_layer(removed)
    assert again.whole == times.whole


def test_times_of_another_network_are_refused(residual: tuple[Structures, LayerTimes]) -> None:
    found, times = residual
    data = times.to_json()
    with pytest.raises(UserError, match="another network"):
        LayerTimes.from_json(data, structures_of(Recurrent(), tokens()))
    with pytest.raises(UserError, match="another network"):
        LayerTimes.from_json({**data, "steps": data["steps"][1:]}, found)
    with pytest.raises(UserError, match="version 99"):
        LayerTimes.from_json({**data, "version": 99}, found)
    with pytest.raises(UserError, match="no times of layers"):
        LayerTimes.from_json({"version": data["version"]}, found)


def test_layers_by_name_add_up_to_the_network(residual: tuple[Structures, LayerTimes]) -> None:
    by_layer = residual[1].by_layer()
    assert list(by_layer) == ["stem.0", "first", "second", "depthwise", "grouped", "output", REST]
    assert sum(by_layer.values()) == residual[1].seconds() == pytest.approx(1e-3)


def test_without_a_layers_structures_only_its_neighbours_change(residual: tuple[Structures, LayerTimes]) -> None:
    found, times = residual
    removed = [each.number for each in found.layers()["first.weight"][:6]]
    before, after = times.by_layer(), times.by_layer(removed)
    assert {name for name in before if before[name] != after[name]} <= {"first", "second", REST}


def test_what_each_node_costs_stays_however_small_the_network(residual: tuple[Structures, LayerTimes]) -> None:
    """Of known costs: on a busy machine what shrinks may be measured as nothing."""
    found, measured = residual
    steps, fixed_s = [1e-6] * len(found.steps), 1e-5
    times = LayerTimes.from_json({**measured.to_json(), "steps": steps, "fixed_s": fixed_s}, found)
    whole, nothing = (times.by_layer(gone)[REST] for gone in ((), [each.number for each in found.every]))
    assert 0.999 * fixed_s / (fixed_s + sum(steps)) * whole < nothing < whole


def test_the_same_tables_serve_another_measurement(residual: tuple[Structures, LayerTimes]) -> None:
    found, times = residual
    removed = [each.number for each in found.every[:5]]
    busy = times.rescaled(replace(MILLISECOND, median_s=3e-3))
    assert busy.seconds() == pytest.approx(3e-3) and busy.seconds(removed) == pytest.approx(3 * times.seconds(removed))


def test_progress_counts_operations() -> None:
    found = structures_of(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), (torch.randn(1, 4),))
    seen: list[tuple[int, int]] = []
    LayerTimes(found, MILLISECOND, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 2), (2, 2)]


def test_a_low_rank_is_two_layers(residual: tuple[Structures, LayerTimes]) -> None:
    _, times = measured(nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Flatten()), (torch.randn(1, 64, 16, 16),))
    assert times.low_rank({}) == times.seconds() == pytest.approx(1e-3)
    # A quarter of the rank is a quarter of the work; at full rank there is a tenth more, which a busy machine hides.
    assert times.low_rank({"0": 16}) < 0.9 * min(times.seconds(), times.low_rank({"0": 64}))
    assert residual[1].low_rank({"output": 2, "first": 4}) > 0
    for name in ("depthwise", "frist"):
        with pytest.raises(UserError, match="layer of a low rank"):
            residual[1].low_rank({name: 2})


def test_a_measured_network_has_its_measured_ratio(residual: tuple[Structures, LayerTimes]) -> None:
    """The whole network stays as measured; sums, layers and nodes agree; the correction survives its file."""
    found, times = residual
    half, fewer = alike_removed(found, 0.5), alike_removed(found, 0.25)
    share = times.seconds(half) / times.whole.median_s
    made = times.corrected(half, share**1.3)
    assert made.seconds() == pytest.approx(times.seconds())
    assert made.seconds(half) == pytest.approx(share**1.3 * times.whole.median_s)
    assert made.seconds(fewer) == pytest.approx((times.seconds(fewer) / times.whole.median_s) ** 1.3 * times.whole.median_s)
    assert sum(made.by_layer(half).values()) == pytest.approx(made.seconds(half))
    assert sum(took for *_, took in made.nodes(half)) + made.by_layer(half)[REST] == pytest.approx(made.seconds(half))
    assert LayerTimes.from_json(json.loads(json.dumps(made.to_json())), found).seconds(half) == made.seconds(half)
    assert made.corrected(half, share).seconds(half) == pytest.approx(times.seconds(half)), "one correction replaces another"
    for ratio in (1.0, 0.0):
        assert times.corrected(half, ratio) is times
    assert times.corrected(half, share**9).seconds(half) == pytest.approx(share**2 * times.whole.median_s), "doubted"


def test_products_with_inputs_first_are_timed_as_linear_layers() -> None:
    """GPT-2's Conv1D is ``addmm`` with its weight transposed."""

    class Product(nn.Module):
        def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(inputs, outputs))
            self.bias = nn.Parameter(torch.randn(outputs)) if bias else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)

    x = (torch.randn(2, 64),)
    linear = parts_of(structures_of(nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16, False)), x))
    found = structures_of(nn.Sequential(Product(64, 32), nn.Tanh(), Product(32, 16, False)), x)
    assert [part.node for part in parts_of(found)] == [part.node for part in linear] and [p.name for p in linear] == ["0", "2"]
    half = dict(measured_widths(found, [each.number for each in found.every[:16]]))
    assert half == {"0": (64, 16), "2": (16, 16)}


def measured_widths(found: Structures, removed: list[int]) -> list[tuple[str, tuple[int, int]]]:
    times = LayerTimes(found, MILLISECOND)
    return [(name, (node.inputs[-1], node.leaving)) for name, node, _ in times.nodes(removed)]
