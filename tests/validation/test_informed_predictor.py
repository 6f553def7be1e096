"""The predictor that is validated: its constants have not seen what is held out, and visible rows correct it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from measured_rows import case
from paceline import hardware
from paceline.validation import Info
from paceline.validation.case import Case, HoldOut, Keys
from paceline.validation.informed_predictor import InformedPredictor
from paceline.validation.sets import case_builders
from paceline.workload import Workload

HELD = {
    ("none", "device", 1): "Ampere GA100",
    ("up_to=2", "device", 64): "Ampere GA100",
    ("one_device", "model", 8): "resnet-50",
    ("one_node", "scale", 64): "several nodes",
    ("up_to=16", "scale", 64): "several nodes",
    ("up_to=4", "scale", 8): "several devices",
    ("one_device", "scale", 2): "several devices",
    ("none", "scale", 8): "several devices",
    ("none", "scale", 1): "one device",
}


@pytest.mark.parametrize(("given", "name"), HELD.items())
def test_no_constant_has_seen_a_row_of_what_is_held_out(given: tuple[str, HoldOut, int], name: str) -> None:
    info, hold_out, devices = given
    keys = Keys("resnet", "A100 SXM 40GB", devices, max(1, devices // 8))
    setting = case_builders.setting(hardware.cluster("A100 SXM 40GB", 1, 1), 32, "fp16", "momentum")
    row = Case(keys=keys, workload=Workload.named("resnet-50"), setting=setting, software="tuned", step_s=0.1)
    assert InformedPredictor(lambda case: [], Info.parse(info), hold_out).held_out(row) == name


def test_visible_rows_correct_it() -> None:
    row = case("lambda")
    slow = replace(row, step_s=10 * row.step_s)
    plain, taught = (InformedPredictor(lambda _, rows=rows: rows, Info(), "device")(row) for rows in ([], [slow] * 4))
    assert plain.low_s < plain.step_s < plain.high_s
    assert abs(taught.step_s / slow.step_s - 1) < abs(plain.step_s / slow.step_s - 1)


def test_eager_software_launches_as_ordinary_software_does() -> None:
    row = case("lambda")
    tuned, eager, ordinary = (
        InformedPredictor(lambda _: [], Info(), "model")(replace(row, software=software)).step_s
        for software in ("tuned", "eager", "ordinary")
    )
    assert tuned <= eager <= ordinary


def test_a_run_without_overlap_is_predicted_without() -> None:
    row = case("lambda", system="8x RTX 3090", num_gpus="8", batch_per_gpu_listed="2048")
    usual, none = (
        InformedPredictor(lambda _: [], Info(), "model")(replace(row, overlap=overlap)).step_s for overlap in (None, False)
    )
    assert none > usual
