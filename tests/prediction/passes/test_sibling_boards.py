"""Boards of one chip: one that is at least as good in every number of the catalogue is not slower."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import permutations

import pytest

from paceline import predict
from paceline.hardware import Device, device, devices

BATCHES = {"gpt2": 8, "resnet-50": 32}
MORE_UNITS = {("RTX A5500", "RTX A5000")}
"""230 W limit both in fp32, so that more units run slower each; the last tiles of a kernel leave more of them idle."""


def dominates(one: Device, other: Device) -> bool:
    """Return True if no number of a board is below the other's, where both are stated."""
    rates = set(other.peak_flops) <= set(one.peak_flops) and all(
        one.peak_flops[name].value >= fact.value for name, fact in other.peak_flops.items()
    )
    power = one.power is None or other.power is None or one.power.value >= other.power.value
    return rates and power and one.memory_bandwidth.value >= other.memory_bandwidth.value


@cache
def pairs() -> list[tuple[Device, Device]]:
    """Boards of one chip, the dominant one first."""
    chips = defaultdict(list)
    for one in devices():
        chips[one.chip].append(one)
    return [pair for boards in chips.values() for pair in permutations(boards, 2) if dominates(*pair)]


@cache
def step_s(network: str, board: str, precision: str) -> float:
    return predict(network, f"1 {board}", global_batch_size=BATCHES[network], precision=precision).step_time_s


@pytest.mark.everyday("resnet-50", others="long")
@pytest.mark.parametrize("network", BATCHES)
def test_a_board_that_is_as_good_in_every_number_is_not_slower(network: str) -> None:
    assert len(pairs()) > 500
    slower = {
        (one.name, other.name)
        for one, other in pairs()
        for precision in ("fp32", "fp16", "bf16")
        if precision in other.precisions
        and step_s(network, one.name, precision) > 1.01 * step_s(network, other.name, precision)
    }
    assert slower <= MORE_UNITS


def test_more_units_lose_at_some_batches_only() -> None:
    for one, other in MORE_UNITS:
        ratios = [
            predict("resnet-50", f"1 {one}", global_batch_size=n, precision="fp32").step_time_s
            / predict("resnet-50", f"1 {other}", global_batch_size=n, precision="fp32").step_time_s
            for n in (8, 24, 32, 64, 128)
        ]
        assert min(ratios) < 1 < max(ratios) < 1.05


@pytest.mark.parametrize(
    ("board", "watts"),
    [("V100 SXM2 16GB", 300), ("V100 SXM2 32GB", 300), ("V100 PCIe 16GB", 250), ("V100 PCIe 32GB", 250), ("V100S", 250)],
)
def test_boards_of_the_v100_have_the_power_of_the_datasheet(board: str, watts: float) -> None:
    power = device(board).power
    assert power is not None and power.value == watts
