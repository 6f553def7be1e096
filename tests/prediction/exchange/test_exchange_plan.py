"""What a step exchanges as numbers: nothing but the strategy changes it, and it is made once."""

from __future__ import annotations

import gc
import weakref
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.prediction.exchange.exchange_plan import exchange_plan, plan_key, seconds_key
from paceline.strategy import COMPRESSIONS, SHARDINGS, Strategy
from paceline.workload import Workload
from prediction_toys import make_workload
from strategy_toys import exchanges_of

NET = make_workload(layers=6, blocks=2)
PAIRS = [(c.name, exchange) for c in COMPRESSIONS.values() for exchange in exchanges_of(c)]


def strategy(workers: int = 4, **choices: object) -> Strategy:
    return Strategy.of(world_size=workers, global_batch_size=workers * 6, **{"bucket_bytes": 8_000_000, **choices})


@given(st.sampled_from(PAIRS), st.integers(1, 9), st.sampled_from([1, 5_000_000, 1 << 30]))
def test_wire_bytes_are_the_strategys(pair: tuple[str, str], workers: int, bucket: int) -> None:
    chosen = strategy(workers, compression=pair[0], exchange=pair[1], bucket_bytes=bucket)
    plan = exchange_plan(NET, chosen, 1)
    assert plan.wire_bytes == chosen.wire_bytes_per_device(NET.parameters, NET.ready_order)
    assert (plan.wire_bytes == 0) == (workers == 1)


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_wire_bytes_of_every_sharding_and_number_of_micro_steps(sharding: str, times: int) -> None:
    chosen = strategy(sharding=sharding, grad_accum_steps=times)
    assert exchange_plan(NET, chosen, 1).wire_bytes == chosen.wire_bytes_per_device(NET.parameters, NET.ready_order)


@given(st.sampled_from(PAIRS), st.integers(2, 9))
def test_pieces_follow_their_buckets_and_every_element_is_in_one(pair: tuple[str, str], workers: int) -> None:
    plan = exchange_plan(NET, strategy(workers, compression=pair[0], exchange=pair[1]), 1)
    assert len(plan.pieces) == len(plan.bucket) == len(plan.codec) == len(plan.chunked)
    assert np.all(np.diff(plan.bucket) >= 0) and plan.bucket[plan.begin].tolist() == list(range(plan.count))
    assert plan.elements.sum() == NET.num_parameters
    assert len(plan.sent) == (~plan.codec).sum() and len(plan.codec_passes) == plan.codec.sum()
    assert np.all((plan.largest > 0) & (plan.largest <= 1))
    if pair == ("dense", "allreduce"):
        assert not plan.codec.any() and {piece.name for piece in plan.pieces} == {"allreduce"}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"global_batch_size": 48}, True),
        ({"optimizer": "adam"}, True),
        ({"recompute": True}, True),
        ({"precision": "fp16"}, True),
        ({"grad_accum_steps": 2}, True),
        ({"world_size": 6}, False),
        ({"compression": "int8"}, False),
        ({"bucket_bytes": 1}, False),
        ({"sharding": "zero1"}, False),
    ],
)
def test_one_key_is_one_plan_made_once(change: dict[str, object], same: bool) -> None:
    plain, changed = strategy(), strategy().changed(**change)
    assert (plan_key(plain) == plan_key(changed)) == same
    assert (exchange_plan(NET, plain, 1) is exchange_plan(NET, changed, 1)) == same


@pytest.mark.parametrize(
    ("change", "same", "same_seconds"),
    [
        ({"precision": "tf32"}, True, True),
        ({"precision": "bf16"}, False, False),
        ({"grad_accum_steps": 2}, False, True),
        ({"shard_devices": 2}, False, False),
        ({"gather_bits": 8}, False, False),
        ({"offload": "optimizer"}, False, False),
    ],
)
def test_units_of_one_width_are_one_plan_and_micro_steps_repeat_it(
    change: dict[str, object], same: bool, same_seconds: bool
) -> None:
    plain = strategy(sharding="zero3", precision="fp32")
    changed = plain.changed(**change)
    assert (plan_key(plain) == plan_key(changed)) == same and (seconds_key(plain) == seconds_key(changed)) == same_seconds
    recipes = [plain.changed(precision=name) for name in ("bf16", "fp16", "fp8", "mxfp8")]
    assert [len({key(s) for s in recipes}) for key in (plan_key, seconds_key)] == [3, 3]


def test_a_bound_is_another_plan_where_lengths_depend_on_values() -> None:
    exact, spread = strategy(), strategy(compression="inceptionn")
    assert exchange_plan(NET, exact, 1, "low") is exchange_plan(NET, exact, 1, "high")
    low, high = (exchange_plan(NET, spread, 1, level).wire_bytes for level in ("low", "high"))
    assert low < high


def test_results_of_a_workload_go_with_it() -> None:
    net = make_workload(layers=2)
    plan = weakref.ref(exchange_plan(net, strategy(), 1))
    assert plan() is exchange_plan(net, strategy(), 1)
    del net
    gc.collect()
    assert plan() is None


def test_a_measured_dense_gradient_has_a_codec_too() -> None:
    """What was measured divides and checks it, whatever the format: its elements count as those of the format."""
    chosen = strategy(exchange="sharded")
    plain, measured = (exchange_plan(NET, chosen, 1, measured=x) for x in (False, True))
    packed, measured_packed = plain.codec_passes[:, 2], measured.codec_passes[:, 2]
    assert not packed.any() and measured_packed.all() and measured.wire_bytes == plain.wire_bytes


def test_networks_repeat_themselves_and_so_do_plans() -> None:
    net = Workload.named("bert-large")
    plan = exchange_plan(net, strategy(sharding="zero3", bucket_bytes=25 << 20), 4)
    assert plan.count > len(plan.partition.unlike) and len(plan.traffic) == len(plan.partition.unlike)


def test_zero1_gathers_whole_rows_whatever_was_planned_before() -> None:
    """Equal rows of every tensor for all ranks: a plan without shares knows no rows."""
    net, zero1 = Workload.named("lenet5"), strategy(sharding="zero1")
    before = exchange_plan(net, strategy(), 1).wire_bytes
    rows = [(p.shape[0], prod(p.shape[1:])) for p in net.parameters]
    padded = 4 * sum(-(-count // zero1.world_size) * size for count, size in rows)
    assert exchange_plan(net, zero1, 1).wire_bytes == before + (zero1.world_size - 1) * padded
