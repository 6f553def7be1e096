"""Roofline against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.prediction.compute import layer_seconds, optimizer_seconds, peak_rate, work
from paceline.prediction.efficiency import HIGH, LOW, TYPICAL
from paceline.strategy.optimizer import OPTIMIZERS
from prediction_toys import IDEAL, fact, make_cluster, make_workload


def test_roofline_takes_the_slower_of_flops_and_bytes(ideal):
    device = make_cluster(1, 1).device
    forward, backward = work(make_workload(layers=1), 1, "fp32")
    # 1e9 FLOPs at 1e13 FLOP/s are 100 us; 4.008 MB at 500 GB/s only 8 us.
    assert layer_seconds(forward, device, "fp32", ideal).total.tolist() == pytest.approx([1e-4])
    assert layer_seconds(backward, device, "fp32", ideal).total.tolist() == pytest.approx([2e-4])
    slow_memory = replace(device, memory_bandwidth=fact(1e9))
    seconds = layer_seconds(forward, slow_memory, "fp32", ideal)
    assert seconds.flops.tolist() == [0.0]
    assert seconds.bytes.tolist() == pytest.approx([4.008e-3])


def test_half_saturation_halves_the_rate():
    efficiency = replace(IDEAL, half_s=1e-4)
    forward, _ = work(make_workload(layers=1), 1, "fp32")
    assert layer_seconds(forward, make_cluster(1, 1).device, "fp32", efficiency).total.tolist() == pytest.approx([2e-4])


def test_launches_add(ideal):
    efficiency = replace(ideal, launch_s={**ideal.launch_s, "gpu": 1e-5})
    _, backward = work(make_workload(layers=1), 1, "fp32")
    seconds = layer_seconds(backward, make_cluster(1, 1).device, "fp32", efficiency)
    assert seconds.launch.tolist() == pytest.approx([2e-5])


def test_bytes_scale_with_precision_and_batch():
    at_fp32, _ = work(make_workload(layers=1), 3, "fp32")
    at_bf16, _ = work(make_workload(layers=1), 3, "bf16")
    assert at_fp32.bytes.tolist() == [4e6 + 3 * 8e3]
    assert at_bf16.bytes.tolist() == [(4e6 + 3 * 8e3) / 2]
    assert at_bf16.flops.tolist() == at_fp32.flops.tolist() == [3e9]


def test_winograd_speeds_up_3x3_on_ordinary_cores_only(ideal):
    workload = make_workload(layers=1)
    conv = replace(workload, parameters=(replace(workload.parameters[0], shape=(8, 8, 3, 3)),))
    fast = replace(ideal, winograd=2.0)
    device = make_cluster(1, 1).device
    forward, _ = work(conv, 1, "fp32")
    assert layer_seconds(forward, device, "fp32", fast).total.tolist() == pytest.approx([5e-5])
    with_matrix = replace(device, peak_flops={"fp32": fact(1e12), "fp16": fact(1e13)})
    half, _ = work(conv, 1, "fp16")
    assert layer_seconds(half, with_matrix, "fp16", fast).total.tolist() == pytest.approx([1e-4])


def test_measured_matmul_replaces_the_peak():
    device = replace(make_cluster(1, 1).device, matmul_flops={"fp32": fact(7e12)})
    assert peak_rate(device, "fp32", TYPICAL) == 7e12


def test_unknown_precision_is_an_error():
    forward, _ = work(make_workload(), 1, "bf16")
    with pytest.raises(UserError, match="bf16"):
        layer_seconds(forward, make_cluster(1, 1).device, "bf16", TYPICAL)


def test_optimizer_moves_words(ideal):
    memory, launch = optimizer_seconds(OPTIMIZERS["adam"], 10**6, 4, make_cluster(1, 1).device, ideal)
    assert (memory, launch) == (pytest.approx(7 * 4e6 / 5e11), 0.0)


@given(st.floats(1e3, 1e12), st.floats(1.0, 10.0))
def test_more_flops_are_never_faster(flops, factor):
    device = make_cluster(1, 1).device
    times = [
        layer_seconds(work(make_workload(layers=1, flops=f), 1, "fp32")[0], device, "fp32", TYPICAL).total[0]
        for f in (flops, flops * factor)
    ]
    assert times[0] <= times[1]


def test_levels_are_ordered():
    for name in ("matmul_share", "vector_share", "matrix_share", "winograd", "memory_share", "concurrent_messages"):
        assert getattr(LOW, name) <= getattr(TYPICAL, name) <= getattr(HIGH, name), name
    for name in ("half_s", "latency_factor"):
        assert getattr(LOW, name) >= getattr(TYPICAL, name) >= getattr(HIGH, name), name
    assert all(LOW.link_share[k] <= TYPICAL.link_share[k] <= HIGH.link_share[k] for k in LOW.link_share)
    assert all(LOW.launch_s[k] >= TYPICAL.launch_s[k] >= HIGH.launch_s[k] for k in LOW.launch_s)
