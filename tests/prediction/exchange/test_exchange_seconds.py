"""Seconds of an exchange: closed forms, slower links, and an exchange without a resource."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.calibration.constants import TYPICAL
from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.prediction.exchange.exchange_seconds import REMEMBERED, exchange_seconds
from paceline.strategy import COMPRESSIONS, DenseRule, Strategy
from prediction_toys import IDEAL, make_cluster, make_workload

NET = make_workload(layers=4, blocks=2)
LINKS = {"network": True, "intra-node link": False}


def strategy(workers: int = 4, **choices: object) -> Strategy:
    return Strategy.of(world_size=workers, global_batch_size=4 * workers, **{"optimizer": "sgd", **choices})


def test_an_allreduce_is_alpha_and_beta() -> None:
    """A ring of n workers: 2 (n - 1) messages of 1 / n of the bytes."""
    place, n = make_cluster(1, 4), 4
    plan = exchange_plan(NET, strategy(), 1)
    priced = exchange_seconds(plan, place, IDEAL)
    size = 4.0 * plan.elements
    ring = 2 * (n - 1) * (size / n / place.network.bandwidth.value + place.network.latency.value)
    assert priced.buckets == pytest.approx(ring) and priced.network.all()
    assert priced.busy("network") == pytest.approx(ring.sum()) and priced.busy("codec") == 0


@pytest.mark.parametrize("compression", ["dense", "terngrad", "int8"])
@pytest.mark.parametrize("exchange", ["sharded", "hierarchical"])
def test_a_bucket_takes_what_its_stages_take(compression: str, exchange: str) -> None:
    chosen = strategy(8, compression=compression, exchange=exchange, ranks_per_node=2 if exchange == "hierarchical" else 1)
    plan = exchange_plan(NET, chosen, 2)
    priced = exchange_seconds(plan, make_cluster(2, 4), TYPICAL)
    for bucket in range(plan.count):
        assert priced.cost(bucket).seconds == pytest.approx(float(priced.buckets[bucket]))
        for lane in ("network", "codec"):
            own = (plan.bucket == bucket) & (plan.codec == (lane == "codec"))
            assert priced.cost(bucket).busy(lane) == pytest.approx(float(priced.pieces[own].sum()))


@pytest.mark.parametrize(
    ("choices", "copied"),
    [
        ({"compression": "int8"}, 0.0),
        ({"compression": "int4"}, 0.0),
        ({"compression": "terngrad"}, 0.0),
        ({"compression": "int8", "exchange": "ring"}, 0.0),
        ({"compression": "int8", "compress_pull": False}, 1.0),
        ({"compression": "int8", "exchange": "hierarchical", "ranks_per_node": 2}, 1.0),
        ({"compression": "int8", "sharding": "zero2"}, 1.0),  # a unit's rows
        ({"compression": "int8", "sharding": "zero2", "exchange": "ring"}, 1.0),
        ({"compression": "sign"}, 1.0),
        ({"compression": "topk"}, 1.0),  # over allgather
        ({"compression": "int4", "exchange": "allgather"}, 0.0),
        ({"compression": "bf16", "exchange": "sharded"}, 1.0),
        ({"compression": "bf16"}, 0.0),  # the engine's all-reduce works in DDP's bucket
        ({"compression": "dense", "exchange": "sharded"}, 1.0),
    ],
)
def test_on_a_cpu_a_codec_pays_for_the_copy_that_its_exchange_works_on(choices: dict[str, Any], copied: float) -> None:
    """One fp32 message more out of the gradients, and one into them: of all elements, or a rank's share of them in ZeRO."""
    keeps = {"dense_rule": DenseRule(min_elements=0, last_layer=False)} if COMPRESSIONS[choices["compression"]].rule else {}
    chosen = strategy(**choices, **keeps)
    plan, on_gpus = exchange_plan(NET, chosen, 2), make_cluster(2, 2)
    host = on_gpus.changed(device=replace(on_gpus.device, kind="cpu"))
    without = replace(plan, codec_passes=plan.codec_passes * [1, 1, 1, 1, 1, 0])
    more = exchange_seconds(plan, host, IDEAL).busy("codec") - exchange_seconds(without, host, IDEAL).busy("codec")
    fp32, size = COMPRESSIONS["dense"].cpu_rate, 4 * NET.num_parameters / IDEAL.codec_cores
    share = 1 / 4 if "sharding" in choices else 1
    assert more == pytest.approx(copied * size * (1 / fp32.encode.value + share / fp32.decode.value), rel=1e-3)
    assert exchange_seconds(plan, on_gpus, IDEAL).busy("codec") == exchange_seconds(without, on_gpus, IDEAL).busy("codec")


@given(st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_slower_links_multiply_what_they_set(between: float, inside: float) -> None:
    plan = exchange_plan(NET, strategy(8, compression="int8", exchange="hierarchical", ranks_per_node=2), 2)
    plain = exchange_seconds(plan, make_cluster(2, 4), TYPICAL)
    slower = plain.slower(between, inside)
    wire = ~plan.codec
    assert slower.pieces[plan.codec] == pytest.approx(plain.pieces[plan.codec])
    assert slower.pieces[wire & plain.network] == pytest.approx(between * plain.pieces[wire & plain.network])
    assert slower.pieces[wire & ~plain.network] == pytest.approx(inside * plain.pieces[wire & ~plain.network])


@pytest.mark.parametrize("resource", ["network", "intra-node link", "codec"])
@pytest.mark.parametrize("sharding", ["ddp", "zero3"])
def test_an_exchange_without_a_resource(resource: str, sharding: str) -> None:
    how = {"compression": "int8", "exchange": "hierarchical", "ranks_per_node": 2} if sharding == "ddp" else {}
    plan = exchange_plan(NET, strategy(8, sharding=sharding, **how), 2)
    plain = exchange_seconds(plan, make_cluster(2, 4), TYPICAL)
    free = plain.without({resource})  # type: ignore[arg-type]
    own = plan.codec if resource == "codec" else ~plan.codec & (plain.network == LINKS[resource])
    assert not free.pieces[own].any() and free.pieces[~own] == pytest.approx(plain.pieces[~own])
    if resource != "codec":
        assert not free.gathers[plain.gathers_network == LINKS[resource]].any()
    assert (free.buckets <= plain.buckets * (1 + 1e-12)).all()
    assert plain.without({"compute"}) is plain


def test_a_plan_remembers_its_last_prices() -> None:
    net, chosen = make_workload(), strategy()
    plan = exchange_plan(net, chosen, 1)
    first = make_cluster(1, 4)
    priced = exchange_seconds(plan, first, IDEAL)
    assert exchange_seconds(plan, first, IDEAL) is priced
    others = [exchange_seconds(plan, make_cluster(1, 4, network=2e9 + i), IDEAL) for i in range(REMEMBERED)]
    assert len({float(other.buckets[0]) for other in others}) == REMEMBERED
    assert exchange_seconds(plan, first, IDEAL) is not priced  # only so many are kept
