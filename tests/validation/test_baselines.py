"""Baselines are exact where their assumption holds, and silent where they know nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from measured_rows import case
from paceline.validation.baselines import Baselines, mfu, per_device
from paceline.validation.case import Case


def rows(**rates: float) -> list[Case]:
    """ResNet-50 of MLPerf at samples per second by number of devices, 200 samples each."""
    cases = []
    for name, rate in rates.items():
        n = int(name.removeprefix("n"))
        cases.append(
            case(
                "mlperf",
                num_accel=str(n),
                num_nodes=str(max(1, n // 8)),
                accel_per_node=str(min(n, 8)),
                global_batch=str(200 * n),
                throughput_samples_per_s=str(rate),
            )
        )
    return cases


def test_linear_scaling_keeps_the_rate_of_a_device() -> None:
    small, middle, big = rows(n4=10000, n8=19000, n64=140000)
    seconds = Baselines([small, middle], [small, middle, big], "scale")(big)
    assert seconds["linear scaling"] == pytest.approx(big.samples / (10000 / 4 * 64))
    assert "datasheet peak" not in seconds


def test_datasheet_ratios_scale_another_device() -> None:
    (known,) = rows(n8=20000)
    asked = case("mlperf", accelerator="H100-SXM5-80GB", num_accel="8", num_nodes="1", global_batch="1600")
    seconds = Baselines([], [known, asked], "device")(asked)
    wanted, other = asked.setting.cluster.device, known.setting.cluster.device
    peaks = wanted.peak("fp16").value / other.peak("fp16").value
    bandwidths = wanted.memory_bandwidth.value / other.memory_bandwidth.value
    assert seconds["datasheet peak"] == pytest.approx(known.step_s / peaks)
    assert seconds["datasheet bandwidth"] == pytest.approx(known.step_s / bandwidths)
    assert seconds["datasheet mean"] == pytest.approx(known.step_s / (peaks * bandwidths) ** 0.5)
    assert seconds["constant MFU"] == pytest.approx(seconds["datasheet peak"])  # one row: its share is the median
    assert "linear scaling" not in seconds


def test_a_board_with_the_same_chip_is_held_out_too() -> None:
    asked, sibling = case("mlperf"), case("mlperf", accelerator="A100-SXM-40GB")
    assert asked.keys.device != sibling.keys.device
    assert Baselines([], [sibling, asked], "device")(asked) == {}


def test_constant_mfu_of_other_models_predicts_itself() -> None:
    row = case("lambda", model="resnet50")
    other = replace(row, keys=replace(row.keys, model="other"))
    seconds = Baselines([], [row, other], "model")(row)
    assert seconds["constant MFU"] == pytest.approx(row.step_s)
    peak = row.setting.cluster.device.peak("fp16").value
    assert mfu(row) == pytest.approx(per_device(row) * row.workload.flops_per_sample / peak)


def test_what_others_published_is_passed_on() -> None:
    row = replace(case("lambda"), published={"theirs": 0.5})
    assert Baselines([], [row], "device")(row) == {"theirs": 0.5}
