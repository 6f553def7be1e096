"""Failures on a cluster: the default, its published rates, and rates that a user states."""

from __future__ import annotations

import math

import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning import Goal, Space, TrainingTarget, plan
from paceline.planning.ask.training_question import PLAIN
from paceline.planning.failures.failures import MANY, Failures, parse_mtbf, published_s, useful_shares
from paceline.workload import Workload


def test_published_rates_are_those_of_their_papers() -> None:
    hours = {name: seconds / 3600 for name, seconds in published_s().items()}
    assert hours["Llama 3 405B"] / 16384 == pytest.approx(3.09, abs=0.01)  # "one every three hours"
    assert hours["RSC-1"] / 16384 == pytest.approx(1.8, abs=0.01)  # arXiv:2410.21680: 1.8 h for 16,384 devices
    assert hours["OPT-175B"] / 992 == pytest.approx(13.7, abs=0.1)


def test_default_counts_above_many_devices_alone() -> None:
    assert Failures().on(Cluster.named(f"{MANY // 8}x8 H100, 400Gb/s")) is None
    cost = Failures().on(Cluster.named(f"{MANY // 8 + 1}x8 H100, 400Gb/s"))
    assert cost is not None
    assert 1 < cost.low < cost.factor < cost.high
    assert cost.device_s / 3600 == pytest.approx(43008)  # the median, of BLOOM


def test_effective_time_of_llama_3_is_met() -> None:
    """Section 3.3.4 of arXiv:2407.21783: more than 90 % of the time was effective, by quick restarts and checkpoints."""
    failing = Failures(between_s=published_s()["Llama 3 405B"], write_s=10.0, restart_s=10 * 60.0)
    cost = failing.on(Cluster.named("2048x8 H100, 400Gb/s"))
    assert cost is not None
    assert 0.88 < 1 / cost.factor < 0.94
    assert cost.failures(54 * 86400.0) == pytest.approx(419)


def test_a_nodes_rate_is_divided_among_its_devices() -> None:
    cluster = Cluster.named("16x8 A100, 200Gb/s")
    of_node, of_device = (
        Failures(between_s=x * 3600.0, of_node=node).on(cluster) for x, node in ((6000, True), (48000, False))
    )
    assert of_node == of_device
    assert of_node is not None and of_node.mean_s == pytest.approx(6000 * 3600 / 16)
    assert of_node.low == of_node.factor == of_node.high


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("50000h", (1.8e8, False)),
        ("node=200d", (200 * 86400.0, True)),
        ("never", (math.inf, False)),
        ("device=1d", (86400.0, False)),
    ],
)
def test_texts(text: str, parsed: tuple[float, bool]) -> None:
    assert parse_mtbf(text) == parsed


@pytest.mark.parametrize("text", ["", "often", "rack=3h", "-3h"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="time"):
        parse_mtbf(text)


def test_never_costs_nothing_and_too_often_ends_never() -> None:
    cluster = Cluster.named("128x8 A100, 200Gb/s")
    assert Failures(between_s=math.inf).on(cluster) is None
    with pytest.raises(UserError, match="reach no checkpoint"):
        Failures(between_s=600.0, interval_s=3600.0).on(cluster)
    with pytest.raises(UserError):
        Failures(between_s=0.0)


def test_a_plans_time_cost_and_range_have_the_failures_in_them(toy: Workload) -> None:
    space = Space(clusters=(Cluster.named("2x8 H100, 400Gb/s"),), batches=(256,), **PLAIN)
    failing = Failures(between_s=16 * 3600.0, interval_s=600.0)
    without, with_failures = (
        plan(toy, space, Goal("cheapest"), TrainingTarget(total=1e9, failures=rate), prices={"H100 SXM": 2.0}).best
        for rate in (Failures(), failing)
    )
    cost = failing.on(space.clusters[0])
    assert without.failures is None and "failures" not in without.to_json()
    assert cost is not None and with_failures.failures == cost
    for name in ("time_s", "time_low_s", "time_high_s", "usd", "usd_high"):
        assert getattr(with_failures, name) == pytest.approx(getattr(without, name) * cost.factor), name
    assert with_failures.to_json()["failures"]["mean_s"] == 3600.0
    assert "one each 60 min" in cost.sentence(with_failures.time_s)


def test_days_of_published_runs_that_the_rate_does_not_explain_are_stated() -> None:
    steps = 400e9 / (4224 * 2048)  # GLM-130B: tokens over those of a step, 88.5 s each, in 60 days
    assert useful_shares()["GLM-130B"] == pytest.approx(steps * 88.5 / (60 * 86400), abs=0.01)
    usual, own = (Failures(between_s=each).on(Cluster.named("96x8 A100", network="400Gb/s")) for each in (None, 1.5e8))
    assert usual is not None and own is not None and usual.factor < 1.1
    assert "GLM-130B 79%" in usual.sentence(1e6) and "GLM-130B" not in own.sentence(1e6)
