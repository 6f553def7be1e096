"""Who sends how many bytes to whom: what is sent is received, and the closed form of a ring."""

from __future__ import annotations

import itertools
from math import ceil
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_row import each_row
from paceline.strategy import COMPRESSIONS, BucketPlan, Phase
from paceline.strategy.phase import Pattern, busiest_sent, ring_bytes
from strategy_toys import NAMED, describe, phases


@given(st.sampled_from(NAMED), st.integers(0, 3 * 10**6), st.integers(0, 10**5), st.integers(1, 4), st.integers(1, 8))
def test_what_is_sent_is_received(how, packed, dense, local, members):
    compression, exchange = COMPRESSIONS[how[0]], how[1]
    local = local if exchange == "hierarchical" else 1
    for phase in describe(BucketPlan(packed, 2, dense), compression, exchange, local * members, local).phases:
        assert phase.sent_by_rank().sum() == phase.received_by_rank().sum()
        assert (phase.sent_by_rank() >= 0).all()


def test_a_ring_sends_twice_the_buffer_but_one_share():
    phase = Phase("allreduce", (1000,), 4)
    assert [phase.sent(r) for r in range(4)] == [1500] * 4
    assert Phase("allreduce", (1000,), 1).sent(0) == 0
    assert Phase("allreduce", (10,), 3).sent(0) == ring_bytes(10, 3) == 14  # 13.3 rounded up


@each_row("how", NAMED)
def test_one_rank_sends_nothing(how):
    assert busiest_sent(phases(BucketPlan(5000, 1, 10), COMPRESSIONS[how[0]], how[1], 1)) == 0


def test_a_phase_of_impossible_groups_is_refused():
    with pytest.raises(ValueError, match="groups of 3"):
        Phase("push", (1,) * 4, 4, "push", 3)


@pytest.mark.parametrize("pattern", get_args(Pattern))
@settings(max_examples=30)
@given(members=st.integers(1, 6), stride=st.integers(1, 4), nodes=st.integers(1, 3), data=st.data())
def test_bytes_of_a_group_are_those_of_every_message(pattern, members, stride, nodes, data):
    """Each message is written down, sender, receiver, bytes; a ring passes on all but one share."""
    n = members * stride * nodes
    sizes = tuple(data.draw(st.lists(st.integers(0, 1000), min_size=n, max_size=n)))
    back = tuple(data.draw(st.lists(st.integers(0, 1000), min_size=n, max_size=n)))
    phase = Phase("any", sizes, n, pattern, members, stride, back=back)
    groups = phase.groups()
    assert sorted(groups.ravel().tolist()) == list(range(n)) and groups.shape == (stride * nodes, members)
    sent, received = [0] * n, [0] * n
    for group in groups.tolist():
        assert all(b - a == stride for a, b in itertools.pairwise(group))
        for place, rank in enumerate(group):
            if pattern in ("allreduce", "gather", "scatter"):
                size = ceil((2 if pattern == "allreduce" else 1) * (members - 1) * sizes[rank] / members)
                sent[rank], received[rank] = size, size
            if pattern == "switch" and members > 1:
                sent[rank], received[rank] = sizes[rank], back[rank]
            targets = [group[(place + 1) % members]] if pattern == "shift" else group
            for target in targets if pattern in ("push", "pull", "shift") else ():
                if target != rank:
                    size = sizes[target] if pattern == "push" else sizes[rank]
                    sent[rank] += size
                    received[target] += size
    assert phase.sent_by_rank().tolist() == sent == [phase.sent(r) for r in range(n)]
    assert phase.received_by_rank().tolist() == received == [phase.received(r) for r in range(n)]
    assert busiest_sent([phase, phase]) == 2 * max(sent) and busiest_sent([]) == 0


@given(st.integers(0, 10**12), st.integers(1, 10**5))
def test_a_ring_sends_at_most_one_byte_more_than_its_share(size, members):
    assert 0 <= ring_bytes(size, members) * members - 2 * (members - 1) * size < members


def test_one_number_is_for_all_ranks_alike():
    alike, each = (Phase("push", sizes, 4, "push") for sizes in ((7,), (7,) * 4))
    assert alike.sent_by_rank().tolist() == each.sent_by_rank().tolist() == [21] * 4
    assert Phase("allreduce", (8,), 4).ring and not alike.ring
    with pytest.raises(ValueError, match="3 sizes"):
        Phase("push", (1,) * 3, 4, "push")
