"""Constants of accelerators that are no GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.calibration.accelerators import families, family, on_device, protocols
from paceline.calibration.constants import TYPICAL, efficiency
from paceline.calibration.protocols import BARE, nccl
from paceline.hardware import device, devices

TUNED = efficiency("tuned")


@pytest.mark.parametrize("name", ["A100", "H100", "MI300X", "Xeon Platinum 8380", "IPU GC200"])
def test_other_devices_keep_the_constants(name: str) -> None:
    assert family(device(name)) is None
    assert on_device(TUNED, device(name)) is TUNED


def test_every_chip_with_a_share_is_a_device_of_its_family() -> None:
    names = {one.name: one for one in devices()}
    for own in families():
        assert own.source.strip()
        for chip, share in own.products.items():
            assert family(names[chip]) == own
            assert 0 < share < 1


def test_products_reach_the_share_of_the_chip() -> None:
    own = on_device(TUNED, device("TPU v4"))
    assert own.matmul_share * own.matrix_share == families()[0].products["TPU v4"]
    assert own.attention_share / own.matrix_share == pytest.approx(TUNED.attention_share / TUNED.matrix_share)
    assert own.memory_share == TUNED.memory_share


def test_a_chip_without_rows_takes_the_mean_of_the_others() -> None:
    v4, v5e = families()[0].products.values()
    assert on_device(TUNED, device("TPU v6e")).matrix_share == pytest.approx((v4 * v5e) ** 0.5)


def test_a_chip_that_is_left_out_takes_the_others() -> None:
    v4, v5e = families()[0].products.values()
    without = {name: replace(TUNED, without=name) for name in ("TPU v4", "TPU v5e", "Trainium")}
    assert on_device(without["TPU v4"], device("TPU v4")).matrix_share == pytest.approx(v5e)
    assert on_device(without["TPU v5e"], device("TPU v5e")).matrix_share == pytest.approx(v4)
    assert on_device(without["Trainium"], device("Trainium")).matrix_share == TUNED.matrix_share
    assert efficiency("tuned", "TPU v4").without == "TPU v4"


def test_a_compiled_step_launches_less() -> None:
    name = device("Trainium")
    assert on_device(TYPICAL, name).launch_s["accelerator"] < TYPICAL.launch_s["accelerator"]
    assert on_device(TYPICAL, name).launch_s["gpu"] == TYPICAL.launch_s["gpu"]


def test_protocols_of_collectives() -> None:
    assert protocols(TYPICAL, device("Trainium")) == BARE
    assert protocols(TYPICAL, device("Xeon Platinum 8380")) == BARE
    assert protocols(TYPICAL, device("H100")) == nccl()
