"""``scheduling.policies.sia``: goodput over device types."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster_states import ELASTIC, Known, state
from paceline.scheduling.fleet import NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.policies.sia import configurations, node_sizes, sia

TWO = "2x4xT4 + 1x8xA100"


def linear(*speeds: float) -> Known:
    return Known(lambda kind, devices: speeds[kind] * devices)


def test_sizes_are_powers_of_two_within_a_node_then_whole_nodes() -> None:
    assert node_sizes(NodeGroup.of("T4", 3, 4)).tolist() == [1, 2, 4, 8, 12]
    assert node_sizes(NodeGroup.of("T4", 2, 6)).tolist() == [1, 2, 4, 6, 12]


def test_a_job_alone_gets_the_fastest_devices() -> None:
    decision = sia(state(TWO, [linear(1, 3)]))
    assert (decision.devices.tolist(), decision.type_index.tolist(), decision.repack) == ([8], [1], True)


def test_types_go_to_those_who_gain_the_most_by_them() -> None:
    """Both are faster on the A100, the second by more."""
    decision = sia(state(TWO, [linear(1, 1.2), linear(1, 8)]))
    assert decision.type_index.tolist() == [0, 1]
    assert decision.devices.tolist() == [8, 8]


def test_jobs_that_wait_cost_little() -> None:
    """Two of six jobs on two devices each: 2 (1.1 - sqrt(1/2)) saved is more than 4 (1.1 - 1)."""
    assert sorted(sia(state("1x4xT4", [linear(1.0)] * 6)).devices.tolist()) == [0, 0, 0, 0, 2, 2]


def test_the_sum_is_that_of_the_paper() -> None:
    """Two jobs on four devices: 2 + 2 of sqrt(1/2) each is less than 4 + 0 of sqrt(1/4) and the price of waiting."""
    assert sia(state("1x4xT4", [linear(1.0)] * 2)).devices.tolist() == [2, 2]


def test_one_that_scales_badly_gives_way() -> None:
    flat = Known(lambda kind, devices: devices**0.05)
    decision = sia(state("1x4xT4 + 1x4xA100", [flat, linear(1.0, 1.0), linear(1.0, 1.0)]))
    assert decision.devices[0] < decision.devices[1:].min()


def test_what_was_never_tried_is_not_given() -> None:
    assert sia(state("4x4xT4", [Known(lambda kind, devices: devices, most=2)])).devices.tolist() == [2]


@pytest.mark.parametrize(("restarts", "devices"), [(0, 8), (20, 4)])
def test_a_job_that_restarted_often_keeps_its_size(restarts: int, devices: int) -> None:
    held = state(
        "2x4xT4",
        [Known(lambda kind, count: count**0.5)],
        devices=np.array([4]),
        type_index=np.array([0]),
        restarts=np.array([restarts]),
        restart_s=np.array([100.0]),
    )
    assert sia(held).devices.tolist() == [devices]


def test_a_job_that_is_starting_is_left_alone() -> None:
    held = state("2x4xT4", [linear(1.0)], devices=np.array([1]), type_index=np.array([0]), restarting_s=np.array([20.0]))
    assert sia(held).devices.tolist() == [1]
    assert configurations(held).fixed.tolist() == [True]


def test_a_rigid_job_gets_what_it_asks_for_or_waits() -> None:
    rigid = Job(name="rigid", devices=3, duration_s=10.0)
    jobs = [rigid, replace(ELASTIC, name="elastic")]
    decision = sia(state("1x4xT4", [linear(1.0), linear(1.0)], jobs))
    assert decision.devices.tolist() == [3, 1]
    assert sia(state("1x2xT4", [linear(1.0)], [rigid])).devices.tolist() == [0]


def test_types_that_an_owner_refuses_are_not_used() -> None:
    decision = sia(state(TWO, [linear(1, 3)], replace(ELASTIC, device_types=("T4",))))
    assert (decision.devices.tolist(), decision.type_index.tolist()) == ([8], [0])


def test_without_time_jobs_keep_what_they_hold_and_the_decision_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.scheduling.policies.sia.least_sum", lambda *_: None)
    held = state("1x4xT4", [linear(1.0), linear(1.0)], devices=np.array([3, 0]), type_index=np.array([0, -1]))
    decision = sia(held, time_limit_s=2.0)
    assert decision.devices.tolist() == [3, 0]
    assert decision.note == "no allocation in 2 s: jobs keep what they hold"


def test_no_job_fits_is_no_choice() -> None:
    assert sia(state("1x4xT4", [Known(lambda kind, devices: devices * 0.0)])).devices.tolist() == [0]
