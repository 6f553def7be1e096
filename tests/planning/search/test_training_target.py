"""How much is to be trained: samples, or a target that takes more of them the larger the batch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.planning import Goal, Space, TrainingTarget, plan
from paceline.planning.search.training_target import MATRICES, parse_penalties
from paceline.prediction.learning.convergence import Convergence, Point, fit
from paceline.strategy import COMPRESSIONS, Strategy
from paceline.workload import Workload


def test_a_penalty_is_never_taken_for_none(toy: Workload, space: Space) -> None:
    """To a target a compression competes only with a penalty that somebody measured; else its break-even is told."""
    slow = replace(
        space,
        clusters=tuple(
            c.changed(network=replace(c.network, bandwidth=replace(c.network.bandwidth, value=1e7)))
            for c in space.clusters[1:3]
        ),
    )
    curve = fit([Point(b, 1e6 * (1 + b / 1000)) for b in (64, 256, 1024)], "99 %", "made up")
    unknown = plan(toy, slow, Goal("fastest"), TrainingTarget(title="to 99 %", curve=curve))
    assert unknown.best.strategy.gradient_exchange.compression.name == "dense" and "breaks even at" in unknown.compression
    assert any("unknown" in x.reason for x in unknown.excluded)
    known = plan(toy, slow, Goal("fastest"), TrainingTarget(title="to 99 %", curve=curve, penalties={"terngrad": 1.1}))
    assert known.best.strategy.gradient_exchange.compression.name == "terngrad" and known.compression.endswith(
        "to the same target."
    )
    assert known.best.samples == pytest.approx(1.1 * curve.samples(known.best.strategy.global_batch_size))


def made_up_curve() -> Convergence:
    return fit([Point(b, 1e6 * (1 + b / 1000)) for b in (64, 256, 1024)], "99 %", "made up")


def strategy(batch: int, compression: str = "dense") -> Strategy:
    return Strategy.of(world_size=8, global_batch_size=batch, compression=compression)


@given(st.sampled_from((8, 64, 512, 1024)), st.floats(0.5, 4))
def test_a_penalty_multiplies_the_curve(batch: int, factor: float) -> None:
    curve = made_up_curve()
    work = TrainingTarget(curve=curve, penalties={"terngrad": factor})
    assert work.samples(strategy(batch)) == curve.samples(batch)
    assert work.samples(strategy(batch, "terngrad")) == pytest.approx(factor * curve.samples(batch))
    assert work.known(COMPRESSIONS["terngrad"]) and work.known(COMPRESSIONS["dense"]) and not work.known(COMPRESSIONS["topk"])
    assert f"{factor:g} times as many samples" in work.notes(strategy(batch, "terngrad"))[-1]
    assert work.beyond_least(batch) == curve.beyond_least(batch) and work.spread(batch) == curve.spread_at(batch)


@given(st.floats(1, 1e12))
def test_a_number_of_samples_is_the_same_for_every_strategy(total: float) -> None:
    work = TrainingTarget(total=total)
    assert work.samples(strategy(8)) == work.samples(strategy(4096, "topk")) == total
    assert work.known(COMPRESSIONS["topk"]) and work.largest_batch == math.inf and work.spread(64) == 0.0
    assert work.beyond_least(64) is None and work.recipe(strategy(64)) is None and work.optimizer((64,)) == ""
    assert work.notes(strategy(64)) == ()
    assert work.notes(strategy(64, "topk")) == ("The time is for equal samples, not for equal accuracy.",)


def test_beyond_what_was_seen_nothing_is_told() -> None:
    work = TrainingTarget(curve=made_up_curve())
    assert work.samples(strategy(1024)) > 0 and 1024 < work.largest_batch < 1032
    with pytest.raises(UserError, match="beyond what was seen to reach 99 %"):
        work.samples(strategy(1032))


def test_penalties_are_read_as_they_are_typed() -> None:
    assert parse_penalties([]) == {}
    assert parse_penalties(["terngrad=1.05", "topk=2", "topk=3"]) == {"terngrad": 1.05, "topk": 3.0}


@pytest.mark.parametrize("text", ["terngrad", "terngrad=", "terngrad=x", "terngrad=0", "terngrad=-1", "terngrad=inf", "zip=1"])
def test_a_penalty_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="unknown compression" if text == "zip=1" else "not a factor on the samples"):
        parse_penalties([text])


def test_muon_has_no_critical_batch_of_its_own() -> None:
    """The plan says so instead of lending it that of other optimizers."""
    work, muon = TrainingTarget(curve=made_up_curve()), Strategy.of(world_size=8, global_batch_size=64, optimizer="muon")
    assert (
        MATRICES in work.notes(muon)
        and MATRICES not in work.notes(strategy(64))
        and MATRICES not in TrainingTarget().notes(muon)
    )
