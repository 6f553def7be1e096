"""What more or other devices bring, and what holds a network that does not fit."""

from __future__ import annotations

import math

import pytest

from paceline.hardware import Cluster
from paceline.hardware.prices import listings, price
from paceline.planning.question import Question
from paceline.planning.training_target import TrainingTarget
from paceline.planning.upgrades import larger, upgrades
from paceline.prediction import ORDINARY
from paceline.workload import Workload

BERT = Question(Workload.named("bert-large"), TrainingTarget(total=1e6), None, ORDINARY)
LLAMA = Question(Workload.named("llama-3-8b"), TrainingTarget(total=1e6), None, ORDINARY)


def test_another_providers_price_is_named_with_what_the_answer_costs_there() -> None:
    best = BERT.plain([Cluster.named("8 H100")])
    assert best is not None
    other = next(x for x in upgrades(BERT, best.best) if x.change == "device=B200")
    assert (other.seller, other.title) == ("Nebius", "B200 instead, Nebius")
    now = price("H100")
    there = next(x for x in listings("H100") if x.seller == "Nebius")
    assert now is not None and now.seller == "AWS"
    assert other.usd_there == pytest.approx(best.best.usd * there.usd_per_hour([8]) / now.usd_per_hour([8]))


def test_what_is_listed_nowhere_else_has_no_price_there() -> None:
    best = BERT.plain([Cluster.named("8 L4")])
    assert best is not None
    (other,) = [x for x in upgrades(BERT, best.best) if x.change == "device=B200"]
    assert other.seller == "Nebius" and math.isnan(other.usd_there)


def test_one_node_grows_inside_and_no_network_is_invented() -> None:
    best = larger(LLAMA, Cluster.named("2 RTX 4090"))
    assert best is not None and best.best.cluster.num_nodes == 1
    grown = upgrades(LLAMA, best.best)
    assert [x.change for x in grown if not x.change.startswith("device=")] in ([], ["devices-per-node=4"])
