"""Where a codec can work, what a refusal names, and what travels then."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import facts
from paceline.errors import UserError
from paceline.hardware import Cluster, aggregation, cluster, nic
from paceline.strategy import COMPRESSIONS, FP32, PLACES, BucketPlan, CodecWork, GradientExchange, Strategy
from paceline.strategy.codec_place import PLAIN, Fabric, check_fabric, fabric
from paceline.strategy.compression.card_frames import message_bytes
from paceline.strategy.exchanges import EXCHANGES, OF_HOSTS
from strategy_toys import describe, exchanges_of, owned_bounds

LEGAL_IN_CARD = {("inceptionn", "ring")}
ONE_WAY_IN_CARD = {("inceptionn", "parameter_server"), ("inceptionn-scaled", "parameter_server")}


def test_a_card_carries_two_compressions_over_two_exchanges() -> None:
    legal = set()
    for pair, pull in product(product(COMPRESSIONS, EXCHANGES), (True, False)):
        try:
            GradientExchange(*pair, codec_at="nic", compress_pull=pull)
        except UserError:
            continue
        legal.add((pair, pull))
    assert legal == {(pair, True) for pair in LEGAL_IN_CARD} | {(pair, False) for pair in ONE_WAY_IN_CARD}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"compression": "terngrad", "codec_at": "nic"}, facts("terngrad", "codec_at nic", "inceptionn")),
        ({"compression": "inceptionn", "exchange": "sharded", "codec_at": "nic"}, "legal with codec_at nic: ring, param"),
        ({"compression": "inceptionn", "exchange": "parameter_server", "codec_at": "nic"}, "--no-compress-pull"),
        ({"compression": "dense", "codec_at": "nic"}, facts("dense", "network card")),
        ({"compression": "powersgd", "codec_at": "host"}, "made by PyTorch's hook"),
        ({"compression": "terngrad", "exchange": "hierarchical", "codec_at": "host"}, "legal with codec_at host: sharded"),
        ({"compression": "terngrad", "codec_at": "card"}, facts("place of the codec", "'card'", "host", "gpu", "nic")),
        ({"compression": "int8", "exchange": "switch"}, "packed codes cannot be added"),
        (
            {"compression": "inceptionn-scaled", "exchange": "ring", "codec_at": "nic"},
            "the ranks would end with different sums",
        ),
    ],
)
def test_a_refusal_names_what_is_legal(given: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        GradientExchange(**given)


@pytest.mark.parametrize("place", ["", *PLACES])
def test_json_of_before_is_read_and_written_as_before(place: str) -> None:
    x = GradientExchange("inceptionn", "ring", codec_at=place)
    data = x.to_json()
    assert ("codec_at" in data) == bool(place) and GradientExchange.from_json(data) == x
    strategy = Strategy.of(world_size=4, global_batch_size=4, compression="inceptionn", exchange="ring", codec_at=place)
    assert Strategy.from_json(**strategy.to_json()) == strategy and strategy.choice("codec_at") == place
    assert ("codec_at" in strategy.to_json()) == bool(place)
    assert strategy.changed(compression="dense").gradient_exchange.codec_at.name == ""
    assert strategy.uncompressed().gradient_exchange.codec_at.name == ""


ETHERNET = cluster("A100", 1, 4, "10Gb/s")
IN_CARD = GradientExchange("inceptionn", "ring", codec_at="nic")


@pytest.mark.parametrize(
    ("x", "where", "words"),
    [
        (IN_CARD, cluster("A100", 4), "one node, which has no network"),
        (IN_CARD, cluster("A100", 1, 4, "InfiniBand HDR"), "follows TCP on an Ethernet.*such as 100Gb/s"),
        (IN_CARD, cluster("A100", 1, 4, "100Gb/s RoCE"), "100Gb/s TCP"),
        (
            GradientExchange("inceptionn-scaled", "parameter_server", compress_pull=False, codec_at="nic"),
            ETHERNET.changed(nic=nic("vc709")),
            "does not do inceptionn-scaled; legal for it: inceptionn",
        ),
        (GradientExchange("terngrad", codec_at="gpu"), cluster("Xeon Platinum 8380", 1, 4, "10Gb/s"), "give codec_at host"),
        (GradientExchange("dense", "switch"), ETHERNET, "add nothing up; name what adds: --aggregation SwitchML"),
        (GradientExchange("dense", "switch"), cluster("A100", 1, 4, "InfiniBand HDR"), "SHARP in its name"),
        (GradientExchange("dense", "switch"), ETHERNET.changed(aggregation=aggregation("SHARP")), "does not add on Ethernet"),
        (
            GradientExchange("terngrad", "switch"),
            ETHERNET.changed(aggregation=aggregation("ATP")),
            facts("int32", "terngrad", "dense"),
        ),
    ],
)
def test_a_cluster_that_lacks_it_is_refused(x: GradientExchange, where: Cluster, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_fabric(x, where)


def test_what_is_used_is_what_was_named_else_the_first_card() -> None:
    assert fabric(IN_CARD, ETHERNET) == Fabric(nic=nic()) and fabric(GradientExchange("inceptionn"), ETHERNET) is PLAIN
    assert fabric(IN_CARD, ETHERNET.changed(nic=nic("vc709"))).nic == nic("vc709")
    sharp = fabric(GradientExchange("dense", "switch"), cluster("A100", 1, 4, "InfiniBand HDR SHARP")).aggregation
    assert sharp == aggregation("SHARP")


@given(packed=st.integers(0, 5 * 10**6), dense=st.integers(0, 10**5), n=st.integers(2, 9))
def test_a_ring_of_cards_sends_every_block_as_packets_and_hosts_add_fp32(packed: int, dense: int, n: int) -> None:
    described = COMPRESSIONS["inceptionn"].configured({"ratio": 8})
    plan = BucketPlan(packed, 2, dense)
    coded = describe(plan, described, "ring", n, in_card=True)
    plain = describe(plan, COMPRESSIONS["dense"], "ring", n)
    apart = [describe(BucketPlan(count, 1, 0), COMPRESSIONS["dense"], "ring", n) for count in (packed, dense) if count]
    chunked = coded.chunked
    assert [p.name for p in chunked] == [p.name for p in plain.phases if p.name != "sizes"][: len(chunked)]
    assert coded.compressed == CodecWork() and [p.name for p in coded.before] in (["scales"], [])
    sent = np.zeros(n, np.int64)
    for count, bits in ((packed, 4), (dense, 0)):
        for start in range(0, count, 1 << 21):
            blocks = [b - a for a, b in owned_bounds(min(1 << 21, count - start), "sharded", n)]
            size = [message_bytes(b, bits, 0, 32) if bits else FP32.message_bytes(b) for b in blocks]
            size = [min(s, FP32.message_bytes(b)) for s, b in zip(size, blocks, strict=True)]
            for rank in range(n):
                sent[rank] += sum(size[(rank - hop + 1) % n] for hop in range(1, n)) + sum(size) - size[(rank + 2) % n]
    assert np.sum([p.sent_by_rank() for p in chunked], axis=0).tolist() == sent.tolist() or not chunked
    as_hosts = sum(sum(phase.plain) for phase in chunked)
    assert as_hosts == sum(sum(phase.sizes) for traffic in apart for phase in traffic.phases)


@given(packed=st.integers(0, 5 * 10**6), dense=st.integers(0, 10**5), n=st.integers(2, 300))
def test_a_switch_receives_each_gradient_once_and_sends_each_its_sum(packed: int, dense: int, n: int) -> None:
    """Ternary sums of n workers need ceil(log2(2n + 1)) bits an element."""
    traffic = describe(BucketPlan(packed, 2, dense), COMPRESSIONS["terngrad"], "switch", n)
    up, down = 0, 0
    for count, widths in ((packed, (2, (2 * n).bit_length())), (dense, (32, 32))):
        for start in range(0, count, 1 << 17):
            here = min(1 << 17, count - start)
            group = 8 if widths[0] == 2 else 1
            one, many = (32 + -(-(-(-here // group) * group * w) // 8) for w in widths)
            up, down = up + one, down + many
    phases = [p for p in traffic.phases if p.pattern == "switch"]
    assert sum(p.sent(0) for p in phases) == up and sum(p.received(n - 1) for p in phases) == down
    assert traffic.compressed.reduce == traffic.dense.reduce == 0  # the switch adds, not the hosts


def test_exchanges_of_hosts_are_all_but_the_switch() -> None:
    assert {*EXCHANGES} - {*OF_HOSTS} == {"switch"}
    assert not any("switch" in exchanges_of(c) for c in COMPRESSIONS.values())
