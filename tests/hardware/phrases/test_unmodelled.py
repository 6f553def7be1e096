"""Chips whose training is not modelled are refused with their numbers and the nearest GPU that is."""

from __future__ import annotations

import pytest

from each_row import each_row
from facts import facts
from paceline.errors import UserError
from paceline.hardware import Cluster, device
from paceline.hardware.catalogue import is_device
from paceline.hardware.phrases.unmodelled import check_modelled, unmodelled, unmodelled_names


@each_row("name", unmodelled_names())
def test_every_name_is_refused_with_the_reason(name: str) -> None:
    assert not is_device(name)
    with pytest.raises(UserError, match=facts("Apple", "not modelled", "paceline hardware probe")):
        Cluster.named(name)


def test_the_nearest_gpu_is_one_of_like_rates() -> None:
    with pytest.raises(UserError) as refused:
        check_modelled("M3 Max")
    nearest = device(refused.value.fix.split(": ")[1].split(";")[0])
    chip = unmodelled()["m3max"]
    for has, wanted in ((nearest.peak_flops["fp32"], chip.fp32), (nearest.memory_bandwidth, chip.memory_bandwidth)):
        assert 0.6 < has.value / wanted.value < 1.6
    check_modelled("H100")
