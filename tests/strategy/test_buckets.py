"""DDP's buckets keep every tensor in order; fused groups hold four megabytes; a bucket's elements split by format."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.strategy import (
    COMPRESSIONS,
    FP32,
    BucketPlan,
    Strategy,
    buckets,
    fuse,
    plan_bucket,
)
from paceline.strategy.buckets import plan_unit
from paceline.workload import Parameter
from strategy_toys import MIB, tensors


def sizes(of: list[list[Parameter]]) -> list[list[int]]:
    return [[t.size for t in bucket] for bucket in of]


def test_buckets_close_with_the_tensor_that_reaches_the_limit():
    ready = tensors(MIB // 2, MIB // 2, 20 * MIB, 4 * MIB, 2 * MIB, 1)
    assert sizes(buckets(ready)) == [[MIB // 2, MIB // 2], [20 * MIB, 4 * MIB, 2 * MIB], [1]]


def test_a_big_tensor_is_a_bucket_of_its_own():
    assert sizes(buckets(tensors(1, 100 * MIB, 100 * MIB, 1))) == [[1, 100 * MIB], [100 * MIB], [1]]
    assert buckets([]) == []


FUSE_BYTES = 4 << 20
"""docs/wire-format.md: buckets are "joined until they hold 4 MiB"."""


@given(st.lists(st.integers(1, 10**4), max_size=40), st.integers(1, 10**5), st.integers(1, 10**5))
def test_buckets_keep_every_tensor_in_order(counts, limit, first):
    ready = tensors(*counts)
    members = buckets(ready, limit, first)
    assert [t for bucket in members for t in bucket] == ready
    for index, bucket in enumerate(members):
        cap = limit if index else first
        assert 4 * sum(t.size for t in bucket[:-1]) < cap
        assert index == len(members) - 1 or 4 * sum(t.size for t in bucket) >= cap


@given(st.lists(st.integers(1, 3 * 10**6), max_size=30))
def test_groups_hold_four_megabytes_and_keep_every_tensor(counts):
    ready = tensors(*counts)
    groups = fuse(buckets(ready))
    assert [t for group in groups for t in group] == ready
    assert all(4 * sum(t.size for t in group) >= FUSE_BYTES for group in groups[:-1])
    first = {bucket[0].name for bucket in buckets(ready)}
    assert all(group[0].name in first for group in groups)


def test_only_messages_are_fused():
    ready = tensors(MIB, MIB, 30 * MIB, 5)
    two = {e: Strategy.of(world_size=2, global_batch_size=2, exchange=e) for e in ("allreduce", "sharded")}
    groups = {e: strategy.groups(ready[::-1], ready) for e, strategy in two.items()}
    assert [len(g.tensors) for g in groups["allreduce"]] == [1, 2, 1]
    assert [len(g.tensors) for g in groups["sharded"]] == [3, 1]


def test_plan_bucket_splits_by_name():
    bucket = tensors(10, 20, 30)
    assert plan_bucket(bucket, COMPRESSIONS["terngrad"], {"t1"}) == BucketPlan(40, 2, 20)
    assert plan_bucket(bucket, COMPRESSIONS["bf16"], {"t1"}) == BucketPlan(60, 3, 0)
    padded = plan_bucket(tensors(1500, 20, 2048), COMPRESSIONS["int8"], {"t1"})  # every tensor begins with a block of 1,024
    assert padded == BucketPlan(3548, 2, 20, padding=548) and padded.streams(COMPRESSIONS["int8"])[0][1] == 4096
    unit = plan_unit(tensors(1500, 3000, 2048), COMPRESSIONS["int8"], {"t1"})
    assert [unit.encoded_shard(n, 1024) for n in (1, 4, 16)] == [(4096, 3000), (2048, 750), (0, 94 + 188 + 128)]
    assert sum(unit.shard(16)) == 94 + 188 + 128


def test_tensors_without_elements_join_the_last_bucket():
    ready = tensors(MIB, 0, 0)
    assert sizes(buckets(ready)) == [[MIB, 0, 0]] and sizes(buckets(ready[1:])) == [[0, 0]]


@given(st.integers(0, 100), st.integers(0, 100))
def test_what_is_compressed_travels_before_what_is_dense(compressed, dense):
    plan, compression = BucketPlan(compressed, 1, dense), COMPRESSIONS["int8"]
    assert plan.elements == compressed + dense == sum(count for _, count in plan.streams(compression))
    assert [fmt for fmt, _ in plan.streams(compression)] == [compression.format] * bool(compressed) + [FP32] * bool(dense)
