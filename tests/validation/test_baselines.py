"""Baselines are exact where their assumption holds, and silent where they know nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from measured_rows import case
from paceline.validation.baselines import Baselines, mfu, per_device
from paceline.validation.case import Case
from paceline.validation.pollux import PolluxForm


def rows(**rates: float) -> list[Case]:
    """ResNet-50 of MLPerf at samples per second by number of devices, 200 samples each."""
    made = []
    for name, rate in rates.items():
        n = int(name.removeprefix("n"))
        made.append(
            case(
                "mlperf",
                num_accel=str(n),
                num_nodes=str(max(1, n // 8)),
                accel_per_node=str(min(n, 8)),
                global_batch=str(200 * n),
                throughput_samples_per_s=str(rate),
            )
        )
    return made


def test_linear_scaling_keeps_the_rate_of_a_device() -> None:
    small, middle, big = rows(n4=10000, n8=19000, n64=140000)
    said = Baselines([small, middle], [small, middle, big], "scale")(big)
    assert said["linear scaling"] == pytest.approx(big.samples / (10000 / 4 * 64))
    assert "datasheet peak" not in said


def test_datasheet_ratios_scale_another_device() -> None:
    (known,) = rows(n8=20000)
    asked = case("mlperf", accelerator="H100-SXM5-80GB", num_accel="8", num_nodes="1", global_batch="1600")
    said = Baselines([], [known, asked], "device")(asked)
    one, other = asked.settings[0].cluster.device, known.settings[0].cluster.device
    peaks = one.peak("fp16").value / other.peak("fp16").value
    bandwidths = one.memory_bandwidth.value / other.memory_bandwidth.value
    assert said["datasheet peak"] == pytest.approx(known.step_s / peaks)
    assert said["datasheet bandwidth"] == pytest.approx(known.step_s / bandwidths)
    assert said["datasheet mean"] == pytest.approx(known.step_s / (peaks * bandwidths) ** 0.5)
    assert said["constant MFU"] == pytest.approx(said["datasheet peak"])  # one row: its share is the median
    assert "linear scaling" not in said


def test_a_board_with_the_same_chip_is_held_out_too() -> None:
    asked, sibling = case("mlperf"), case("mlperf", accelerator="A100-SXM-40GB")
    assert asked.keys.device != sibling.keys.device
    assert Baselines([], [sibling, asked], "device")(asked) == {}


def test_constant_mfu_of_other_models_predicts_itself() -> None:
    one = case("lambda", model="resnet50")
    other = replace(one, keys=replace(one.keys, model="other"))
    said = Baselines([], [one, other], "model")(one)
    assert said["constant MFU"] == pytest.approx(one.step_s)
    peak = one.settings[0].cluster.device.peak("fp16").value
    assert mfu(one) == pytest.approx(per_device(one) * one.workload.flops_per_sample / peak)


def test_what_others_published_is_passed_on() -> None:
    one = replace(case("lambda"), published={"theirs": 0.5})
    assert Baselines([], [one], "device")(one) == {"theirs": 0.5}


def test_the_pollux_form_finds_what_it_was_made_from() -> None:
    made = []
    for n in (1, 2, 4, 8):
        for batch in (16, 32, 64):
            compute, network = 0.05 + 0.004 * batch, (0.03 + 0.005 * (n - 2)) if n > 1 else 0.0
            step = (compute**2 + network**2) ** 0.5
            given = {"num_gpus": str(n), "local_batch": str(batch), "step_time_s": str(step)}
            made.append(case("pollux_sia", num_nodes="1", sync_time_s="0", **given))
    asked = replace(made[-1], step_s=1.0)
    form = PolluxForm.fit(made)
    assert form is not None and PolluxForm.fit(made[:4] * 2) is None and PolluxForm.fit([]) is None
    far = replace(made[-1], keys=replace(made[-1].keys, devices=10**6))
    assert form(far) is None
    for row in made:
        assert form(row) == pytest.approx(row.step_s, rel=0.02)
    assert Baselines(made, [*made, asked], "scale")(asked)["Pollux form"] == pytest.approx(made[-1].step_s, rel=0.02)
