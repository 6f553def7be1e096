"""The sentence: what fits first, then the limits, then what is worth it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.hardware import Cluster
from paceline.planning import Asked, ask
from paceline.planning.advice import advice, in_words
from paceline.planning.training_target import TrainingTarget
from paceline.strategy import Strategy
from paceline.workload import Workload


@pytest.fixture(scope="module")
def asked() -> Asked:
    """Nothing is better: all upgrades are out of sight but the nodes."""
    whole = ask(Workload.named("bert-large"), Cluster.named("2x8 A100, 800Gb/s RoCE"), TrainingTarget(total=1e6))
    nodes = next(upgrade for upgrade in whole.upgrades if upgrade.change == "nodes=4")
    return replace(whole, upgrades=(nodes,))


def test_a_run_that_keeps_everything_is_run(asked: Asked) -> None:
    assert advice(asked).startswith("Run it with ")
    assert "4 x 8 A100" in advice(asked)


@pytest.mark.parametrize(("speedup", "words"), [(1.95, "more devices pay:"), (1.4, "less and less"), (1.05, "do not pay")])
def test_whether_more_devices_pay(asked: Asked, speedup: float, words: str) -> None:
    assert words in advice(replace(asked, upgrades=(replace(asked.upgrades[0], speedup=speedup),)))


def test_a_date_that_is_missed_names_what_keeps_it(asked: Asked) -> None:
    late = replace(asked, by_s=asked.choice.time_s * 0.8, in_time=0.1)
    quick = replace(asked.upgrades[0], choice=replace(asked.choice, time_s=asked.choice.time_s * 0.6), usd=7.0)
    text = advice(replace(late, upgrades=(quick,)))
    assert "misses the date" in text and "4 x 8 A100" in text and "$7.00" in text
    slow = replace(asked.upgrades[0], choice=replace(asked.choice, time_s=asked.choice.time_s * 0.9))
    assert "1.2 times as fast" in advice(replace(late, upgrades=(slow,)))


def test_what_keeps_the_date_must_keep_the_budget_too(asked: Asked) -> None:
    late = replace(asked, by_s=asked.choice.time_s * 0.8, in_time=0.1, budget_usd=5.0, in_budget=0.95)
    quick = replace(asked.upgrades[0], choice=replace(asked.choice, time_s=asked.choice.time_s * 0.6), usd=7.0)
    assert "keeps it, in" not in advice(replace(late, upgrades=(quick,)))


def test_a_limit_that_is_not_safe_is_called_so(asked: Asked) -> None:
    assert "likely but not safe (70%)" in advice(replace(asked, by_s=1e9, in_time=0.7))


def test_cheaper_and_faster_beyond_its_range_is_named_first(asked: Asked) -> None:
    better = replace(asked.upgrades[0], change="device=B200", speedup=3.0, speedup_low=1.5, usd=asked.choice.usd / 2)
    text = advice(replace(asked, upgrades=(better,)))
    assert "3.0 times as fast for 50% less money" in text
    within = replace(better, speedup_low=0.9)
    assert "less money" not in advice(replace(asked, upgrades=(within,)))


def test_waits_for_the_network_are_named(asked: Asked) -> None:
    p = asked.choice.prediction
    waiting = replace(
        asked.choice, prediction=replace(p, exposed={"compute": 0.5 * p.step_time_s, "network": 0.5 * p.step_time_s})
    )
    assert "waits 50% of the time for the network" in advice(replace(asked, choice=waiting))


def test_strategies_in_pytorchs_words() -> None:
    sharded = Strategy.of(world_size=8, global_batch_size=64, sharding="zero3", recompute="full", grad_accum_steps=2)
    words = in_words(sharded, sharded.parallelism.data)
    assert (
        words == "FSDP with full sharding (ZeRO-3), activation checkpointing, 2 micro steps, 4 samples a device and micro step"
    )
    assert in_words(Strategy.of(world_size=1, global_batch_size=1), 1) == "one device, 1 sample a device"
