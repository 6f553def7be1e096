"""Seconds of products against closed forms and properties that any library has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import hardware
from paceline.calibration.product_curves import KNOTS, ProductCurve, product_curve
from paceline.prediction.passes.products import corner_weights, measured_seconds, overhead_seconds, product_seconds

H100 = hardware.device("H100 SXM")
FITTED = product_curve(H100, "bf16")
IDEAL = ProductCurve(
    chip="toy",
    precision="bf16",
    peak=1e14,
    units=100,
    bandwidth=1e12,
    share=1.0,
    sustained=1.0,
    heating_s=1e-3,
    feed=1e9,
    memory=1.0,
    launch_s=0.0,
    tile_s=0.0,
    whole=1.0,
    sharpness=50.0,
    split=1e9,
    written=0.0,
    reread=0.0,
    cached=1.0,
    cached_sharpness=5.0,
    correction=np.zeros(0),
)


def seconds(curve: ProductCurve, m: float, n: float, k: float, batch: float = 1.0, ragged: bool = False) -> float:
    sizes = (np.array([float(x)]) for x in (m, n, k, batch))
    return float(product_seconds(curve, *sizes, ragged=ragged)[0][0])


def test_whole_tiles_on_every_unit_run_at_the_peak() -> None:
    assert seconds(IDEAL, 2560, 1280, 4096) == pytest.approx(2 * 2560 * 1280 * 4096 / 1e14, rel=1e-6)  # 100 tiles of 256 x 128


def test_a_tile_too_many_takes_a_second_wave() -> None:
    one, more = (seconds(replace(IDEAL, units=4), m, 128, 4096) for m in (1024, 1025))
    assert one < more <= 2 * one
    free = replace(IDEAL, units=4, whole=0.0)
    assert seconds(free, 1025, 128, 4096) < more


def test_memory_bounds_a_thin_product() -> None:
    time, computing = product_seconds(IDEAL, *(np.array([x]) for x in (65536.0, 16.0, 4096.0)))
    assert time[0] == pytest.approx((65536 * 4096 + 16 * 4096 + 65536 * 16) * 2 / 1e12, rel=1e-3) and not computing[0]


def test_a_deep_product_of_few_tiles_is_split() -> None:
    curve = replace(IDEAL, bandwidth=1e15, split=512.0)
    assert seconds(curve, 128, 128, 65536) < 0.2 * seconds(IDEAL, 128, 128, 65536)


def test_unequal_experts_leave_half_a_tile_empty() -> None:
    equal, unequal = (seconds(replace(IDEAL, whole=0.0), 256, 4096, 4096, 64, ragged) for ragged in (False, True))
    assert equal < unequal < 1.5 * equal
    batches = seconds(FITTED, 1e-3, 4096, 4096, 8, True)
    assert batches > 0


def test_a_measured_product_stays_in_the_cache_and_has_its_launch() -> None:
    sizes = [np.array([x]) for x in (1024.0, 1024.0, 128.0)]
    curve = replace(IDEAL, bandwidth=1e10, cached=1e9, launch_s=3e-6, cast_bytes=4.0, cast_s=1e-6, cast_cached=1.0)
    cold = float(product_seconds(curve, *sizes)[0][0])
    assert measured_seconds(curve, *sizes)[0] < 0.1 * cold
    assert overhead_seconds(curve, *sizes)[0] == pytest.approx(4e-6)
    cast = replace(curve, cast_cached=0.0)
    assert overhead_seconds(cast, *sizes)[0] == pytest.approx(4e-6 + 4 * 1024 * 128 / 1e10)


def test_a_long_product_runs_at_the_clock_that_the_power_permits() -> None:
    curve = replace(IDEAL, sustained=0.5)
    for rows, factor in ((2560.0, 1.0), (2560000.0, 2.0)):
        sizes = np.array([rows]), np.array([12800.0]), np.array([4096.0])
        plain, slow = (measured_seconds(replace(c, heating_s=1.0), *sizes)[0] for c in (IDEAL, curve))
        assert slow / plain == pytest.approx(factor, rel=0.35)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70000), st.integers(1, 70000), st.integers(1, 70000), st.sampled_from(["bf16", "fp8", "fp8-block"]))
def test_no_product_is_faster_than_the_datasheet(m: int, n: int, k: int, precision: str) -> None:
    curve = replace(product_curve(H100, precision), correction=np.zeros(0))
    least = max(2.0 * m * n * k / curve.peak, curve.width * (m + n) * k / curve.bandwidth)
    found = seconds(curve, m, n, k)
    assert least * 0.95 <= found < 1e4 * least + 1e-3
    assert seconds(curve, n, m, k) == pytest.approx(found, rel=0.02)


def test_corrections_are_those_of_the_corners() -> None:
    sizes = [np.array([2 ** knots[place], edge]) for knots, place, edge in zip(KNOTS, (3, 1, 3), (1e9, 1.0, 1.0), strict=True)]
    corners, weights = corner_weights(*sizes)
    assert weights.sum(axis=0) == pytest.approx([1, 1]) and (weights >= 0).all()
    table = np.arange(float(np.prod([len(knots) for knots in KNOTS])))
    found = (table[corners] * weights).sum(axis=0)
    side = len(KNOTS[1])
    assert found[0] == pytest.approx((3 * side + 1) * len(KNOTS[2]) + 3)
    assert found[1] == pytest.approx((len(KNOTS[0]) - 1) * side * len(KNOTS[2]))
