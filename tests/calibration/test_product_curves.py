"""Curves of products: the measured chips, and those that a device without measurements takes."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

import pytest

from paceline import hardware
from paceline.calibration.product_curves import has_curve, product_curve
from paceline.errors import UserError

MEASURED = ("A100 SXM 80GB", "L40S", "H100 SXM", "H200", "B200", "GB200")


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_chip_has_its_own_curve_below_its_peak(name: str) -> None:
    device = hardware.device(name)
    curve = product_curve(device, "bf16", {device.architecture: 1.0})  # the power limits others
    assert curve.chip == name and 0.5 * curve.peak < curve.rate < curve.peak
    assert 1e-6 < curve.launch_s < 1e-5 and 0.6 < curve.memory <= 1
    assert curve.correction.size and abs(curve.correction).max() < 1.5


@pytest.mark.parametrize(
    ("name", "precision", "chip"),
    [
        ("A100 SXM 40GB", "bf16", "A100 SXM 80GB"),
        ("RTX 6000 Ada", "fp16", "L40S"),
        ("H20", "bf16", "H100 SXM"),
        ("B300", "nvfp4", "B200"),
        ("GB300", "mxfp8", "GB200"),
        ("RTX PRO 6000", "bf16", "L40S"),  # Blackwell without NVLink has the matrix instructions of Ada
        ("H200", "fp8-current", "H200"),
    ],
)
def test_another_device_takes_the_nearest_chips_curve(name: str, precision: str, chip: str) -> None:
    device = hardware.device(name)
    curve = product_curve(device, precision)
    assert (curve.chip, curve.device, curve.precision) == (chip, name, precision)
    assert curve.peak == device.peak(precision).value and curve.bandwidth == device.memory_bandwidth.value


def test_power_limits_a_board_without_measured_products() -> None:
    joules = {"Ada": 9e11}
    l40s = product_curve(hardware.device("L40S"), "bf16", joules)
    l4 = product_curve(hardware.device("L4"), "bf16", joules)
    assert l4.rate / l40s.rate == pytest.approx(72 / 300, rel=0.01)
    h20 = product_curve(hardware.device("H20"), "bf16", {"Hopper": 1.3e12})
    chip = hardware.device(h20.chip)
    h100 = product_curve(chip, "bf16")
    assert h100.rate / h100.peak < h20.rate / h20.peak <= 0.981  # less to compute with the same power
    cycles = hardware.device("H20").cycles, chip.cycles
    assert cycles[0] and cycles[1]
    assert h20.feed * h20.peak / cycles[0] == pytest.approx(h100.feed * h100.peak / cycles[1])


def test_a_measured_product_of_the_catalogue_scales_the_curve() -> None:
    device, curve = hardware.device("GH200"), product_curve(hardware.device("GH200"), "bf16")
    own = product_curve(hardware.device(curve.chip), "bf16")
    chip = hardware.device(curve.chip)
    faster = device.matmul_flops["bf16"].value / chip.matmul_flops["bf16"].value
    assert curve.rate / own.rate == pytest.approx(faster * chip.peak("bf16").value / device.peak("bf16").value)


def test_without_its_own_measurements_a_chip_takes_a_relatives() -> None:
    device = replace(hardware.device("H200"), matmul_flops={})
    assert product_curve(device, "bf16", without=frozenset({"H200"})).chip == "H100 SXM"


def test_who_has_a_curve() -> None:
    assert has_curve(hardware.device("A100"), "tf32") and not has_curve(hardware.device("A100"), "fp32")
    assert not any(has_curve(hardware.device(name), "fp16") for name in ("V100", "T4", "RTX A6000", "RTX 4090", "MI300X"))
    with pytest.raises(UserError, match="precision"):
        product_curve(hardware.device("A100"), "fp8")


def test_the_file_is_small() -> None:
    assert len(files("paceline.calibration").joinpath("products.json").read_bytes()) < 300_000
