"""One answer: the best plain strategy, its limits, and what more brings."""

from __future__ import annotations

import math
import sys

import pytest

import paceline
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.prices import every_listing, listings
from paceline.planning import Asked, Space, ask
from paceline.planning.ask.answer import cluster_text
from paceline.planning.ask.ask import chance
from paceline.planning.ask.training_question import PLAIN, TrainingQuestion
from paceline.planning.search.training_target import TrainingTarget
from paceline.reporting.text.ask_text import asked_screen
from paceline.workload import Workload
from paceline.workload.builders.transformer import llama

BERT = Workload.named("bert-large")
LLAMA = Workload.named("llama-3-8b")
TARGET = TrainingTarget(total=1e6)


@pytest.fixture(scope="module")
def two_nodes() -> Asked:
    return ask(BERT, Cluster.named("2x8 A100, 100Gb/s"), TARGET, by_s=3600.0, budget_usd=100.0)


def test_the_choice_is_the_fastest_plain_plan(two_nodes: Asked) -> None:
    cluster = Cluster.named("2x8 A100, 100Gb/s")
    best = paceline.plan(BERT, Space(clusters=(cluster,), **PLAIN), "fastest", TARGET).best
    assert two_nodes.choice.strategy == best.strategy
    assert two_nodes.choice.time_s == best.time_s
    assert two_nodes.fits and not two_nodes.divided


def test_anybody_can_run_it_in_plain_pytorch(two_nodes: Asked) -> None:
    for choice in (two_nodes.choice, *(upgrade.choice for upgrade in two_nodes.upgrades)):
        mesh = choice.strategy.parallelism
        assert mesh.model_devices == 1
        assert choice.strategy.gradient_exchange.compression.name == "dense"


def test_money_is_time_times_devices_times_the_price(two_nodes: Asked) -> None:
    listed = paceline.hardware.prices.price("A100 SXM 80GB", node_sizes=(8, 8))
    assert listed is not None
    assert two_nodes.choice.usd == pytest.approx(listed.usd_per_hour([8, 8]) * two_nodes.choice.time_s / 3600)


def test_more_nodes_and_a_faster_network_of_the_same_transport(two_nodes: Asked) -> None:
    nodes, network, *devices = two_nodes.upgrades
    assert nodes.choice.cluster == Cluster.named("4x8 A100, 100Gb/s")
    assert network.choice.cluster.network.bandwidth.value == 200e9 / 8
    assert network.choice.cluster.network.kind == two_nodes.choice.cluster.network.kind
    assert devices and all(upgrade.choice.cluster.world_size == 16 for upgrade in devices)
    for upgrade in two_nodes.upgrades:
        assert upgrade.speedup_low <= upgrade.speedup <= upgrade.speedup_high
        rates = upgrade.choice.prediction.samples_per_s, two_nodes.choice.prediction.samples_per_s
        assert upgrade.speedup == pytest.approx(rates[0] / rates[1])


def test_a_faster_network_has_no_price(two_nodes: Asked) -> None:
    assert math.isnan(next(u for u in two_nodes.upgrades if u.change.startswith("network")).usd)


def test_the_chance_of_a_limit_is_a_half_at_the_median_and_90_percent_at_the_upper_end(two_nodes: Asked) -> None:
    choice = two_nodes.choice
    times = choice.time_s, choice.time_low_s, choice.time_high_s
    assert chance(choice.time_s, *times) == pytest.approx(0.5)
    assert chance(choice.time_high_s, *times) == pytest.approx(0.9, abs=0.001)
    assert chance(None, *times) is None
    assert chance(5.0, math.nan, math.nan, math.nan) is None


@pytest.mark.long
def test_what_does_not_fit_is_answered_with_the_next_that_does() -> None:
    asked = ask(Workload.named("llama-3-8b"), Cluster.named("2 RTX 4090"), TARGET)
    assert not asked.fits
    assert asked.choice.prediction.fits
    assert asked.choice.cluster.world_size >= 2
    assert "does not fit on 2 RTX 4090" in asked.advice


def test_a_divided_network_where_one_sample_is_too_long_for_a_device() -> None:
    shape = llama(layers=4, hidden=2048, heads=16, kv_heads=16, ffn=8192, vocabulary=32000)
    asked = ask(Workload.from_shape(shape, 131072), Cluster.named("2 RTX 4090"), TARGET)
    assert asked.fits and asked.divided
    assert asked.choice.prediction.fits and asked.choice.strategy.parallelism.context == 2
    assert "context parallel 2" in asked.advice


@pytest.fixture(scope="module")
def rented() -> Asked:
    return ask(BERT, None, TARGET)


@pytest.mark.long
def test_without_a_cluster_the_cheapest_that_is_let(rented: Asked) -> None:
    assert rented.named is None and rented.fits and not math.isnan(rented.choice.usd)
    assert all(upgrade.usd > rented.choice.usd for upgrade in rented.upgrades if upgrade.change.startswith("nodes"))


@pytest.mark.long
def test_a_date_is_kept_for_more_money_where_something_keeps_it(rented: Asked) -> None:
    fast = ask(BERT, None, TARGET, by_s=rented.choice.time_s / 2)
    assert fast.choice.time_s <= rented.choice.time_s / 2
    assert fast.choice.usd >= rented.choice.usd


@pytest.mark.long
def test_the_cheapest_counts_every_listing(rented: Asked) -> None:
    """A device that only a cloud without a named instance lets can win; its network is unknown, so one node is taken."""
    assert rented.provider and rented.provider in rented.price
    assert rented.choice.cluster.num_nodes == 1 or "EFA" in rented.choice.cluster.network.name
    listed = [x for x in every_listing() if x.device == rented.choice.cluster.device.name]
    least = min(x.usd_per_hour([rented.choice.cluster.devices_per_node]) for x in listed)
    assert rented.choice.usd == pytest.approx(least * rented.choice.time_s / 3600)


@pytest.mark.long
def test_a_date_that_few_nodes_miss_takes_more_of_them() -> None:
    asked = ask(LLAMA, None, TrainingTarget(total=6e6), by_s=6 * 3600)
    assert asked.choice.time_s < 6 * 3600 and asked.choice.cluster.num_nodes > 8


@pytest.mark.long
def test_a_very_large_network_is_answered_with_what_holds_it() -> None:
    asked = ask(Workload.named("llama-3-405b"), Cluster.named("RTX 4090"), TARGET)
    assert not asked.fits and asked.choice.prediction.fits
    assert "take 8 x 8 " in asked.advice or "take at least" in asked.advice


@pytest.mark.long
def test_a_network_that_nothing_holds_is_refused_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["paceline.planning.ask.ask"], "larger", lambda *_: None)
    monkeypatch.setattr(TrainingQuestion, "divided", lambda *_, **__: None)
    monkeypatch.setattr(sys.modules["paceline.planning.ask.ask"], "promising", lambda *_: [])
    monkeypatch.setattr(sys.modules["paceline.planning.ask.ask"], "large", lambda *_: None)
    with pytest.raises(UserError, match="does not fit on 1 RTX 4090"):
        ask(Workload.named("llama-3-405b"), Cluster.named("RTX 4090"), TARGET)


def test_both_transports_where_none_is_said(two_nodes: Asked) -> None:
    steps = two_nodes.by_transport
    assert steps["TCP"].step_time_s == pytest.approx(two_nodes.choice.prediction.step_time_s)
    assert steps["RDMA"].step_time_s < steps["TCP"].step_time_s
    assert not ask(BERT, Cluster.named("8 A100"), TARGET).by_transport


def test_the_verb_takes_names(two_nodes: Asked) -> None:
    asked = paceline.ask("bert-large", "2x8 A100", TARGET, network="100Gb/s", by="1h", budget=100.0)
    assert asked.to_json() == two_nodes.to_json()


@pytest.mark.long
def test_a_price_is_of_the_device_that_is_named() -> None:
    """An upgrade to another device keeps its listing."""
    cheap, listed = (ask(Workload.named("resnet-50"), Cluster.named("4 A100"), prices=prices) for prices in ({"": 0.1}, None))
    assert cheap.choice.usd < listed.choice.usd
    others = [[u.usd for u in answer.upgrades if "instead" in u.title] for answer in (cheap, listed)]
    assert others[0] and others[0] == others[1]


@pytest.mark.long
def test_a_whole_machine_is_billed_and_the_cheapest_that_holds_it_is_named() -> None:
    asked = ask(LLAMA, Cluster.named("T4"), TrainingTarget(total=1e5))
    size = asked.choice.cluster.world_size
    assert not asked.fits and asked.billed == size > 1
    assert f"take {cluster_text(asked.choice.cluster)} at " in asked.advice
    assert asked.choice.usd == pytest.approx(ask(LLAMA, None, TrainingTarget(total=1e5)).choice.usd)
    whole = {"A100 SXM 80GB": next(x for x in listings("A100") if x.provider == "AWS p4de.24xlarge")}
    single = ask(BERT, Cluster.named("A100"), TARGET, prices=whole)
    assert single.billed == 8
    assert "8 devices are billed, 1 used" in " ".join(asked_screen(single).text().split())


@pytest.mark.long
def test_a_plan_that_divides_nothing_without_need_is_the_answer_of_ask() -> None:
    cluster = Cluster.named("2x8 H100, InfiniBand NDR")
    asked = ask(LLAMA, cluster, TARGET)
    best = paceline.plan(LLAMA, Space(clusters=(cluster,)), "fastest", TARGET).best
    assert best.strategy.parallelism.model_devices == 1
    assert best.time_s == pytest.approx(asked.choice.time_s, rel=0.01)


def test_stated_choices_are_kept_and_said() -> None:
    asked = paceline.ask("bert-large", "4 A100", TARGET, precision="fp16", global_batch_size=64, micro_batch_size=4)
    strategy = asked.choice.strategy
    assert (strategy.precision, strategy.global_batch_size, strategy.micro_batch_size) == ("fp16", 64, 4)
    assert asked.said == ("precision fp16", "global batch 64", "micro batch size 4")
    with pytest.raises(UserError, match="does not divide"):
        paceline.ask("bert-large", "4 A100", TARGET, global_batch_size=63)


def test_what_does_not_fit_as_stated_fits_otherwise() -> None:
    asked = paceline.ask(LLAMA, "8 H100", TARGET, recompute="none", global_batch_size=16, grad_accum_steps=1)
    assert not asked.fits and asked.otherwise is not None and asked.otherwise.prediction.fits
    assert asked.otherwise.strategy.parallelism.recompute
    assert asked.dropped == ("recompute none",) and "leave recompute none out and run it with FSDP" in asked.advice


@pytest.mark.long
def test_a_mixture_over_nodes_is_divided_and_its_plain_strategy_said() -> None:
    mixture = ask(Workload.named("mixtral-8x7b"), Cluster.named("2x8 H100, 1x InfiniBand NDR"), TARGET)
    assert mixture.choice.strategy.parallelism.model_devices > 1 and mixture.choice.prediction.fits
    assert mixture.plain is not None and mixture.plain.speedup < 1 / 1.1
    assert "in plain PyTorch FSDP" in " ".join(asked_screen(mixture).text().split())
