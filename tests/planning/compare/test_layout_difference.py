"""Layouts with similar waits are told apart by smaller differences; no pair by less than the floor."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.planning.compare.layout_difference import (
    LIKELY,
    WAITS,
    LayoutSigmas,
    layout_sigmas,
    least_resolved_ratio,
    resolved_ratio,
    wait_shares,
)
from paceline.prediction import predict
from paceline.strategy import Strategy
from paceline.workload import Workload
from prediction_toys import make_cluster

SHARES = st.fixed_dictionaries({kind: st.floats(0, 1) for kind in WAITS})


@given(one=SHARES, other=SHARES)
def test_the_error_of_a_ratio_is_of_both_alike_and_at_least_that_of_every_pair(
    one: dict[str, float], other: dict[str, float]
) -> None:
    sigmas = LayoutSigmas(0.1, 2.0, 0.5, 0.3)
    assert sigmas.of(one, other) == sigmas.of(other, one) >= sigmas.of(one, one) == 0.1
    far = {**other, "launch": one["launch"] + 0.25}
    assert sigmas.of(one, far) >= math.hypot(0.1, 0.5) - 1e-12


def test_a_sign_is_right_with_80_percent() -> None:
    assert (1 + math.erf(LIKELY / math.sqrt(2))) / 2 == pytest.approx(0.8, abs=1e-4)
    sigmas = layout_sigmas()
    assert 0.05 < sigmas.base < 0.3 and sigmas.source
    assert least_resolved_ratio() == math.exp(LIKELY * sigmas.base)


def test_steps_that_wait_for_the_same_are_told_apart_best(toy: Workload) -> None:
    cluster, plain = make_cluster(2, 2), Strategy.of(world_size=4, global_batch_size=64)
    p = predict(toy, cluster, plain)
    assert resolved_ratio(p, p) == pytest.approx(least_resolved_ratio())
    shares = wait_shares(p.exposed, p.step_time_s)
    assert shares.keys() == WAITS.keys() and min(shares.values()) >= 0 and sum(shares.values()) <= 1
    slow = replace(p, exposed={**p.exposed, "network": p.exposed.get("network", 0.0) + p.step_time_s / 2})
    assert resolved_ratio(p, slow) > least_resolved_ratio()
