"""The sentence: what fits first, then the limits, then what is worth it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import product

import pytest

from paceline.hardware import Cluster
from paceline.planning import Asked, ask
from paceline.planning.ask.advice import advice, in_words
from paceline.planning.ask.answer import cluster_text
from paceline.planning.search.goal import money
from paceline.planning.search.nearest_fit import BITS, SHORTER, Fitting
from paceline.planning.search.training_target import TrainingTarget
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
    assert "less money" not in advice(replace(asked, upgrades=(replace(better, usd=asked.choice.usd * 0.999),)))
    within = replace(better, speedup_low=0.9)
    assert "less money" not in advice(replace(asked, upgrades=(within,)))


def test_waits_for_the_network_are_named(asked: Asked) -> None:
    p = asked.choice.prediction
    waiting = replace(
        asked.choice, prediction=replace(p, exposed={"compute": 0.5 * p.step_time_s, "network": 0.5 * p.step_time_s})
    )
    assert "waits 50% of the time for the network" in advice(replace(asked, choice=waiting))


@pytest.mark.parametrize(("share", "said"), [(0.05, "it waits little for links"), (0.24, "it waits 24% of the time for the ")])
def test_without_a_larger_cluster_the_waits_are_said(asked: Asked, share: float, said: str) -> None:
    p = asked.choice.prediction
    exposed = {"compute": (1 - share) * p.step_time_s, "intra-node link": share * p.step_time_s}
    waiting = replace(asked.choice, prediction=replace(p, exposed=exposed))
    assert said in advice(replace(asked, choice=waiting, upgrades=()))


CLUSTERS = ("1 A100", "8 H200", "2x8 A100, 100Gb/s", "4 RTX 4090", "2x4 T4, 25Gb/s RoCE")
SINGULAR = re.compile(r"^(1 |a |the |it )")


def test_verbs_agree_with_their_nouns(asked: Asked) -> None:
    """Every cluster as the answer and as the upgrade, every kind of change, limits kept, near and missed."""
    changes = ("nodes=4", "devices-per-node=2", "network=200Gb/s", "device=B200")
    texts = set()
    for here, there, change in product(map(Cluster.named, CLUSTERS), map(Cluster.named, CLUSTERS), changes):
        if change.startswith(("nodes", "devices-per-node")) and there.world_size == 1:
            continue  # more of it is several
        choice = replace(asked.choice, cluster=here)
        at = replace(asked, choice=choice, named=here)
        title = "network Ethernet 200 Gb/s" if change.startswith("network") else cluster_text(there)
        for seller, time_s, usd in product(("", "Nebius"), (0.5, 2.0), (0.5, 2.0)):
            other = replace(asked.choice, cluster=there, time_s=time_s * choice.time_s)
            up = replace(asked.upgrades[0], change=change, title=title, choice=other, seller=seller)
            up = replace(up, usd=usd * choice.usd, speedup_low=1.1)
            for limits in ({}, {"in_time": 0.1}, {"in_time": 0.7}, {"in_time": 0.1, "in_budget": 0.2}, {"in_budget": 0.1}):
                by = choice.time_s * 0.8 if "in_time" in limits else None
                budget = choice.usd * 0.8 if "in_budget" in limits else None
                for ups in ((up,), ()):
                    texts.add(advice(replace(at, upgrades=ups, by_s=by, budget_usd=budget, **limits)))
    assert len(texts) > 80
    for text in texts:
        assert text.endswith(".") and "  " not in text and (text[0].isupper() or text[0].isdigit()), text
        for noun, verb in re.findall(r"(?:^|: |; )((?:\d[\w +]*|a network [^,]*?)) (is|are|keep|keeps)\b", text):
            assert (verb in ("is", "keeps")) == bool(SINGULAR.match(noun)), text


def test_prices_of_two_providers_are_not_two_devices(asked: Asked) -> None:
    better = replace(asked.upgrades[0], change="device=B200", speedup_low=1.5, usd=asked.choice.usd / 2, seller="Nebius")
    text = advice(replace(asked, upgrades=(replace(better, usd_there=asked.choice.usd / 1.6),)))
    assert "for 50% less money at Nebius" in text  # as the table has it
    assert "less money" not in advice(replace(asked, upgrades=(replace(better, usd_there=asked.choice.usd / 3),)))


def test_what_lies_in_the_hosts_memory_is_said() -> None:
    kept = Strategy.of(world_size=8, global_batch_size=64, sharding="zero3", offload="optimizer")
    assert "optimizer in the host's memory (offload)" in in_words(kept, 8)


def test_the_cheapest_that_takes_very_long_asks_for_a_date(asked: Asked) -> None:
    slow = replace(asked, named=None, choice=replace(asked.choice, time_s=100 * 86400.0))
    assert "say by when you need it (--by 30d)" in advice(slow)


def test_strategies_in_pytorchs_words() -> None:
    sharded = Strategy.of(world_size=8, global_batch_size=64, sharding="zero3", recompute="full", grad_accum_steps=2)
    words = in_words(sharded, sharded.parallelism.data)
    assert (
        words == "FSDP with full sharding (ZeRO-3), activation checkpointing, 2 micro steps, 4 samples a device and micro step"
    )
    assert in_words(Strategy.of(world_size=1, global_batch_size=1), 1) == "one device, 1 sample a step"


def test_the_same_machine_for_less_is_named_with_both_prices(asked: Asked) -> None:
    usd = asked.choice.usd
    same = replace(
        asked.upgrades[0], change="", choice=asked.choice, usd=usd / 4, seller="Nebius", speedup=1.0, speedup_low=1.0
    )
    text = advice(replace(asked, upgrades=(same,)))
    assert text.startswith(f"The same 2 x 8 A100 SXM 80GB cost {money(usd / 4)} at Nebius, not {money(usd)}; else run it with")


def test_much_faster_devices_are_named_though_the_price_of_ones_own_is_unknown(asked: Asked) -> None:
    free = replace(asked, choice=replace(asked.choice, usd=math.nan, time_s=3600.0))
    quick = replace(asked.upgrades[0], change="device=B200", speedup=29.0, speedup_low=12.0, usd=8.0)
    text = advice(replace(free, upgrades=(quick,)))
    assert "are 29 times as fast for $8.00, which is less unless A100 SXM 80GB costs less than $0.50 a device and hour" in text
    assert "29 times" not in advice(replace(free, upgrades=(replace(quick, speedup_low=2.0),)))


def test_what_keeps_a_missed_date_is_a_cluster_that_can_be_rented(asked: Asked) -> None:
    late = replace(asked, upgrades=(), by_s=asked.choice.time_s / 4, in_time=0.0)
    quick = replace(asked.choice, time_s=asked.choice.time_s / 5)
    rented = replace(asked.upgrades[0], title="8x8 B200", choice=quick, usd=99.0, seller="Nebius")
    assert "8x8 B200 keep the date, in " in advice(replace(late, keeping=rented))
    assert "for $99.00 at Nebius" in advice(replace(late, keeping=rented))
    assert "none that is listed is" in advice(late)


def test_lighter_jobs_come_before_other_machines(asked: Asked) -> None:
    step = replace(asked.choice.prediction, memory_bytes=14 * 2**30)
    fit = Fitting(kinds=(BITS, SHORTER), cluster=asked.choice.cluster, strategy=asked.choice.strategy, prediction=step)
    small = replace(asked, named=Cluster.named("1 RTX 4090"), lighter=(replace(fit, lora="r=16,bits=4", tokens=2048),))
    words = "hold the frozen weights in 4 bits and shorten the sequences (--lora r=16,bits=4 --seq-len 2048: 14.0 GiB a device)"
    assert f"{words}; else take " in advice(small)
