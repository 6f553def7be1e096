"""Buckets, shards and who sends what to whom."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.strategy import COMPRESSIONS, EXCHANGES, BucketPlan, Phase, buckets, phases, plan_bucket, shard_bounds
from paceline.strategy.exchange import SHARD_ALIGN
from paceline.workload import Parameter

MIB = 2**18  # fp32 elements


def tensors(*sizes: int) -> list[Parameter]:
    return [Parameter(name=f"t{i}", shape=(size,), layer=0, ready=i) for i, size in enumerate(sizes)]


def sizes(of: list[list[Parameter]]) -> list[list[int]]:
    return [[t.size for t in bucket] for bucket in of]


def test_buckets_close_with_the_tensor_that_reaches_the_limit():
    ready = tensors(MIB // 2, MIB // 2, 20 * MIB, 4 * MIB, 2 * MIB, 1)
    assert sizes(buckets(ready)) == [[MIB // 2, MIB // 2], [20 * MIB, 4 * MIB, 2 * MIB], [1]]


def test_a_big_tensor_is_a_bucket_of_its_own():
    assert sizes(buckets(tensors(1, 100 * MIB, 100 * MIB, 1))) == [[1, 100 * MIB], [100 * MIB], [1]]
    assert buckets([]) == []


@given(st.lists(st.integers(1, 10**4), max_size=40), st.integers(1, 10**5), st.integers(1, 10**5))
def test_buckets_keep_every_tensor_in_order(counts, limit, first):
    ready = tensors(*counts)
    made = buckets(ready, limit, first)
    assert [t for bucket in made for t in bucket] == ready
    for index, bucket in enumerate(made):
        cap = limit if index else first
        assert 4 * sum(t.size for t in bucket[:-1]) < cap
        assert index == len(made) - 1 or 4 * sum(t.size for t in bucket) >= cap


@given(st.integers(0, 10**6), st.sampled_from(["sharded", "parameter_server"]), st.integers(1, 600))
def test_shards_cover_every_element_once(count, exchange, workers):
    bounds = shard_bounds(count, exchange, workers)
    assert len(bounds) == workers
    assert bounds[0][0] == 0
    assert bounds[-1][1] == count
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    assert all(start <= stop for start, stop in bounds)
    assert all(start % SHARD_ALIGN == 0 or start == count for start, _ in bounds)


LEGAL = [(c, e) for c in COMPRESSIONS.values() for e in c.exchanges]


@given(st.sampled_from(LEGAL), st.integers(0, 10**5), st.integers(0, 10**5), st.integers(1, 12))
def test_what_is_sent_is_received(how, packed, dense, workers):
    compression, exchange = how
    plan = BucketPlan(packed, 2, dense)
    for phase in phases(plan, compression, exchange, workers):
        ranks = range(workers)
        assert sum(map(phase.sent, ranks)) == sum(map(phase.received, ranks))
        if phase.ring:
            continue
        # Message by message: a push goes to the owner of a shard, a pull comes from it.
        sent, received = [0] * workers, [0] * workers
        for source in ranks:
            for target in ranks:
                if source != target:
                    size = phase.shards[target if phase.name == "push" else source]
                    sent[source] += size
                    received[target] += size
        assert sent == [phase.sent(rank) for rank in ranks]
        assert received == [phase.received(rank) for rank in ranks]


def test_a_ring_sends_twice_the_buffer_but_one_share():
    phase = Phase("allreduce", (1000,), 4)
    assert [phase.sent(r) for r in range(4)] == [1500] * 4
    assert Phase("allreduce", (1000,), 1).sent(0) == 0
    assert Phase("allreduce", (10,), 3).sent(0) == 14  # 13.3 rounded up


def test_phases_of_terngrad():
    plan = BucketPlan(compressed=1280, tensors=3, dense=100)
    scales, push, pull = phases(plan, COMPRESSIONS["terngrad"], "sharded", 4)
    assert scales == Phase("scales", (16,), 4)  # three maxima and the flag
    # 1280 elements in shards of 320, two bits each; 100 dense elements in shards of 64 and 36.
    assert push == Phase("push", (80 + 256, 80 + 144, 80, 80), 4)
    assert pull == Phase("pull", (160 + 256, 160 + 144, 160, 160), 4)


def test_the_parameter_server_owns_everything():
    push, pull = phases(BucketPlan(1000, 1, 0), COMPRESSIONS["dense"], "parameter_server", 3)
    assert push.shards == pull.shards == (4000, 0, 0)
    assert [push.sent(r) for r in range(3)] == [0, 4000, 4000]
    assert [push.received(r) for r in range(3)] == [8000, 0, 0]
    assert [pull.sent(r) for r in range(3)] == [8000, 0, 0]


def test_a_dense_bucket_of_terngrad_shares_no_scale():
    names = [p.name for p in phases(BucketPlan(0, 0, 50), COMPRESSIONS["terngrad"], "sharded", 2)]
    assert names == ["push", "pull"]


def test_plan_bucket_splits_by_name():
    bucket = tensors(10, 20, 30)
    assert plan_bucket(bucket, COMPRESSIONS["terngrad"], {"t1"}) == BucketPlan(40, 2, 20)
    assert plan_bucket(bucket, COMPRESSIONS["bf16"], {"t1"}) == BucketPlan(60, 3, 0)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_dense_gradients_go_over_every_exchange(exchange):
    assert phases(BucketPlan(8, 1, 0), COMPRESSIONS["dense"], exchange, 2)
