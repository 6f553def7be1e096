"""bfloat16 for what a codec does not encode: bytes as executed, by hand, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from each_row import each_row
from facts import facts
from paceline.errors import UserError
from paceline.strategy import BF16, FP32, BucketPlan, DenseRule, GradientExchange, Strategy
from paceline.strategy.buckets import plan_bucket
from paceline.strategy.dense_bits import dense_format
from paceline.training.exchanges.exchange_group import Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import make_setup
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup
from strategy_toys import describe

REFUSED = {
    "bits": ({"compression": "int8", "dense_bits": 8}, facts("dense_bits=8", "32 for fp32", "16 for bfloat16")),
    "dense": ({"compression": "dense", "dense_bits": 16}, "what compression bf16 sends; name compression bf16"),
    "bf16": ({"compression": "bf16", "exchange": "ring", "dense_bits": 16}, facts("bf16", "fp32", "leave dense_bits out")),
    "switch": ({"compression": "terngrad", "exchange": "switch", "dense_bits": 16}, "a switch adds fp32 or integers"),
    "card": (
        {"compression": "inceptionn", "exchange": "ring", "codec_at": "nic", "dense_bits": 16},
        facts("network card", "fp32"),
    ),
    "powersgd": ({"compression": "powersgd", "dense_bits": 16}, "give residual_bits=16 too"),
}
EXECUTED = [
    *(("int8", way, True) for way in ("sharded", "ring", "allgather", "parameter_server")),
    ("int8", "sharded", False),
    ("terngrad", "parameter_server", False),
    ("topk", "sharded", False),
    ("sign", "ring", True),
]


@each_row("name", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(name: str) -> None:
    given_, said = REFUSED[name]
    with pytest.raises(UserError, match=said) as error:
        GradientExchange(**given_)
    assert "\n" not in str(error.value)


def test_bf16_takes_it_where_it_sends_fp32() -> None:
    for fields in ({"exchange": "hierarchical"}, {"exchange": "sharded", "compress_pull": False}):
        assert str(GradientExchange("bf16", dense_bits=16, **fields)).endswith(", the rest in bf16")  # type: ignore[arg-type]
    assert (dense_format(16), dense_format(32)) == (BF16, FP32)
    assert GradientExchange("int8", dense_bits=np.int64(16)).dense_bits == 16  # type: ignore[arg-type]


def sent_and_summed(x: GradientExchange, workers: int, sizes: list[int], bad: bool) -> list[Any]:
    """Of each rank: its bytes and means, and the exact mean."""
    tensors, offset = [], 0
    for number, size in enumerate(sizes):
        tensors.append(TensorSpec(f"t{number}.weight", (size,), offset))
        offset += size

    def rank(wire: Any) -> Any:
        setup = make_setup(x, wire, Sample())
        assert setup is not None
        layout = Layout(tensors, x.description.dense(tensors), x.description.format.block)
        own = torch.randn(offset, generator=torch.Generator().manual_seed(wire.rank))
        if bad and wire.rank == 0:
            own[0] = torch.nan
        parts = dict(zip((t.name for t in tensors), own.clone().split(sizes), strict=True))
        work = torch.empty(room(setup, layout))
        exchange_group(setup, Gradients(layout=layout, parts=parts, workspace=work, seed=3, step=0))
        return wire.meter.sent_bytes, torch.cat(list(parts.values())), own

    return LocalGroup(workers).run(rank)


@given(st.sampled_from(EXECUTED), st.integers(2, 4), st.lists(st.sampled_from([1, 70, 1024, 3000]), min_size=1, max_size=4))
@settings(deadline=None, max_examples=40)
def test_bytes_sent_are_bytes_described(case: tuple[str, str, bool], workers: int, sizes: list[int]) -> None:
    compression, exchange, pull = case
    x = GradientExchange(compression, exchange, dense_rule=DenseRule(last_layer=False), compress_pull=pull, dense_bits=16)
    tensors = [TensorSpec(f"t{number}.weight", (size,), 0) for number, size in enumerate(sizes)]
    plan = plan_bucket(tensors, x.description, set(x.description.dense(tensors)))
    traffic = describe(plan, x.description, exchange, workers, compress_pull=pull, dense=BF16)
    results = sent_and_summed(x, workers, sizes, bad=False)
    assert [sent for sent, *_ in results] == [sum(phase.sent(rank) for phase in traffic.phases) for rank in range(workers)]
    assert all(torch.equal(means, results[0][1]) for _, means, _ in results)
    dense = torch.cat([torch.full((size,), size < 1024) for size in sizes])
    exact = torch.stack([own for *_, own in results]).double().mean(0)
    size = torch.stack([own for *_, own in results]).double().abs().mean(0)
    error = (results[0][1].double() - exact).abs()
    assert (error <= workers * 2.0**-8 * size + 1e-12)[dense].all()  # half a unit of the last of eight places, each time


def test_bytes_by_hand() -> None:
    """3,000 int8 elements and 70 dense ones to two owners: a header of 32, a scale of 4 a block of 1,024."""
    plan = BucketPlan(3000, 1, 70)
    x = GradientExchange("int8", dense_bits=16)
    halves, rest = (2048, 952), (64, 6)  # whole blocks, whole 64s
    scales = (8, 4)
    encoded = [32 + scale + n for scale, n in zip(scales, halves, strict=True)]
    for pull, back in ((True, encoded), (False, [32 + 2 * n for n in halves])):
        traffic = describe(plan, x.description, "sharded", 2, compress_pull=pull, dense=BF16)
        push = encoded
        for rank, other in ((0, 1), (1, 0)):
            flag = 4  # 2 (N-1)/N of one fp32
            sent = flag + push[other] + back[rank] + (32 + 2 * rest[other]) + (32 + 2 * rest[rank])
            assert sum(phase.sent(rank) for phase in traffic.phases) == sent


def test_a_step_with_a_nan_goes_dense_in_bfloat16_too() -> None:
    x = GradientExchange("int8", dense_rule=DenseRule(last_layer=False), dense_bits=16)
    results = sent_and_summed(x, 2, [3000], bad=True)
    exact = torch.stack([own for *_, own in results]).mean(0)
    for sent, means, _ in results:
        assert bool(means[0].isnan()) and sent == 4 + 2 * 32 + 2 * 3072  # whole blocks
        torch.testing.assert_close(means[1:], exact[1:], rtol=2**-6, atol=2**-7)


def test_factors_take_two_bytes() -> None:
    plan = BucketPlan(1000, 1, 10, (30, 20))
    x = GradientExchange("powersgd", residual_bits=16, dense_bits=16)
    sizes = {phase.name: phase.sizes for phase in describe(plan, x.description, "allreduce", 4, dense=BF16).phases}
    assert sizes == {"scales": (4,), "allreduce": (20,), "factor_p": (60,), "factor_q": (40,)}


def test_nodes_and_replicas_add_up_two_bytes_an_element() -> None:
    """Four workers: dense inside, of DDP's groups, of FSDP2's units over nodes, and of shards within HSDP's groups."""
    for fields in ({}, {"sharding": "zero3"}, {"sharding": "zero3", "shard_devices": 2, "exchange": "sharded"}):
        choices = {"exchange": "hierarchical", "ranks_per_node": 2, **fields}
        if "shard_devices" in fields:
            del choices["ranks_per_node"]
        inner = []
        for bits in (32, 16):
            s = Strategy.of(world_size=4, global_batch_size=4, compression="int8", dense_bits=bits, **choices)
            traffic = s.traffic(BucketPlan(4096, 1, 0))
            inner.append(sum(max(p.sizes) for p in traffic.phases if p.name.startswith("inner")))
        assert inner[0] == 2 * inner[1] > 0, fields
