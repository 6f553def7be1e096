"""Choices of offload."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.strategy import Parallelism
from paceline.strategy.offload import OFFLOADS
from wrong_types import wrong_types


def test_what_exists() -> None:
    assert tuple(OFFLOADS) == ("none", "optimizer", "weights+optimizer")
    for name in OFFLOADS:
        assert Parallelism(data=4, sharding="zero3", offload=name).offload is OFFLOADS[name]
    with pytest.raises(UserError, match=r"unknown offload 'optimiser'; .*did you mean optimizer\?"):
        Parallelism(offload="optimiser")
    for wrong in wrong_types(str):
        with pytest.raises(UserError, match="the offload is a name"):
            Parallelism(offload=wrong)


@pytest.mark.parametrize("sharding", ["ddp", "zero1"])
def test_weights_that_every_device_holds_are_not_offloaded(sharding: str) -> None:
    with pytest.raises(UserError, match=f"offload of weights with sharding {sharding}, which holds them whole; give sharding"):
        Parallelism(data=4, sharding=sharding, offload="weights+optimizer")
