"""Codecs in cards and on hosts, and sums in switches: seconds by closed forms, and sentences that say what was assumed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.hardware import Cluster, aggregation, nic
from paceline.hardware.device import Fact
from paceline.prediction import Predictor
from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.prediction.exchange.exchange_seconds import exchange_seconds
from paceline.strategy import COMPRESSIONS, Strategy
from paceline.strategy.codec_place import Fabric
from paceline.strategy.compression.card_frames import message_bytes
from prediction_toys import IDEAL, make_calibration, make_cluster, make_workload, strategy

ELEMENTS = 1000 * 1000
HEADERS = 32 * -(-ELEMENTS // (1 << 17))  # of the chunks that go through a switch
ALPHA, BANDWIDTH = 2e-5, 1e9
BITS = 4.0
CODED = {"compression": "inceptionn", "options": {"ratio": 32 / BITS}, "min_elements": 0}


def pieces(cluster: Cluster, s: Strategy, layers: int = 1) -> dict[str, float]:
    """Seconds of each piece of the exchange of a network of equal layers of a million weights, one bucket."""
    network = make_workload(layers)
    s = replace(s, bucket_bytes=1 << 40, first_bucket_bytes=1 << 40).settled(network, cluster)
    exchange = exchange_seconds(exchange_plan(network, s, cluster.places), cluster, IDEAL)
    return {piece.name: float(t) for piece, t in zip(exchange.plan.pieces, exchange.pieces, strict=True)}


def coded(n: int, **choices: object) -> Strategy:
    """Every tensor through the card: no last layer and no small tensor stays dense."""
    from paceline.strategy import DenseRule

    rule = DenseRule(min_elements=0, last_layer=False)
    return strategy(n, compression="inceptionn", options={"ratio": 32 / BITS}, dense_rule=rule, **choices)


@settings(max_examples=40, deadline=None)
@given(nodes=st.integers(2, 9), rate=st.floats(1e7, 1e11), clock=st.floats(1e6, 1e9))
def test_a_ring_of_cards_takes_the_slower_of_line_and_engine(nodes: int, rate: float, clock: float) -> None:
    """2 (p-1) (alpha + engine) + 2 (p-1)/p max(n b / W, 4 n / R): the ring of Li et al. 2018 with an engine beside the line."""
    card = replace(nic(), engine=Fact(rate, "here", ""), clock=Fact(clock, "here", ""))
    found = pieces(make_cluster(1, nodes, BANDWIDTH).changed(nic=card), coded(nodes, exchange="ring", codec_at="nic"))
    block = -(-ELEMENTS // (64 * nodes)) * 64
    hops = nodes - 1
    # Equal blocks but for the last, so the busiest rank sends `hops` of at most `block` values.
    line, engine = message_bytes(block, BITS, 0, 32) / BANDWIDTH, (4 * block + 32) / rate
    latency = hops * (ALPHA + card.latency_s)
    for name in ("reduce_scatter", "all_gather"):
        assert found[name] == pytest.approx(latency + hops * max(line, engine), rel=0.02)
        assert found[name] <= latency + hops * max(line, engine) + 1e-12
    assert "encode" in found and "sizes" not in found


def test_a_card_s_hosts_work_as_in_a_dense_ring_and_only_packets_shrink() -> None:
    four = make_cluster(1, 4, BANDWIDTH)
    dense = pieces(four, strategy(4, compression="dense", exchange="ring"))
    card = pieces(four.changed(nic=nic("inceptionn:10Tb/s")), coded(4, exchange="ring", codec_at="nic"))
    host_like = pieces(four, coded(4, exchange="ring"))
    work = ("encode", "reduce", "decode")
    assert [card[name] for name in work] == [dense[name] for name in work] != [host_like[name] for name in work]
    sent, before = card["reduce_scatter"] - 3 * ALPHA, dense["reduce_scatter"] - 3 * ALPHA
    packet = 66 + 16 + -(-(362 * 4 + 6 * 2) // 8)
    assert before / sent == pytest.approx(1514 / packet, rel=0.02)
    assert before / sent < 32 / BITS  # as in the paper: the ratio does not convert


def test_messages_inside_a_node_stay_fp32() -> None:
    """Two nodes of two: a flat ring crosses the network once each way; the link inside carries what hosts send."""
    slow_inside = make_cluster(2, 2, network=1e12, intra=1e8)
    card = pieces(slow_inside.changed(nic=nic("inceptionn:10Tb/s")), coded(4, exchange="ring", codec_at="nic"))
    dense = pieces(slow_inside, strategy(4, compression="dense", exchange="ring"))
    assert card["reduce_scatter"] == pytest.approx(dense["reduce_scatter"], rel=1e-3)


def test_an_aggregator_s_card_restores_what_all_workers_send() -> None:
    """WA+C: n-1 gradients pass the busiest card, at the engine's rate; weights return as fp32."""
    card = nic("inceptionn:4Gb/s")
    s = coded(4, exchange="parameter_server", compress_pull=False, codec_at="nic")
    found = pieces(make_cluster(1, 4, BANDWIDTH).changed(nic=card), s)
    assert found["push"] == pytest.approx(3 * (4 * ELEMENTS + 32) / 0.5e9 + 3 * (ALPHA + card.latency_s))
    fast = pieces(make_cluster(1, 4, BANDWIDTH).changed(nic=nic("inceptionn:10Tb/s")), s)
    assert fast["pull"] == pytest.approx(3 * (4 * ELEMENTS + 32) / BANDWIDTH + 3 * (ALPHA + card.latency_s))


def test_the_prototype_s_port_and_host_limit_it() -> None:
    four = make_cluster(1, 4, network=1e11).changed(nic=nic("vc709"))
    found = pieces(four, coded(4, exchange="ring", codec_at="nic"))
    assert found["all_gather"] == pytest.approx(0.75 * 4 * ELEMENTS / 262.5e6, rel=0.01)


@settings(max_examples=30, deadline=None)
@given(nodes=st.integers(2, 40), compression=st.sampled_from(("dense", "terngrad")))
def test_a_switch_takes_one_gradient_s_time_whatever_the_workers(nodes: int, compression: str) -> None:
    """n b / W + 2 alpha; of ternary codes the sum is the longer way. A ring of fp32 takes 2 (p-1)/p times n b / W."""
    from paceline.strategy import DenseRule

    there = make_cluster(1, nodes, BANDWIDTH).changed(aggregation=aggregation("paceline"))
    rule = {} if compression == "dense" else {"dense_rule": DenseRule(min_elements=0, last_layer=False)}
    found = pieces(there, strategy(nodes, compression=compression, exchange="switch", **rule))
    bits = 32 if compression == "dense" else (2 * nodes).bit_length()
    assert found["aggregate"] == pytest.approx((HEADERS + ELEMENTS * bits / 8) / BANDWIDTH + 2 * ALPHA)
    if compression == "dense":
        ring = pieces(there, strategy(nodes, compression="dense", exchange="ring"))
        gained = (ring["reduce_scatter"] + ring["all_gather"]) / found["aggregate"]
        assert gained == pytest.approx(2 * (nodes - 1) / nodes, rel=0.3)
    assert "reduce" not in found


def test_packets_of_a_switch_cost_their_headers_and_its_rate_limits() -> None:
    four = make_cluster(1, 4, BANDWIDTH)
    s = strategy(4, compression="dense", exchange="switch")
    times = {name: pieces(four.changed(aggregation=aggregation(name)), s)["aggregate"] for name in ("ATP", "paceline")}
    assert (times["ATP"] - 2 * ALPHA) / (times["paceline"] - 2 * ALPHA) == pytest.approx((308 / 248) / (1514 / 1448))
    slow = replace(aggregation("paceline"), rate=Fact(1e8, "here", ""))
    assert pieces(four.changed(aggregation=slow), s)["aggregate"] == pytest.approx((4 * ELEMENTS + HEADERS) / 1e8 + 2 * ALPHA)


def test_devices_of_a_node_share_its_network_to_the_switch_and_leaves_pass_sums_on() -> None:
    s = strategy(8, compression="dense", exchange="switch")
    flat = make_cluster(4, 2, BANDWIDTH).changed(aggregation=aggregation("paceline"))
    assert pieces(flat, s)["aggregate"] == pytest.approx(4 * (4 * ELEMENTS + HEADERS) / BANDWIDTH + 2 * ALPHA)
    narrow = make_cluster(1, 8, BANDWIDTH).changed(leaf_nodes=2, oversubscription=6.0, aggregation=aggregation("paceline"))
    assert pieces(narrow, s)["aggregate"] == pytest.approx(3 * (4 * ELEMENTS + HEADERS) / BANDWIDTH + 2 * ALPHA)


def test_a_codec_on_a_gpu_s_host_copies_both_ways_and_has_the_rate_of_its_cores() -> None:
    from paceline.hardware.catalogue import link

    toy = make_cluster(1, 4, BANDWIDTH)
    host = Cluster.of_nodes(replace(toy.device, host_link="PCIe 3.0 x16"), 1, 4, toy.intra_link, toy.network)
    found = pieces(host, coded(4, exchange="ring", codec_at="host"))
    copy = 4 * ELEMENTS / link("PCIe 3.0 x16").bandwidth.value
    assert found["to_host"] == found["from_host"] == pytest.approx(copy)
    rate = COMPRESSIONS["inceptionn"].cpu_rate
    block = -(-ELEMENTS // 256) * 64
    assert found["encode"] == pytest.approx(4 * block * 4 / rate.encode.value)
    assert found["reduce"] == pytest.approx(4 * block * 3 / rate.decode.value)
    with pytest.raises(UserError, match="link to the host is not in the catalogue"):
        pieces(toy, coded(4, exchange="ring", codec_at="host"))


def test_where_the_gradients_live_is_what_it_always_was() -> None:
    gpu, network = make_cluster(1, 4, BANDWIDTH), make_workload(1)
    cpu = Cluster.of_nodes(replace(gpu.device, kind="cpu"), 1, 4, gpu.intra_link, gpu.network)
    for where, place in ((gpu, "gpu"), (cpu, "host")):
        named, unnamed = (coded(4, exchange="ring", **({"codec_at": place} if x else {})) for x in (True, False))
        assert named.settled(network, where) == unnamed.settled(network, where)
        assert Predictor().step(network, where, named).step_time_s == Predictor().step(network, where, unnamed).step_time_s


def test_many_predict_as_one_and_prices_of_another_card_are_not_taken() -> None:
    network, four = make_workload(3), make_cluster(1, 4, BANDWIDTH)
    s = coded(4, exchange="ring", codec_at="nic")
    places = [four.changed(nic=nic(name)) for name in ("vc709", "inceptionn", "inceptionn:1Gb/s")]
    alone = [Predictor().step(network, place, s).step_time_s for place in places]
    assert len(set(alone)) == 3
    assert Predictor().many(network, [(place, s) for place in places]).step_s.tolist() == pytest.approx(alone)


def test_a_card_keeps_no_residual_and_what_cannot_be_is_refused() -> None:
    network, four = make_workload(1), make_cluster(1, 4, BANDWIDTH)
    scaled = {"compression": "inceptionn-scaled", "exchange": "parameter_server", "compress_pull": False}
    card, own = (Predictor().step(network, four, strategy(4, **scaled, codec_at=place)) for place in ("nic", ""))
    assert card.memory["error feedback"] == 0 < own.memory["error feedback"]
    with pytest.raises(UserError, match="calibration has no measurement of a codec in the network card"):
        calibration = make_calibration(compression="inceptionn")
        Predictor(calibration=calibration).step(network, four, coded(4, exchange="ring", codec_at="nic"))
    divided = Strategy.of(world_size=4, tensor=2, global_batch_size=4, **scaled, codec_at="nic")
    with pytest.raises(UserError, match="several devices hold together"):
        divided.settled(network, make_cluster(2, 2))


@pytest.mark.parametrize(
    ("choices", "changes", "words"),
    [
        ({"exchange": "ring", "codec_at": "nic"}, {}, "in the network card of each node, Paceline engine"),
        ({"exchange": "ring", "codec_at": "nic"}, {"nic": nic("inceptionn:16Gb/s")}, "no ratio gains more"),
        ({"exchange": "ring", "codec_at": "nic"}, {}, "the card of a lab is a process of the host"),
        ({"exchange": "ring", "codec_at": "nic"}, {"nic": nic("vc709")}, "Between host and line it passes 2.10 Gb/s"),
        ({"exchange": "ring"}, {"nic": nic("vc709")}, "INCEPTIONN VC709 compresses nothing"),
        ({"exchange": "ring"}, {"aggregation": aggregation("ATP")}, "ATP adds nothing: the exchange is ring"),
    ],
)
def test_the_answer_says_what_was_assumed(choices: dict[str, str], changes: dict[str, object], words: str) -> None:
    there = make_cluster(1, 4, BANDWIDTH).changed(**changes)
    said = [str(a) for a in Predictor().step(make_workload(1), there, coded(4, **choices)).assumptions]
    assert any(words in text for text in said)


def test_a_switch_says_its_source_and_the_prediction_names_it() -> None:
    there = make_cluster(1, 4, BANDWIDTH).changed(aggregation=aggregation("SwitchML"))
    prediction = Predictor().step(make_workload(1), there, strategy(4, compression="dense", exchange="switch"))
    said = [a for a in prediction.assumptions if "SwitchML adds int32" in a]
    assert said and "256 bytes of values" in said[0] and said[0].source and prediction.cluster["aggregation"] == "SwitchML"
    assert any("scale and round fp32 to int32" in a for a in prediction.assumptions)


def test_nothing_of_a_fabric_is_a_default() -> None:
    assert Fabric() == Fabric(None, None)
