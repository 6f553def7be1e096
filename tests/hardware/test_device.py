"""One device: its peak at a precision, and the chip that it counts as."""

from __future__ import annotations

from dataclasses import replace

import pytest

from each_row import each_row
from facts import facts
from paceline.errors import UserError
from paceline.hardware import BYTES_PER_ELEMENT, PRECISIONS, device, devices
from prediction_toys import make_cluster


def test_missing_precision_says_what_there_is() -> None:
    with pytest.raises(UserError, match=facts("V100 SXM2 16GB", "'bf16'", "fp32", "fp16")):
        device("V100").peak("bf16")


@each_row("name", [device.name for device in devices()])
def test_the_peak_is_that_of_the_table_and_no_other(name: str) -> None:
    entry = device(name)
    assert all(entry.peak(precision) is fact for precision, fact in entry.peak_flops.items())
    assert set(entry.precisions) >= set(entry.peak_flops)
    for precision in set(PRECISIONS) - set(entry.precisions):
        with pytest.raises(UserError, match=f"unknown precision for .* '{precision}'; legal: {next(iter(entry.peak_flops))}"):
            entry.peak(precision)


def test_boards_of_one_architecture_are_one_chip() -> None:
    toy = make_cluster(1, 1).device
    assert toy.chip == "toy" and replace(toy, architecture="Turing").chip == "Turing"
    assert device("A100").chip == device("A100 40GB").chip != device("V100").chip


def test_an_element_is_no_wider_than_fp32_and_every_precision_has_a_width() -> None:
    assert set(BYTES_PER_ELEMENT) == set(PRECISIONS) and set(BYTES_PER_ELEMENT.values()) == {2, 4}
