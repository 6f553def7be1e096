"""One device: its peak at a precision, and the chip that it counts as."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.errors import UserError
from paceline.hardware import BYTES_PER_ELEMENT, PRECISIONS, device, devices
from prediction_toys import make_cluster


def test_missing_precision_says_what_there_is() -> None:
    with pytest.raises(UserError, match=r"unknown precision for V100 SXM2 16GB 'bf16'; legal: fp32, fp16"):
        device("V100").peak("bf16")


@pytest.mark.parametrize("name", [device.name for device in devices()])
def test_the_peak_is_that_of_the_table_and_no_other(name: str) -> None:
    entry = device(name)
    assert all(entry.peak(precision) is fact for precision, fact in entry.peak_flops.items())
    assert set(entry.precisions) >= set(entry.peak_flops)
    for precision in set(PRECISIONS) - set(entry.precisions):
        with pytest.raises(UserError, match=f"unknown precision for .* '{precision}'; legal: {next(iter(entry.peak_flops))}"):
            entry.peak(precision)


def test_recipes_have_the_peak_of_what_they_run_on() -> None:
    h100, b200, l4, mi355x, tpu = (device(name) for name in ("H100", "B200", "L4", "MI355X", "TPU7x"))
    assert set(h100.precisions) >= {"fp8", "fp8-current", "fp8-block"} and not {"mxfp8", "nvfp4"} & set(h100.precisions)
    assert h100.peak("fp8-block") is h100.peak("fp8-current") is h100.peak("fp8")
    assert set(b200.precisions) >= set(PRECISIONS) and b200.peak("mxfp8").value == b200.peak("fp8").value
    assert b200.peak("nvfp4").value == pytest.approx(2 * b200.peak("fp8").value)
    assert "fp8-block" not in l4.precisions and "fp8-current" in l4.precisions
    assert "mxfp8" in mi355x.precisions and "nvfp4" not in mi355x.precisions
    assert "fp8" in tpu.precisions and "mxfp8" not in tpu.precisions
    with pytest.raises(UserError, match=r"unknown precision for H100 SXM 'nvfp4'; legal: fp32, .*, fp8-current, fp8-block"):
        h100.peak("nvfp4")


def test_boards_of_one_architecture_are_one_chip() -> None:
    toy = make_cluster(1, 1).device
    assert toy.chip == "toy" and replace(toy, architecture="Turing").chip == "Turing"
    assert device("A100").chip == device("A100 40GB").chip != device("V100").chip


def test_an_element_is_no_wider_than_fp32_and_every_precision_has_a_width() -> None:
    assert set(BYTES_PER_ELEMENT) == set(PRECISIONS) and set(BYTES_PER_ELEMENT.values()) == {2, 4}
