"""Kernels of convolutions by memory format: which run on matrix units, and what the others cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.calibration.constants import Efficiency, assumed, efficiency
from paceline.hardware import catalogue
from paceline.hardware.device import Device
from paceline.prediction.passes.compute import layer_seconds, memory_rate
from paceline.prediction.passes.convolutions import is_channels_last
from paceline.workload.layers import Coverage, Layer, LayerTable, Operation
from paceline.workload.table import Workload

LAST, FIRST = "channels_last", "contiguous"
FIT = assumed("convolutions")
CARD = catalogue.device("RTX 3090")


def network(entering: int, leaving: int, groups: int = 1, window: int = 9, positions: int = 784, norm: str = "") -> Workload:
    """A convolution of one layer, and a normalisation that moves as many bytes."""
    moved = 4.0 * positions * (entering + leaving)
    m, n, k = float(positions), leaving / groups, entering / groups * window
    conv = Operation(
        kind="conv", backward=False, calls=1, flops=2 * m * n * k * groups, bytes=moved, m=m, n=n, k=k, batch=groups, grows="m",
        window=window,
    )  # fmt: skip
    layers = [Layer(name="conv", kind="Conv2d", operations=(conv,), activation_bytes=0.0)]
    if norm:
        own = Operation(kind="memory", backward=False, calls=1, bytes=moved)
        layers.append(Layer(name="norm", kind=norm, operations=(own,), activation_bytes=0.0))
    given: dict[str, Any] = {"name": "net", "sample": "image", "source": "", "coverage": Coverage(ops=1, known=1)}
    return Workload.of(LayerTable(layers=tuple(layers), parameters=(), input_bytes=0.0, **given))


def seconds(of: Workload, order: str, precision: str = "fp16", device: Device = CARD, level: str = "ordinary") -> float:
    e = efficiency(level)  # type: ignore[arg-type]
    forward, _ = layer_seconds(of, 64, precision, device, replace(e, launch_s=dict.fromkeys(e.launch_s, 0.0)), 1.0, order)
    return float(forward.total[0])


@pytest.mark.parametrize("level", ["ordinary", "tuned"])
def test_matrix_units_read_channels_last_faster(level: str) -> None:
    dense = network(256, 256)
    copied = FIT["dense_copies"] * 64 * dense.layers[0].operations[0].bytes / 2 / memory_rate(CARD, efficiency(level))  # type: ignore[arg-type]
    assert seconds(dense, FIRST, level=level) == pytest.approx(seconds(dense, LAST, level=level) + copied)
    usual = LAST if level == "tuned" else FIRST
    assert seconds(dense, "", level=level) == seconds(dense, usual, level=level)


def test_channels_that_are_no_multiple_of_eight_are_slower_in_channels_last() -> None:
    odd, even = network(1021, 1024), network(1024, 1024)
    assert seconds(odd, LAST) > 1.3 * seconds(even, LAST) and seconds(odd, FIRST) < 1.01 * seconds(even, FIRST)
    image = network(3, 64)
    assert seconds(image, LAST) <= seconds(image, FIRST)


def test_tf32_has_kernels_of_both_orders() -> None:
    thin, wide = network(64, 64, window=1), network(128, 128, window=1)  # their traffic bounds them
    assert seconds(thin, FIRST, "tf32") == seconds(thin, LAST, "tf32")
    assert seconds(wide, FIRST, "bf16") > 2 * seconds(wide, LAST, "bf16")


def test_ordinary_cores_do_not_care() -> None:
    card = catalogue.device("TITAN Xp")
    assert seconds(network(256, 256), LAST, "fp32", card) == seconds(network(256, 256), FIRST, "fp32", card)


@pytest.mark.parametrize("order", [FIRST, LAST])
def test_depthwise_convolutions_take_their_traffic_or_their_arithmetic_on_ordinary_cores(order: str) -> None:
    e: Efficiency = efficiency()
    small, large = network(64, 64, groups=64, window=1), network(64, 64, groups=64, window=121)
    seven, nine = (network(64, 64, groups=64, window=window) for window in (49, 81))
    assert seconds(nine, LAST) > 5 * 81 / 49 * seconds(seven, LAST) and seconds(nine, FIRST) < 2 * seconds(seven, FIRST)
    least = 64 * small.layers[0].operations[0].bytes / 2 / memory_rate(CARD, e)
    assert seconds(small, LAST) == pytest.approx(least)
    assert least < seconds(large, order) == pytest.approx(seconds(network(64, 64, groups=64, window=242), order) / 2)


def test_groups_of_other_widths_than_the_kernels_run_on_ordinary_cores() -> None:
    fast, slow, few = (network(32 * width, 32 * width, 32) for width in (32, 33, 64))
    assert seconds(fast, LAST) < seconds(fast, FIRST)
    assert seconds(slow, LAST) > 5 * seconds(fast, LAST) and seconds(few, LAST) > seconds(few, FIRST)


@pytest.mark.parametrize(
    ("norm", "order", "expected"),
    [
        ("BatchNorm2d", LAST, True),
        ("BatchNormAct2d", FIRST, False),
        ("GroupNorm", LAST, False),
        ("LayerNorm", FIRST, True),
        ("LayerNorm2d", LAST, False),
        ("NormFreeBlock", LAST, True),
        ("", LAST, True),
    ],
)
def test_normalisations_decide_what_order_stays(norm: str, order: str, expected: bool) -> None:
    assert is_channels_last(network(64, 64, norm=norm), order, "ordinary") is expected
    assert is_channels_last(network(64, 64, norm=norm), order, "tuned") is (order == LAST)


def test_convolutions_of_volumes_run_older_instructions_on_hopper() -> None:
    hopper, ampere = catalogue.device("H100 SXM"), catalogue.device("A100 SXM 80GB")

    def slowdown(card: Device, window: int) -> float:
        own = seconds(network(256, 256, window=window), LAST, device=card, level="tuned")
        return own / seconds(network(256, 256, window=window - 1), LAST, device=card, level="tuned")

    assert slowdown(hopper, 27) / slowdown(ampere, 27) == pytest.approx(1 / assumed("ampere_instructions"), rel=0.02)
    assert slowdown(hopper, 9) / slowdown(ampere, 9) == pytest.approx(1.0, rel=0.02)


def test_casts_of_autocast_cost_nothing_in_fp32() -> None:
    plain = network(64, 64, norm="LayerNorm")
    norm = plain.layers[1]
    cast = replace(norm, operations=(*norm.operations, replace(norm.operations[0], autocast=True)))
    casting = Workload.of(LayerTable(**{**plain.__getstate__(), "layers": (plain.layers[0], cast)}))
    e = efficiency()
    for precision, more in (("fp32", 0.0), ("tf32", 0.0), ("fp16", assumed("cast_share"))):
        before, after = (layer_seconds(of, 64, precision, CARD, e)[0] for of in (plain, casting))
        assert float(after.bytes[1]) == pytest.approx(float(before.bytes[1]) * (1 + more))
        assert np.isclose(after.launch[1], before.launch[1] * (2 if more else 1))
