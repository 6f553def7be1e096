"""Predicted local steps: the mean over a round, by a round that is added up step by step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.hardware import cluster
from paceline.prediction import Predictor
from paceline.prediction.exchange.local_steps import beside_share, local_bytes, outer_seconds
from paceline.prediction.step.step_model import WholeStep
from paceline.strategy import Strategy
from paceline.workload import Workload

NETWORK = Workload.named("resnet-50")
WHERE = cluster("A100", 1, 4, "100Mb/s")


def strategy(**choices: Any) -> Strategy:
    return Strategy.of(**{"world_size": 4, "global_batch_size": 64, "optimizer": "momentum", **choices})


def step(**choices: Any) -> WholeStep:
    return Predictor().model(NETWORK).step(WHERE, strategy(**choices))


def test_a_step_is_compute_and_a_share_of_the_exchange() -> None:
    alone = float(step(sync_every=4).pieces.forward + step(sync_every=4).pieces.backward)
    for every in (2, 8, 500):
        now = step(sync_every=every)
        whole = sum(now.costs.exchange.buckets.tolist()) * every
        assert whole == pytest.approx(sum(step(sync_every=4).costs.exchange.buckets.tolist()) * 4)
        assert now.seconds == pytest.approx(alone + sum(now.costs.optimizer) + whole / every)
        assert sum(now.exposed.values()) == pytest.approx(now.seconds)
        assert now.waited_s == pytest.approx(whole / every)


def by_hand(now: WholeStep, every: int, delay: int) -> float:
    """Seconds of a round, step after step: each exchange may run beside ``delay`` steps, then the next step waits for it."""
    work = float(now.pieces.forward + now.pieces.backward + now.pieces.update)
    left = [max(0.0, seconds * every - delay * work) for seconds in now.costs.exchange.buckets.tolist()]
    hidden = sum(min(seconds * every, delay * work) for seconds in now.costs.exchange.buckets.tolist())
    return every * work + sum(left) + now.costs.overlap_penalty * hidden


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 64), st.integers(1, 6), st.floats(0, 1), st.sampled_from(["dense", "int8", "terngrad"]))
def test_a_delayed_exchange_costs_what_it_takes_beyond_its_steps(
    every: int, parts: int, share: float, compression: str
) -> None:
    fragments = min(parts, every)
    delay = int(share * (every // fragments))
    now = step(sync_every=every, fragments=fragments, sync_delay=delay, compression=compression)
    assert now.seconds * every == pytest.approx(by_hand(now, every, delay), rel=1e-6)
    assert sum(now.exposed.values()) == pytest.approx(now.seconds)
    assert all(event.start_s >= 0 and event.duration_s >= 0 for event in now.events())


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 4), st.booleans()), min_size=1, max_size=4))
def test_many_at_once_are_those_of_one_at_a_time(cases: list[tuple[int, int, bool]]) -> None:
    strategies = [
        strategy(sync_every=every, fragments=min(f, every), sync_delay=every // min(f, every) if late else 0)
        if every > 1
        else strategy()
        for every, f, late in cases
    ]
    many = Predictor().many(NETWORK, [(WHERE, s) for s in strategies])
    for index, s in enumerate(strategies):
        one = Predictor().step(NETWORK, WHERE, s)
        assert many.step_s[index] == pytest.approx(one.step_time_s, rel=1e-9)
        assert many.memory_bytes[index] == pytest.approx(one.memory_bytes, rel=1e-12)


def test_an_exchange_that_fits_beside_its_steps_costs_nothing_but_the_loss_of_running_at_once() -> None:
    now = step(sync_every=512, sync_delay=512)
    assert now.waited_s == pytest.approx(now.costs.overlap_penalty * sum(now.costs.exchange.buckets.tolist()))
    without = Predictor(overlap=False).model(NETWORK).step(WHERE, strategy(sync_every=512, sync_delay=512))
    assert without.seconds == pytest.approx(step(sync_every=512).seconds)
    assert beside_share(strategy(sync_every=8, sync_delay=2), overlap=True) == 0.25
    assert beside_share(strategy(sync_every=8, sync_delay=2), overlap=False) == 0.0


def test_memory_holds_the_anchor_the_outer_momentum_and_one_pseudo_gradient() -> None:
    whole = 4.0 * NETWORK.num_parameters
    sizes = step(sync_every=8, compression="topk").memory()
    assert sizes["anchor"] == sizes["outer momentum"] == sizes["pseudo-gradient"] == sizes["error feedback"] == whole
    assert sizes["buckets"] == 0.0  # DDP's
    halves = step(sync_every=8, fragments=2, outer_momentum=0).memory()
    assert halves["outer momentum"] == 0.0 and whole / 2 <= halves["pseudo-gradient"] < 0.7 * whole
    assert local_bytes(NETWORK, strategy(), step().plan) == {} and "anchor" not in step().memory()


def test_the_outer_step_is_spread_over_its_steps() -> None:
    seconds = [
        sum(outer_seconds(NETWORK, strategy(sync_every=every), WHERE.device, Predictor().typical)) for every in (1, 2, 200)
    ]
    assert seconds[0] == 0.0 and seconds[1] == pytest.approx(100 * seconds[2]) and seconds[1] > 0


def test_more_local_steps_never_make_a_step_slower() -> None:
    seconds = [step(sync_every=every, compression="int8").seconds for every in (2, 3, 8, 32, 512)]
    assert seconds == sorted(seconds, reverse=True)
