"""What more or other devices bring, and what holds a network that does not fit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline.hardware import Cluster
from paceline.hardware.prices import listings, price
from paceline.planning.ask.training_question import TrainingQuestion
from paceline.planning.ask.upgrades import FASTER, larger, upgrades
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction import ORDINARY
from paceline.workload import Workload

BERT = TrainingQuestion(Workload.named("bert-large"), TrainingTarget(total=1e6), None, ORDINARY)
AWS = next(x for x in listings("H100") if x.provider == "AWS p5.48xlarge")
AT_AWS = replace(BERT, prices={"H100 SXM": AWS})
LLAMA = TrainingQuestion(Workload.named("llama-3-8b"), TrainingTarget(total=1e6), None, ORDINARY)


def test_another_providers_price_is_named_with_what_the_answer_costs_there() -> None:
    best = AT_AWS.plain([Cluster.named("8 H100")])
    assert best is not None
    named = [x for x in upgrades(AT_AWS, best.best) if x.change.startswith("device=")]
    assert len(named) <= 2 and min(x.speedup for x in named) >= FASTER
    sold = {x.seller: x for x in reversed(listings("H100"))}
    other = next(x for x in named if x.seller in sold)
    assert other.title.startswith(f"{other.change.removeprefix('device=')} instead, {other.seller}")
    now, there = price("H100", AT_AWS.prices), sold[other.seller]
    assert now is not None and now.seller == "AWS"
    assert other.usd_there == pytest.approx(best.best.usd * there.usd_per_hour([8]) / now.usd_per_hour([8]))


def test_fewer_devices_are_named_where_they_are_clearly_faster() -> None:
    question = TrainingQuestion(Workload.named("gpt2"), TrainingTarget(total=1e6), None, ORDINARY, {"global_batch_size": 32})
    for on, change in (("2x1 A100, 1Gb/s", "part=1x1"), ("2x4 A100, 800Gb/s InfiniBand", "")):
        whole, alone = question.plain([Cluster.named(on)]), question.plain([Cluster.named("1 A100")])
        assert whole is not None and alone is not None
        found = [x for x in upgrades(question, whole.best) if x.change.startswith("part=")]
        assert [x.change for x in found] == [change][: len(change)]
        for x in found:  # as plan has it, at the price of the whole
            assert x.choice.time_s == alone.best.time_s and x.usd == pytest.approx(whole.best.usd / x.speedup / 2)


def test_what_is_listed_nowhere_else_has_no_price_there() -> None:
    best = BERT.plain([Cluster.named("8 L4")])
    assert best is not None
    sold = {x.seller for x in listings("L4")}
    others = [x for x in upgrades(BERT, best.best) if x.change.startswith("device=") and x.seller and x.seller not in sold]
    assert others and all(math.isnan(x.usd_there) for x in others)


def test_one_node_grows_inside_and_no_network_is_invented() -> None:
    best = larger(LLAMA, Cluster.named("1 RTX PRO 6000"))
    assert best is not None and best.best.cluster.num_nodes == 1 and best.best.cluster.device.name.startswith("RTX PRO 6000")
    grown = upgrades(LLAMA, best.best)
    assert [x.change for x in grown if not x.change.startswith("device=")] in ([], ["devices-per-node=4"])
    assert larger(LLAMA, Cluster.named("2 RTX 4090")) is None  # eight hold too little


def test_the_same_cluster_where_it_is_let_for_less() -> None:
    """The saving of other devices at another provider is not theirs alone."""
    best = AT_AWS.plain([Cluster.named("8 H100")])
    assert best is not None
    same = upgrades(AT_AWS, best.best)[0]
    least = min(x.usd_per_hour([8]) for x in listings("H100") if not x.market)
    assert (same.change, same.title, same.speedup) == ("", "the same, Hyperstack", 1.0)
    assert same.usd == pytest.approx(least * best.best.time_s / 3600) and same.usd < best.best.usd / 2
    own = replace(BERT, prices={"H100 SXM": 6.88})
    priced = own.plain([Cluster.named("8 H100")])
    assert priced is not None and all(x.change for x in upgrades(own, priced.best))


def test_nodes_are_not_joined_of_devices_that_are_let_one_by_one() -> None:
    best = AT_AWS.plain([Cluster.named("2x8 H100, 400Gb/s")])
    assert best is not None and upgrades(AT_AWS, best.best)[0].seller == "Nebius"
