"""Names of hardware as they are spelt: the maker, the seller and what is added to a name are taken off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.hardware.spelling import fold_hardware, memory_sizes, shorter, without_seller


@pytest.mark.parametrize("text", ["NVIDIA A100", "nvidia-a100", "A 1 0 0", "NVIDIA Tesla A100"])
def test_the_maker_of_the_chip_does_not_count(text: str) -> None:
    assert fold_hardware(text) == "a100"


def test_a_maker_alone_stays() -> None:
    assert fold_hardware("NVIDIA") == "nvidia"


@pytest.mark.long
@given(st.text(max_size=20))
def test_a_name_is_always_tried_as_it_stands(text: str) -> None:
    assert next(without_seller(text)) == text
    assert next(shorter(text)) == text


def test_words_behind_a_seller_go_one_by_one() -> None:
    assert list(without_seller("Dell XE9680 H100 SXM5")) == ["Dell XE9680 H100 SXM5", "XE9680 H100 SXM5", "H100 SXM5", "SXM5"]
    assert list(without_seller("XE9680 H100")) == ["XE9680 H100"]


def test_additions_go_one_by_one() -> None:
    assert {"H200 SXM", "H200"} <= {text.replace("-", " ") for text in shorter("H200-SXM-141GB")}
    assert memory_sizes("MI300X 192GB HBM3") == [192 * 2**30]
    assert memory_sizes("RTX4090 24G PCIe") == [24 * 2**30]
    assert memory_sizes("H100 SXM5") == []
