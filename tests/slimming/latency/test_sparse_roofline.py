"""Which convolutions gain from zeros."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.slimming.latency.sparse_roofline import Advice, ConvShape, SparseRoof, advice, advised, alternated, refusal
from paceline.slimming.methods.sparse_convolution import SparseWindow

WINDOW = SparseWindow((1, 1), (1, 1), (1, 1), 1)
SHAPE = ConvShape((64, 64, 3, 3), WINDOW, (1, 64, 56, 56))


def test_the_roofline_is_the_papers() -> None:
    """A weight takes three times as long: it gains from 2/3 on, and bandwidth holds it from 0.9 on."""
    roof = SparseRoof(dense_s=1e-3, slowdown=3.0, floor_s=3e-4, moved=6_000_000)
    assert roof.gains_from == pytest.approx(2 / 3) and roof.saturates_at == pytest.approx(0.9)
    assert roof.seconds(roof.gains_from) == pytest.approx(1e-3)
    assert roof.seconds(0.5) == pytest.approx(1.5e-3)
    assert roof.seconds(0.95) == roof.seconds(0.99) == 3e-4
    assert roof.bandwidth == pytest.approx(2e10)


def test_beyond_half_what_was_measured_counts() -> None:
    roof = SparseRoof(dense_s=1e-3, slowdown=2.0, floor_s=1e-4, moved=1, holds_s=3e-4)
    assert roof.seconds(0.25) == pytest.approx(1.5e-3), "the roofline"
    assert [roof.seconds(each) for each in (0.5, 0.7, 0.9, 0.95, 1.0)] == pytest.approx([1e-3, 6.5e-4, 3e-4, 2e-4, 1e-4])


def test_a_layer_that_the_kernel_does_faster_anyway_gains_from_the_first_zero_on() -> None:
    assert SparseRoof(1e-3, 0.5, 1e-4, 1).gains_from == 0
    assert SparseRoof(1e-3, 3.0, 2e-3, 1).gains_from == 1, "bandwidth alone takes longer than dense"


@pytest.mark.parametrize(
    ("weight", "roof", "reason"),
    [
        ((64, 64, 3, 3), SparseRoof(1e-3, 2.0, 1e-4, 1), ""),
        ((64, 64, 3, 3), SparseRoof(1e-3, 9.0, 1e-4, 1), "a weight takes 9.0 times as long as dense, so 90% zeros gain 1.11x"),
        (
            (64, 3, 7, 7),
            SparseRoof(1e-3, 2.0, 9e-4, 1),
            "with 3 channels of input .* moving its images alone takes 0.9 ms, dense 1 ms",
        ),
        ((64, 64, 1, 1), SparseRoof(1e-3, 2.0, 9e-4, 1), "a 1x1 convolution .* takes 0.9 ms, dense 1 ms"),
        ((64, 64, 1, 1), SparseRoof(1e-3, 8.5, 1e-4, 1), "a 1x1 convolution .* 8.5 times"),
        ((8, 8, 3, 3), SparseRoof(1e-5, 2.0, 2e-5, 1), "the layer is small: .* 0.02 ms, dense 0.01 ms"),
    ],
)
def test_layers_that_cannot_gain_are_refused_with_the_reason(weight: tuple[int, ...], roof: SparseRoof, reason: str) -> None:
    import re

    found = refusal(ConvShape(weight, WINDOW, (1, weight[1], 8, 8)), roof)
    assert re.search(reason, found) if reason else found == ""


def test_what_a_layer_holds_decides() -> None:
    roof = SparseRoof(1e-3, 3.0, 1e-5, 1)
    assert not refusal(SHAPE, roof, 0.9)
    assert "70% zeros gain 1.11x" in refusal(SHAPE, roof, 0.7)


def test_depthwise_layers_are_refused_unmeasured() -> None:
    window = SparseWindow((1, 1), (1, 1), (1, 1), 8)
    assert advised(ConvShape((8, 1, 3, 3), window, (1, 8, 9, 9))) == Advice(
        None, "each output has one channel to read: too few weights to leave out"
    )


def test_every_convolution_of_a_network_gets_advice() -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'paceline[slim]'")
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.Conv2d(16, 16, 3, stride=2, padding="valid"),
        nn.Conv2d(16, 16, 3, groups=16),
        nn.Conv2d(16, 4, 3, padding=1, padding_mode="circular"),
    ).train()
    found = advice(model, (torch.randn(1, 3, 40, 40),))
    assert list(found) == ["0", "1", "2", "3"] and model.training
    assert "padding_mode='circular'" in found["3"].refused and "one channel" in found["2"].refused
    for name in ("0", "1"):
        roof = found[name].roof
        assert roof is not None and roof.slowdown > 0 and roof.dense_s > 0
    assert found["0"].roof is not None and found["0"].roof.moved == 4 * 40 * 40 * (3 + 16)


def test_shapes_are_those_of_torch() -> None:
    layer = nn.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2)
    shape = ConvShape.of(layer, (2, 4, 11, 13))
    assert shape.out == tuple(layer(torch.zeros(2, 4, 11, 13)).shape)


def test_runs_take_turns() -> None:
    order: list[str] = []
    alternated([lambda: order.append("a"), lambda: order.append("b")], seconds=0)
    assert "".join(order) == 6 * "ab", "once to warm up, then five turns"
