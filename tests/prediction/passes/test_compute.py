"""Roofline against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import hardware
from paceline.calibration.attention import width_share
from paceline.calibration.constants import LEVELS, TYPICAL, Efficiency, efficiency
from paceline.errors import UserError
from paceline.hardware import Device
from paceline.prediction.passes.compute import (
    Seconds,
    computed_share,
    curve_of,
    layer_seconds,
    optimizer_seconds,
    peak_rate,
    shape_efficiency,
)
from paceline.prediction.passes.operation_table import operation_table
from paceline.prediction.passes.products import measured_seconds
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.workload import catalogue
from paceline.workload.builders.attention import attention
from paceline.workload.builders.layer_builders import lay_out
from paceline.workload.layers import Operation
from paceline.workload.table import Workload
from prediction_toys import fact, make_cluster, make_workload


def one(kind: str = "matmul", flops: float = 2e9, moved: float = 8e3, calls: int = 1, **shape: Any) -> Workload:
    """A workload of one forward operation."""
    only = Operation(kind=kind, backward=False, calls=calls, flops=flops, bytes=moved, **shape)
    layer = replace(make_workload(layers=1).layers[0], operations=(only,))
    return replace(make_workload(layers=1), layers=(layer,))


def forward(workload: Workload, device: Device, efficiency: Efficiency, precision: str = "fp32", batch: int = 1) -> Seconds:
    return layer_seconds(workload, batch, precision, device, efficiency)[0]


def test_roofline_takes_the_slower_of_flops_and_bytes(ideal):
    device = make_cluster(1, 1).device
    shape = {"m": 1024, "n": 1024, "k": 1024, "batch": 1, "grows": "m"}
    quick = forward(one(flops=1e9, moved=4.008e6, **shape), device, ideal)
    # 1e9 FLOPs at 1e13 FLOP/s are 100 us; 4.008 MB at 500 GB/s only 8 us.
    assert quick.total.tolist() == quick.flops.tolist() == pytest.approx([1e-4])
    slow = forward(one(flops=1e9, moved=4.008e6, **shape), replace(device, memory_bandwidth=fact(1e9)), ideal)
    assert slow.flops.tolist() == [0.0]
    assert slow.bytes.tolist() == pytest.approx([4.008e-3])


def test_forward_and_backward_are_apart(ideal):
    forward_s, backward_s = layer_seconds(make_workload(layers=3, width=1024), 64, "fp32", make_cluster(1, 1).device, ideal)
    assert backward_s.total.tolist() == pytest.approx((2 * forward_s.total).tolist())


CAUSAL_BLOCK = 128
"""Keys of a block of FlashAttention-2 (Dao 2023, section 3.3: blocks of 64 or 128)."""


@pytest.mark.parametrize(
    ("m", "n", "batch", "units", "share"),
    [
        (128, 128, 1, 1, 1.0),
        (129, 128, 1, 1, 129 / 192),  # three tiles of 64 rows
        (128, 128, 6, 4, 0.75),  # six tiles on four units: two waves of which half of one is empty
        (1, 1, 1, 1, 1 / (64 * 32)),
        (0, 0, 0, 1, 1.0),
    ],
)
def test_tiles_and_waves_are_quantised(m, n, batch, units, share):
    sizes = [np.array([float(x)]) for x in (m, n, 100, batch)]
    found = shape_efficiency(*sizes, units, 0.0, 1.0)[0]
    if (m, batch) == (128, 6):  # smaller tiles fill the waves better: 24 of 64 x 64 on 4 units leave none empty
        assert found == pytest.approx(1.0)
        assert shape_efficiency(*sizes, units, 0.0, 0.5)[0] == pytest.approx(share)
    else:
        assert found == pytest.approx(share)


def test_a_short_depth_costs_and_a_long_one_is_split():
    few, many = np.array([128.0]), np.array([65536.0])
    assert shape_efficiency(few, few, np.array([50.0]), np.array([1.0]), 1, 50.0, 1.0)[0] == pytest.approx(0.5)
    alone = shape_efficiency(few, few, many, np.array([1.0]), 100, 0.0, 0.1)[0]
    assert alone == pytest.approx(1.0)  # one tile, in a hundred parts


def test_half_of_attention_has_the_width_of_a_head_as_its_depth(ideal):
    device = replace(hardware.device("TPU v6e"), memory_bandwidth=fact(1e18))
    workload = one("attention", flops=1e12, moved=1.0, m=1024, n=1024, k=128, batch=8)
    narrow, wide = (forward(workload, replace(device, array=fact(side)), ideal, "bf16").flops for side in (128, 256))
    assert wide.tolist() == pytest.approx((1.5 * narrow).tolist())


def test_element_wise_work_waits_for_slow_vector_units(ideal):
    device = make_cluster(1, 1).device
    workload = one("memory", flops=0.0, moved=4e6)  # 1e6 numbers: 8 us of the memory
    assert forward(workload, replace(device, vector_rate=fact(1e12)), ideal).bytes.tolist() == pytest.approx([8e-6])
    assert forward(workload, replace(device, vector_rate=fact(1e9)), ideal).bytes.tolist() == pytest.approx([1e-3])


@pytest.mark.parametrize(("kind", "results"), [("matmul", 8 * 1024 * 512), ("attention", 8 * 1024 * 512)])
def test_slow_vector_units_fetch_the_results_of_products(ideal, kind, results):
    """Attention leaves its scores, once in the two products of a forward pass."""
    device = replace(make_cluster(1, 1).device, peak_flops={"fp32": fact(1e13), "bf16": fact(1e13)})
    flops = (2 if kind == "attention" else 1) * 2 * 8 * 1024 * 512 * 128.0
    workload = one(kind, flops=flops, moved=1.0, m=1024, n=512, k=128, batch=8)
    without, fetched = (forward(workload, replace(device, vector_rate=rate), ideal, "bf16").flops for rate in (None, fact(1e9)))
    assert (fetched - without).tolist() == pytest.approx([results / 1e9])


def test_launches_add_to_the_work(ideal):
    efficiency = replace(ideal, launch_s={**ideal.launch_s, "gpu": 1e-5})
    device = make_cluster(1, 1).device
    for moved in (5e5, 5e9):  # 1 us and 10 ms of traffic, two kernels
        seconds = forward(one("memory", flops=0.0, moved=moved, calls=2), device, efficiency)
        assert seconds.launch.tolist() == pytest.approx([2e-5])
        assert seconds.total.tolist() == pytest.approx([seconds.bytes.item() + 2e-5])


def test_bytes_scale_with_precision_and_batch(ideal):
    device = replace(make_cluster(1, 1).device, peak_flops={"fp32": fact(1e13), "bf16": fact(2e13)})
    workload = one("memory", flops=0.0, moved=5e6, fixed_bytes=5e6)
    assert forward(workload, device, ideal, batch=3).bytes.tolist() == pytest.approx([4e-5])
    assert forward(workload, device, ideal, "bf16", 3).bytes.tolist() == pytest.approx([2e-5])
    assert forward(workload, device, replace(ideal, kept_share=0.5), batch=3).bytes.tolist() == pytest.approx([2e-5])


def test_winograd_speeds_up_3x3_on_ordinary_cores_only(ideal):
    conv = one("conv", flops=1e9, m=128, n=128, k=576, batch=1, window=9)
    fast, device = replace(ideal, winograd=2.0), make_cluster(1, 1).device
    # the products, and 4 * 36 / 16 bytes written and read for each number of 64 channels that enter and 128 that leave
    transforms = 128 * (64 + 128) * 2 * 9.0 / device.memory_bandwidth.value
    products = 2 * 128 * 128 * 576 / device.peak("fp32").value / 2
    direct = 2 * products
    assert forward(conv, device, fast).total.tolist() == pytest.approx([1e-4 * (products + transforms) / direct])
    narrow = one("conv", flops=1e9, m=128, n=8, k=72, batch=1, window=9)
    assert forward(narrow, device, fast).total == forward(narrow, device, ideal).total  # the transforms would take longer
    with_matrix = replace(device, peak_flops={"fp32": fact(1e12), "fp16": fact(1e13)})
    assert forward(conv, with_matrix, fast, "fp16").total == forward(conv, with_matrix, ideal, "fp16").total


def test_a_board_gets_no_more_than_its_power_allows(ideal):
    device = replace(make_cluster(1, 1).device, architecture="A", power=fact(100.0), peak_flops={"fp32": fact(1e13)})
    assert peak_rate(device, "fp32", replace(ideal, joules={"A": 5e10})) == 5e12
    assert peak_rate(device, "fp32", replace(ideal, joules={"A": 5e11})) == 1e13
    assert peak_rate(device, "fp32", replace(ideal, joules={"B": 1.0})) == 1e13


def test_measured_matmul_replaces_the_peak():
    device = replace(make_cluster(1, 1).device, matmul_flops={"fp32": fact(7e12)})
    assert peak_rate(device, "fp32", TYPICAL) == 7e12


def test_unknown_precision_is_an_error():
    with pytest.raises(UserError, match="bf16"):
        layer_seconds(make_workload(), 1, "bf16", make_cluster(1, 1).device, TYPICAL)


BIG = {"m": 4096, "n": 4096, "k": 4096, "grows": "m"}


@pytest.mark.parametrize(
    ("kind", "shape", "faster"),
    [
        ("matmul", {"batch": 1, **BIG}, True),
        ("matmul", {"batch": 16, **BIG}, False),  # scores of attention that is not fused
        ("matmul", {"batch": 1, **BIG, "grows": "batch"}, False),
        ("conv", {"batch": 1, **BIG}, False),
        ("attention", {"batch": 16, **BIG, "grows": "batch"}, False),
        ("memory", {"m": 0, "n": 0, "k": 0, "batch": 0, "grows": ""}, False),
    ],
)
def test_fp8_is_for_products_of_layers_alone(kind: str, shape: dict[str, Any], faster: bool) -> None:
    work = one(kind, flops=0.0 if kind == "memory" else 2 * 4096.0**3, moved=2e8, **shape)
    half, eighth = (forward(work, hardware.device("H100"), TYPICAL, p, 4).total.item() for p in ("bf16", "fp8"))
    assert 0.5 * half <= eighth < 0.7 * half if faster else eighth == half


def test_rates_of_recipes_without_a_curve_are_those_of_bf16_as_often_as_their_peak():
    mi355x = hardware.device("MI355X")
    twice = peak_rate(mi355x, "mxfp8", TYPICAL) / peak_rate(mi355x, "bf16", TYPICAL)
    assert twice == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [
        ("H200 NVL", {"bf16": 31.968, "fp8": 16.785, "fp8-block": 22.882 - 2.5}),
        ("B300", {"bf16": 13.102, "fp8": 6.812, "mxfp8": 7.161, "nvfp4": 3.764}),
    ],
)
def test_products_take_what_transformer_engine_measured(name: str, milliseconds: dict[str, float]) -> None:
    """NVIDIA, Transformer Engine, GEMM profiling tutorial: the twelve products of a layer of 4,096 with 15,872 tokens, operands
    quantised before."""
    device, tokens = hardware.device(name), 15872.0
    sides = [(12288.0, 4096.0), (4096.0, 4096.0), (16384.0, 4096.0), (4096.0, 16384.0)]
    m, n, k = np.array([size for a, b in sides for size in ((tokens, a, b), (tokens, b, a), (a, b, tokens))]).T
    for precision, found in milliseconds.items():
        curve = replace(curve_of(device, precision, TYPICAL), cast_bytes=0.0, cast_s=0.0)
        seconds = measured_seconds(curve, m, n, k)
        assert 1e3 * float(seconds.sum()) == pytest.approx(found, rel=0.2), precision


def test_fp8_halves_the_bytes_of_operands_not_of_the_product_and_casts(ideal):
    device = replace(make_cluster(1, 1).device, peak_flops={"fp32": fact(1e15), "bf16": fact(1e18), "fp8": fact(2e18)})
    slow = replace(device, memory_bandwidth=fact(1e9))
    m, n, k = 64, 256, 32
    work = one(flops=2.0 * m * n * k, moved=4.0 * (m * k + k * n + m * n), m=m, n=n, k=k, batch=1, grows="m")
    assert forward(work, slow, ideal, "fp8").bytes.tolist() == pytest.approx(
        [(m * k + k * n + 2 * m * n) / 1e9 + 2 * (m * k + k * n) / 1e9]  # the product, and half of the casts of its operands
    )


def test_narrow_elements_do_not_move_faster_than_they_can_be_loaded(ideal: Efficiency) -> None:
    """An A100 with 2 TB/s: half the bytes take half the time only as long as its threads have enough loads on the way."""
    a100, work = hardware.device("A100"), one("memory", flops=0.0, moved=4e9)
    e = replace(ideal, element_rate=4.0)
    wide, narrow = (forward(work, a100, e, p).bytes.item() for p in ("tf32", "fp16"))
    assert wide == pytest.approx(4e9 / a100.memory_bandwidth.value)
    assert narrow == pytest.approx(1e9 / (4.0 * 108 * 1.41e9), rel=0.01) and wide / 2 < narrow < wide
    v100 = hardware.device("V100")  # with 0.9 TB/s its loads suffice
    assert forward(work, v100, e, "fp16").bytes.item() == pytest.approx(2e9 / v100.memory_bandwidth.value)


def test_units_that_issue_no_more_than_they_multiply_lose_what_else_a_kernel_does(ideal: Efficiency) -> None:
    e, sizes = replace(ideal, issue_overhead=0.25), {"batch": 1, "grows": "m"}

    def share(device: Device, size: int) -> float:
        work = one(flops=2.0 * size**3, moved=0.0, m=size, n=size, k=size, **sizes)
        return forward(work, device, ideal, "fp32").flops.item() / forward(work, device, e, "fp32").flops.item()

    wide = [hardware.device(name) for name in ("RTX 3090", "RTX 4090", "H100")]
    assert all(share(device, 8192) == pytest.approx(1 / 1.25) for device in wide)
    assert all(share(device, 512) < 0.75 for device in wide)  # smaller tiles load more for each product
    assert all(share(hardware.device(name), 512) == 1 for name in ("V100", "A100", "Tesla P4"))


def recipe_device(**changes: Any) -> Device:
    peaks = {"fp32": 1e15, "bf16": 1e18, "fp8": 2e18, "mxfp8": 2e18, "nvfp4": 4e18}
    device = replace(make_cluster(1, 1).device, peak_flops={name: fact(value) for name, value in peaks.items()})
    return replace(device, memory_bandwidth=fact(1e9), architecture="Hopper", **changes)


@pytest.mark.parametrize(
    ("precision", "operand", "cast", "weight_cast"),
    [
        ("fp8", 1.0, 2 + 2, 2 + 2),  # once read; straight and transposed
        ("fp8-current", 1.0, 2 + 2 + 2, 2 + 2 + 2),  # read for the scale, then for the cast
        ("fp8-block", 1 + 4 / 128, 2 + 2 * (1 + 4 / 128), 2 + 2 * (1 + 4 / 128)),
        ("mxfp8", 1 + 1 / 32, 2 + 2 * (1 + 1 / 32), 2 + 2 * (1 + 1 / 32)),
        ("nvfp4", 0.5 + 1 / 16, 4 + 2 * (0.5 + 1 / 16), 4 + 2 * (0.5 + 1 / 16)),
    ],
)
def test_recipes_move_their_operands_and_casts(
    ideal: Efficiency, precision: str, operand: float, cast: float, weight_cast: float
) -> None:
    m, n, k = 64, 256, 32
    moved = 4.0 * (m * k + k * n + m * n)
    forward_s, gradient_s = (
        forward(one(flops=2.0 * m * n * k, moved=moved, m=m, n=n, k=k, batch=1, grows=grows), recipe_device(), ideal, precision)
        for grows in ("m", "k")
    )
    product = operand * (m * k + k * n) + 2 * m * n
    assert forward_s.bytes.item() == pytest.approx((product + (cast * m * k + weight_cast * k * n) / 2) / 1e9)
    assert gradient_s.bytes.item() == pytest.approx((product + cast * (m * k + k * n) / 2) / 1e9)  # no weight among them


def test_blackwell_needs_no_transpose_of_one_scale_a_tensor(ideal: Efficiency) -> None:
    m, n, k = 64, 256, 32
    work = one(flops=2.0 * m * n * k, moved=4.0 * (m * k + k * n + m * n), m=m, n=n, k=k, batch=1, grows="m")
    old, new = (
        forward(work, replace(recipe_device(), architecture=chip), ideal, "fp8").bytes.item()
        for chip in ("Hopper", "Blackwell")
    )
    assert old - new == pytest.approx((m * k + k * n) / 2 / 1e9)


def test_logits_stay_wide_and_weights_are_cast_once_a_step_where_they_are_kept() -> None:
    h100, work = hardware.device("H100"), Workload.named("gpt2-large")
    wide, narrow = (sum(x.total for x in layer_seconds(work, 16, p, h100, TYPICAL)) for p in ("bf16", "fp8"))
    names = [layer.name for layer in work.layers]
    (logits,) = (i for i, layer in enumerate(work.layers) if layer.is_logits)
    assert narrow[logits] == wide[logits] and narrow[names.index("blocks.0.expand")] < wide[names.index("blocks.0.expand")]
    again, once = (sum(float(x.total.sum()) for x in layer_seconds(work, 16, "fp8", h100, TYPICAL, s)) for s in (1.0, 0.125))
    assert 0.8 * again < once < again


def test_tuned_software_casts_the_input_of_a_gate_once() -> None:
    h100, work = hardware.device("H100"), Workload.named("llama-3-8b")
    names = [layer.name for layer in work.layers]
    gate, expand = (names.index(f"blocks.0.{name}") for name in ("gate", "expand"))
    for level, shared in (("tuned", True), ("ordinary", False)):
        wide, narrow = (layer_seconds(work, 1, p, h100, efficiency(level))[0].total for p in ("bf16", "fp8"))
        casts = narrow - wide
        assert (casts[gate] < casts[expand] - 1e-6) == shared


def test_fp8_needs_a_device_that_has_it():
    with pytest.raises(UserError, match=r"unknown precision for A100 SXM 80GB 'fp8'; legal: fp32, tf32, bf16, fp16"):
        forward(one(), hardware.device("A100"), TYPICAL, "fp8")


def test_tuned_software_launches_one_update_for_many_tensors() -> None:
    device = hardware.device("A100")
    each, fused = (optimizer_seconds(OPTIMIZERS["adam"], 10**6, 360, device, efficiency(level))[1] for level in LEVELS)
    launch_s = [efficiency(level).launch_s["gpu"] * efficiency(level).factor_on(device.board) for level in LEVELS]
    assert each / launch_s[0] == pytest.approx(36 * fused / launch_s[1])


def test_optimizer_moves_words(ideal):
    memory, launch = optimizer_seconds(OPTIMIZERS["adam"], 10**6, 4, make_cluster(1, 1).device, ideal)
    assert (memory, launch) == (pytest.approx(7 * 4e6 / 5e11), 0.0)


@given(st.integers(1, 512), st.integers(1, 512), st.sampled_from(["fp32", "tf32", "bf16"]))
def test_a_bigger_batch_is_never_faster_and_never_worse_than_in_proportion(batch, more, precision):
    workload, device = catalogue.layer_table("resnet-50"), hardware.device("A100")
    few, many = (
        sum(float(x.total.sum()) for x in layer_seconds(workload, b, precision, device, TYPICAL)) for b in (batch, batch + more)
    )
    assert few <= many * 1.1  # a size may fit the tiles worse than a larger one
    assert many / (batch + more) <= few / batch * 1.1


@pytest.mark.parametrize("level", LEVELS)
def test_constants_lie_where_physics_lets_them(level):
    e = efficiency(level)
    for name in ("matmul_share", "vector_share", "matrix_share", "conv_share", "matrix_conv_share", "attention_share"):
        assert 0.2 < getattr(e, name) <= 1, name
    assert 0.3 < e.memory_share <= 1
    assert 0 < e.kept_share <= 1 < e.winograd <= 4
    assert 1e-6 < e.launch_s["gpu"] < 5e-5


def test_tuned_software_is_faster():
    workload, device = catalogue.layer_table("resnet-50"), hardware.device("V100")
    slow, fast = (
        sum(float(x.total.sum()) for x in layer_seconds(workload, 64, "fp16", device, efficiency(level))) for level in LEVELS
    )
    assert fast < slow


def test_unknown_level_names_the_levels():
    with pytest.raises(UserError, match="software level 'tune'"):
        efficiency("tune")  # type: ignore[arg-type]


def _computed(tokens: int, window: int = 0) -> tuple[float, float]:
    """Return the FLOPs of causal attention in a forward pass, of one head of 64: counted, and computed by the kernel."""
    spec = attention("mix", tokens, tokens, 1, 1, 64, causal=True, sliding=window)
    layers, parameters = lay_out([spec])
    net = replace(Workload.named("gpt2"), layers=layers, parameters=parameters)
    counted = spec.operations[0].flops
    return counted, counted * float(computed_share(operation_table(net))[0])


@pytest.mark.parametrize(("tokens", "window"), [(4096, 0), (4096, 4096), (1024, 4096), (256, 0)])
def test_causal_attention_computes_the_blocks_up_to_the_diagonal(tokens: int, window: int) -> None:
    """Counted block by block."""
    blocks = sum(q + 1 for q in range(tokens // CAUSAL_BLOCK))
    assert _computed(tokens, window)[1] == pytest.approx(2 * 2.0 * blocks * CAUSAL_BLOCK**2 * 64, rel=0.05)


def test_a_sliding_window_takes_the_share_of_all_keys_that_was_published() -> None:
    """cuDNN on an H200 and a GB200, forward, heads of 64, 4096 tokens, against its causal kernel without a window (NVIDIA,
    cudnn-frontend, benchmark; Dao-AILab/flash-attention#2605)."""
    (_, whole), (narrow, near) = _computed(4096), _computed(4096, 128)
    assert 0.18 < near / whole < 0.37
    assert near > 2 * narrow


def test_heads_of_64_run_as_much_slower_as_published() -> None:
    """cuDNN on an H100, FlashAttention-3, arXiv:2407.08608, figures 5 and 6, 4096 tokens: 408 and 609, 417 and 499 TFLOP/s."""
    both = np.array([64.0, 64.0, 128.0, 256.0])
    forward, backward, usual, wide = width_share(hardware.device("H100"), both, np.array([False, True, False, False]))
    assert forward == pytest.approx(408 / 609, rel=0.15)
    assert backward == pytest.approx(417 / 499, rel=0.1)
    assert usual == wide == 1
    assert np.all(width_share(hardware.device("L40S"), both, np.zeros(4, dtype=np.bool_)) == 1)
