"""Buckets, shards and who sends what to whom.

The oracle ``messages`` writes every message of an exchange down, sender, receiver, bytes, from the exchange's definition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.strategy import BF16, COMPRESSIONS, EXCHANGES, FP32, TERNARY, BucketPlan, Phase, plan_bucket
from paceline.workload import Parameter
from strategy_toys import NAMED, describe, owned_bounds, phases

HEADER_BYTES = 32
"""Of a header: docs/wire-format.md, "A message"."""
SHARD_ALIGN = 64
"""Elements of a block of bit planes: docs/wire-format.md, "Bit planes"."""
CHUNK_ELEMENTS = 1 << 21
"""docs/wire-format.md: "A stream is cut into chunks of 2^21 elements"."""


@given(
    st.integers(0, 10**6),
    st.sampled_from(["sharded", "parameter_server"]),
    st.integers(1, 600),
    st.integers(1, 600),
    st.sampled_from([1, 64, 1024, 65536]),
)
def test_shards_cover_every_element_once(count, exchange, workers, servers, block):
    bounds = owned_bounds(count, exchange, workers, min(workers, servers), block)
    for start, stop in bounds:  # no block of a message, which begins with the shard, holds elements of two blocks of the stream
        assert start in (stop, count) or start % block == 0 or start // block == (stop - 1) // block
    assert max(stop - start for start, stop in bounds) < 2 * max(block, -(-count // min(workers, servers)), SHARD_ALIGN)
    assert len(bounds) == workers
    assert bounds[0][0] == 0
    assert bounds[-1][1] == count
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    assert all(start <= stop for start, stop in bounds)
    assert all(start % SHARD_ALIGN == 0 or start == count for start, _ in bounds)


CODED = [(c, e) for c, e in NAMED if e != "allreduce"]
Message = tuple[str, int, int, int]


def length(fmt, count: int, contributions: int = 1) -> int:
    """Bytes of a message; fp32 where that is shorter, but for exact sums and lengths that depend on values."""
    own = fmt.message_bytes(count, contributions)
    return min(own, FP32.message_bytes(count)) if fmt.name != "ternary" and not fmt.spread else own


def chunk_bounds(count: int) -> list[tuple[int, int]]:
    """Start and stop of the chunks of a stream; the last may be short."""
    return [(start, min(start + CHUNK_ELEMENTS, count)) for start in range(0, count, CHUNK_ELEMENTS)]


def of_one_chunk(exchange: str, fmt, count: int, n: int, back) -> Iterator[Message]:
    """Every message of one chunk among ``n`` ranks; the sum of k contributions is ``message_bytes(count, k)`` long."""
    owned = [stop - start for start, stop in owned_bounds(count, exchange, n, block=fmt.block)]
    if exchange == "allgather":
        for source, target in itertools.permutations(range(n), 2):
            yield "all_gather", source, target, length(fmt, count)
    elif exchange == "ring":
        # blk[i]: contributions it has on a rank. Each rank starts with its own block and passes on what it received.
        for hop in range(1, n):
            for rank in range(n):
                block = (rank - hop + 1) % n
                yield "reduce_scatter", rank, (rank + 1) % n, length(fmt, owned[block], hop)
        for hop in range(1, n):
            for rank in range(n):
                block = (rank + 1 - hop + 1) % n
                yield "all_gather", rank, (rank + 1) % n, length(fmt, owned[block], n)
    else:
        for source, target in itertools.permutations(range(n), 2):
            yield "push", source, target, length(fmt, owned[target])
            yield "pull", source, target, length(back, owned[source], n)


def messages(plan: BucketPlan, compression, exchange: str, n: int, local: int, compress_pull: bool) -> Iterator[Message]:
    """Every message of the chunks and inside the nodes; not the scalers."""
    members = n // local
    for fmt, count in plan.streams(compression):
        back = fmt if compress_pull else FP32
        # What stays dense beside an all-gather is cheaper at its owners.
        way = "sharded" if exchange == "allgather" and fmt != compression.format else exchange
        parts = (
            [stop - start for start, stop in owned_bounds(count, "sharded", local, block=fmt.block)] if local > 1 else [count]
        )
        for lane, part in enumerate(parts):
            for start, stop in chunk_bounds(part) if local == 1 or members > 1 else ():
                for name, source, target, size in of_one_chunk(way, fmt, stop - start, members, back):
                    a, b = source * local + lane, target * local + lane
                    yield name, a, b, size
                    if fmt.spread is not None and size and not (name == "pull" and back is FP32):
                        yield "sizes", a, b, 8
        for node in range(members):
            for a, b in itertools.permutations(range(local), 2):
                yield "inner_reduce", node * local + a, node * local + b, 4 * parts[0]
                yield "inner_gather", node * local + a, node * local + b, 4 * parts[0]


@given(
    st.sampled_from(CODED), st.integers(0, 10**5), st.integers(0, 10**5), st.integers(1, 3), st.integers(1, 6), st.booleans()
)
def test_bytes_are_those_of_every_message(how, packed, dense, local, members, encoded_pull):
    name, exchange = how
    local = local if exchange == "hierarchical" else 1
    n, compression = members * local, COMPRESSIONS[name]
    encoded_pull |= exchange in ("ring", "allgather")
    plan = BucketPlan(packed, 2, dense)
    sent: dict[str, list[int]] = {}
    received: dict[str, list[int]] = {}
    for kind, source, target, size in messages(plan, compression, exchange, n, local, encoded_pull):
        sent.setdefault(kind, [0] * n)[source] += size
        received.setdefault(kind, [0] * n)[target] += size
    by_kind: dict[str, tuple[list[int], list[int]]] = {}
    for phase in describe(plan, compression, exchange, n, local, encoded_pull).phases:
        out, into = by_kind.setdefault(phase.name, ([0] * n, [0] * n))
        for rank in range(n):
            out[rank] += phase.sent(rank)
            into[rank] += phase.received(rank)
    by_kind.pop("scales", None)
    for kind, (out, into) in by_kind.items():
        assert (kind, out) == (kind, sent.get(kind, [0] * n))
        assert (kind, into) == (kind, received.get(kind, [0] * n))
    assert set(sent) <= set(by_kind) or not any(map(any, (sent[k] for k in set(sent) - set(by_kind))))


@given(st.sampled_from(CODED), st.integers(1, 3 * CHUNK_ELEMENTS), st.integers(1, 3 * CHUNK_ELEMENTS), st.integers(2, 4))
def test_shares_and_sums_are_of_both_streams(how, packed, dense, local):
    """The largest chunk is a share of all elements of the busiest rank, and a node's ranks add the shards of both streams."""
    name, exchange = how
    local = local if exchange == "hierarchical" else 1
    traffic = describe(BucketPlan(packed, 2, dense), COMPRESSIONS[name], exchange, 2 * local, local)
    blocks = COMPRESSIONS[name].format.block, 1
    owned = [owned_bounds(n, "sharded", local, block=b) for n, b in zip((packed, dense), blocks, strict=True)]
    own = [max(stop - start for start, stop in bounds) for bounds in owned]
    assert traffic.largest == pytest.approx(min(max(own), CHUNK_ELEMENTS) / sum(own))
    assert traffic.inner.reduce == (local * sum(own) if local > 1 else 0)


def test_long_streams_are_chunk_by_chunk():
    plan = BucketPlan(2 * CHUNK_ELEMENTS + 77, 1, CHUNK_ELEMENTS + 5)
    for name, exchange in CODED:
        compression = COMPRESSIONS[name]
        local = 2 if exchange == "hierarchical" else 1
        total = sum(size for *_, size in messages(plan, compression, exchange, 4, local, True))
        traffic = describe(plan, compression, exchange, 4, local)
        described = [p for p in traffic.phases if p.name != "scales"]
        assert sum(int(p.sent_by_rank().sum()) for p in described) == total, (name, exchange)
        assert traffic.chunks == (5 if local == 1 else 3)


def bodies(plan: BucketPlan, name: str, exchange: str, n: int, local: int = 1) -> list[int]:
    """Bytes that each rank sends in data messages."""
    collectives = describe(plan, COMPRESSIONS[name], exchange, n, local).phases
    return sum(p.sent_by_rank() for p in collectives if p.name not in ("scales", "sizes")).tolist()


@given(st.integers(1, 100), st.integers(2, 16))
def test_closed_forms_of_equal_shards(blocks, n):
    """Whole blocks for every rank: n elements, N ranks, headers apart."""
    count = blocks * SHARD_ALIGN * n
    plan, full = BucketPlan(count, 1, 0), 4 * count
    head = HEADER_BYTES * (n - 1)
    assert bodies(plan, "dense", "allreduce", n) == [2 * (n - 1) * full // n] * n
    assert bodies(plan, "dense", "sharded", n) == [2 * (n - 1) * full // n + 2 * head] * n
    assert bodies(plan, "dense", "ring", n) == [2 * (n - 1) * full // n + 2 * head] * n
    assert bodies(plan, "dense", "allgather", n) == [(n - 1) * full + head] * n
    assert bodies(plan, "dense", "parameter_server", n) == [(n - 1) * full + head] + [full + HEADER_BYTES] * (n - 1)
    bits = TERNARY.pull_bits(n)
    assert bodies(plan, "terngrad", "sharded", n) == [(n - 1) * count // n * (2 + bits) // 8 + 2 * head] * n
    hops = sum(TERNARY.pull_bits(s) for s in range(1, n))
    assert bodies(plan, "terngrad", "ring", n) == [count // n * (hops + (n - 1) * bits) // 8 + 2 * head] * n


@given(
    st.sampled_from([c for c, e in CODED if e == "hierarchical"]),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.integers(1, 9),
)
def test_hierarchical_with_one_rank_a_node_is_sharded(name, packed, dense, n):
    plan, compression = BucketPlan(packed, 2, dense), COMPRESSIONS[name]
    flat, deep = (describe(plan, compression, exchange, n, 1) for exchange in ("sharded", "hierarchical"))
    assert flat == deep


def test_hierarchical_in_one_node_is_dense():
    traffic = describe(BucketPlan(4096, 2, 100), COMPRESSIONS["int8"], "hierarchical", 4, 4)
    assert [p.name for p in traffic.phases] == ["inner_reduce", "inner_gather"]
    assert traffic.compressed.encode == traffic.dense.encode == 0
    assert [p.sent(0) + p.received(0) for p in traffic.phases] == [2 * 3 * 4 * (1024 + 64)] * 2  # equal shares


def test_hierarchical_sends_its_share_between_nodes():
    count = 1024 * 8 * 10
    reduce, scales, push, pull, gather = describe(BucketPlan(count, 1, 0), COMPRESSIONS["int8"], "hierarchical", 8, 4).phases
    assert scales.sizes == (4,)
    assert reduce.sent_by_rank().tolist() == gather.sent_by_rank().tolist() == [3 * 4 * count // 4] * 8
    own = count // 8
    assert push.sent_by_rank().tolist() == pull.sent_by_rank().tolist() == [HEADER_BYTES + own + 4 * (-(-own // 1024))] * 8


def test_phases_of_terngrad():
    plan = BucketPlan(compressed=1280, tensors=3, dense=100)
    scales, push, pull = phases(plan, COMPRESSIONS["terngrad"], "sharded", 4)
    assert scales == Phase("scales", (16,), 4)  # three maxima and a flag
    # 1280 elements in shards of 320, two bits each; 100 dense elements in shards of 64 and 36; a header each.
    assert push == Phase("push", (80 + 256 + 64, 80 + 144 + 64, 80 + 32, 80 + 32), 4, "push", rounds=2)
    assert pull == Phase("pull", (160 + 256 + 64, 160 + 144 + 64, 160 + 32, 160 + 32), 4, "pull", rounds=2)


def test_the_parameter_server_owns_everything():
    push, pull = phases(BucketPlan(1000, 1, 0), COMPRESSIONS["dense"], "parameter_server", 3)
    assert push.sizes == pull.sizes == (4032, 0, 0)
    assert [push.sent(r) for r in range(3)] == [0, 4032, 4032]
    assert [push.received(r) for r in range(3)] == [8064, 0, 0]
    assert [pull.sent(r) for r in range(3)] == [8064, 0, 0]


@given(st.integers(1, 10**6), st.integers(1, 40), st.integers(1, 8))
def test_as_many_servers_as_workers_are_sharded_and_fewer_are_spread_over_the_nodes(count, workers, servers):
    assert owned_bounds(count, "parameter_server", workers, workers) == owned_bounds(count, "sharded", workers)
    bounds = owned_bounds(64 * servers, "parameter_server", servers * workers, servers)  # nodes of as many workers
    assert [rank for rank, (start, stop) in enumerate(bounds) if stop > start] == [workers * s for s in range(servers)]


def test_a_pull_can_be_dense():
    push, pull = describe(BucketPlan(0, 0, 0), COMPRESSIONS["bf16"], "parameter_server", 2, 1, False).phases or (None, None)
    assert push is None
    push, pull = describe(BucketPlan(1000, 1, 0), COMPRESSIONS["bf16"], "parameter_server", 3, 1, False).phases
    assert push.sent(1) == BF16.message_bytes(1000) and pull.received(1) == FP32.message_bytes(1000)


def test_sizes_go_in_front_where_the_values_decide():
    collectives = phases(BucketPlan(1280, 1, 0), COMPRESSIONS["inceptionn"], "sharded", 4)
    assert [(p.name, p.pattern) for p in collectives] == [
        ("scales", "allreduce"),
        ("sizes", "push"),
        ("push", "push"),
        ("sizes", "pull"),
        ("pull", "pull"),
    ]
    assert collectives[1].sent(0) == 3 * 8
    one_way = describe(BucketPlan(1280, 1, 0), COMPRESSIONS["inceptionn"], "sharded", 4, 1, False).phases
    assert [p.name for p in one_way] == ["scales", "sizes", "push", "pull"]


def test_a_dense_bucket_of_terngrad_shares_no_scale():
    names = [p.name for p in phases(BucketPlan(0, 0, 50), COMPRESSIONS["terngrad"], "sharded", 2)]
    assert names == ["push", "pull"]


def test_low_rank_factors_are_reduced_in_place_of_matrices():
    shapes = [(64, 3, 7, 7), (64,), (1000, 512), (4, 4)]
    parameters = [Parameter(name=f"t{i}", shape=shape, layer=0, ready=i) for i, shape in enumerate(shapes)]
    compression = COMPRESSIONS["powersgd"].configured({"rank": 4})
    kept = compression.dense(parameters)
    assert set(kept) == {"t1", "t3"}
    plan = plan_bucket(parameters, compression, set(kept))
    assert plan == BucketPlan(64 * 147 + 512000, 2, 64 + 16, (4 * (64 + 1000), 4 * (147 + 512)))
    flag, rest, p, q = phases(plan, compression, "allreduce", 4)
    assert (flag.name, flag.sizes) == ("scales", (4,))
    assert (rest.sizes, p.sizes, q.sizes) == ((4 * 80,), (16 * 1064,), (16 * 659,))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_dense_gradients_go_over_every_exchange(exchange):
    assert phases(BucketPlan(8, 1, 0), COMPRESSIONS["dense"], exchange, 2)
