"""Local steps, described: turns, fragments, and what goes with them."""

from __future__ import annotations

import json
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from facts import facts
from paceline.errors import UserError
from paceline.hardware import cluster
from paceline.strategy import COMPRESSIONS, LocalSteps, Strategy
from paceline.workload import Workload


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]


def strategy(**choices: Any) -> Strategy:
    return Strategy.of(**{"world_size": 4, "global_batch_size": 64, **choices})


@each_row(
    ("choice", "words"),
    [
        ({"sync_every": 0}, ("0 steps from one exchange to the next", "from 1 up")),
        ({"outer_lr": 1.0}, ("outer_lr", "every step", "give sync_every too")),
        ({"fragments": 2}, ("2 fragments with an exchange in every step", "give sync_every too")),
        ({"sync_every": 4, "fragments": 5}, ("5 fragments in 4 steps", "at most 4 fragments")),
        ({"sync_every": 8, "fragments": 2, "sync_delay": 5}, ("overlaps 5 steps", "at most 4")),
        ({"sync_every": 4, "mixing": 0.3}, ("mixing=0.3 without a delay", "give sync_delay")),
        ({"sync_every": 4, "sync_delay": 1, "mixing": 1.0}, ("mixing=1.0", "from 0 to 0.9999")),
        ({"sync_every": 4, "outer_lr": 0}, ("outer_lr=0", "from 1e-06 to 10")),
        ({"sync_every": 4, "outer_lr": float("nan")}, ("outer_lr=nan", "give a number")),
        ({"sync_every": 4, "outer_momentum": 1}, ("outer_momentum=1", "from 0 to 0.9999")),
        ({"sync_every": 4, "outer_momentum": "0.9"}, ("outer_momentum='0.9'", "give a number")),
        ({"sync_every": 4, "sharding": "zero1"}, ("sync_every 4 does not go with zero1", "sharding ddp")),
        ({"sync_every": 4, "sharding": "zero3"}, ("zero3 over all 4 devices", "one worker", "give shard_devices")),
        ({"sync_every": 4, "sharding": "zero3", "shard_devices": 4}, ("one worker of 4 devices", "smaller workers")),
        (
            {"sync_every": 4, "sharding": "zero3", "shard_devices": 2, "worker_devices": 3},
            ("workers of 3 devices, of which 2 share a copy", "2 or 4"),
        ),
        ({"sync_every": 4, "worker_devices": 3}, ("4 devices are no whole workers of 3", "3 or 6 devices")),
        ({"sync_every": 4, "worker_devices": 4}, ("one worker of 4 devices",)),
        ({"worker_devices": 2}, ("worker_devices", "every step", "give sync_every too")),
        (
            {"sync_every": 4, "worker_devices": 2, "compression": "int8", "exchange": "hierarchical", "ranks_per_node": 2},
            ("exchange hierarchical", "same part of the other workers"),
        ),
        ({"sync_every": 4, "residual_decay": 0.9}, ("residual_decay 0.9 of dense", "no residuals", "topk")),
        ({"sync_every": 4, "compression": "topk", "residual_decay": 1.5}, ("residual_decay=1.5", "from 0 to 1")),
        ({"compression": "topk", "residual_decay": 0.9}, ("residual_decay", "every step", "give sync_every too")),
        ({"sync_every": 4, "tensor": 2}, ("several devices hold together", "by data")),
        ({"sync_every": 4, "pipeline": 2}, ("several devices hold together", "by data")),
        ({"sync_every": 4, "offload": "optimizer"}, ("offload optimizer", "offload none")),
        ({"sync_every": 4, "compression": "powersgd"}, ("powersgd, which works in DDP's buckets", "another compression")),
        (
            {"sync_every": 4, "compression": "topk", "options": {"momentum": 0.9}},
            ("momentum of topk", "momentum of the outer step", "outer_momentum 0"),
        ),
    ],
)
def test_what_does_not_go_with_local_steps_is_refused(choice, words):
    with pytest.raises(UserError) as caught:
        strategy(**choice)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("compression", [name for name in COMPRESSIONS if name != "powersgd"])
def test_every_other_compression_goes_with_them_and_survives_json(compression: str) -> None:
    given_ = strategy(compression=compression, sync_every=16, fragments=2, sync_delay=3, mixing=0.25, outer_lr=1.0)
    again = Strategy.of(**json.loads(json.dumps(given_.to_json())))
    assert again == given_ and len({again, given_}) == 1 and again.sync_every == 16
    dense = given_.uncompressed()
    assert dense.gradient_exchange.compression.name == "dense" and dense.local == given_.local


def test_an_exchange_in_every_step_is_written_as_before() -> None:
    plain = strategy()
    assert not {"sync_every", "outer_lr", "fragments"} & plain.to_json().keys()
    assert plain.changed(sync_every=8, fragments=2).changed(sync_every=1) == plain
    assert strategy(sync_every=1) == plain and plain.choice("sync_every") == 1


def test_a_momentum_of_the_compression_goes_with_an_outer_step_without_one() -> None:
    assert strategy(compression="topk", options={"momentum": 0.9}, sync_every=4, outer_momentum=0).sync_every == 4


def test_divided_tables_exchange_in_every_step() -> None:
    tables = Workload.named("dlrm")
    with pytest.raises(UserError, match="embedding tables divided among"):
        strategy(sync_every=4).settled(tables, cluster("A100", 4, 1))


def test_an_exchange_that_is_mixed_keeps_a_share() -> None:
    assert LocalSteps(sync_every=8).own_share == 0.0
    assert LocalSteps(sync_every=8, sync_delay=2).own_share == 0.5
    assert LocalSteps(sync_every=8, sync_delay=2, mixing=0.0).own_share == 0.0


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 10_000))
def test_each_fragment_has_its_turn_once_a_round(every: int, fragments: int, start: int) -> None:
    local = LocalSteps(sync_every=max(every, fragments), fragments=fragments) if every > 1 or fragments > 1 else LocalSteps()
    turns = [(step, local.due(step)) for step in range(start, start + local.sync_every)]
    assert sorted(f for _, f in turns if f is not None) == list(range(local.fragments))
    assert local.due(local.sync_every) == local.fragments - 1
    at = [step for step in range(start, start + 3 * local.sync_every) if local.due(step) is not None]
    assert min((b - a for a, b in pairwise(at)), default=1) >= local.sync_every // local.fragments  # the longest legal delay


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 3)), min_size=1, max_size=30), st.data())
def test_fragments_are_whole_layers_in_order_and_about_equal(layers: list[tuple[int, int]], data: st.DataObject) -> None:
    tensors = [Tensor(f"layer{i}.{j}", (size,)) for i, (size, count) in enumerate(layers) for j in range(count)]
    count = data.draw(st.integers(1, len(layers)))
    parts = LocalSteps(sync_every=40, fragments=count).split(tensors)
    assert len(parts) == count and all(parts) and [t for part in parts for t in part] == tensors
    owners = [{t.name.partition(".")[0] for t in part} for part in parts]
    assert sum(map(len, owners)) == len(layers)
    sizes = [sum(prod(t.shape) for t in part) for part in parts]
    largest_layer = max(size * n for size, n in layers)
    free = len(layers) >= 4 * count  # else fragments may be short of layers
    assert not free or max(sizes) <= sum(sizes) / count + 2 * largest_layer


def test_more_fragments_than_layers_are_refused() -> None:
    with pytest.raises(UserError, match=facts("3 fragments", "2 trained layers", "at most 2")):
        LocalSteps(sync_every=8, fragments=3).split(
            [Tensor("a.weight", (3,)), Tensor("a.bias", (3,)), Tensor("b.weight", (2,))]
        )


def test_a_tensor_of_the_model_itself_is_a_layer() -> None:
    parts = LocalSteps(sync_every=8, fragments=2).split([Tensor("weight", (3,)), Tensor("bias", (3,))])
    assert [[t.name for t in part] for part in parts] == [["weight"], ["bias"]]


@pytest.mark.parametrize("compression", ["dense", "bf16", "terngrad", "int8"])
def test_bytes_of_a_step_are_a_share_of_a_round(compression: str) -> None:
    """One fragment: one exchange of all tensors; its bytes over H, rounded up."""
    table = Workload.named("lenet5")
    tensors = table.parameters
    whole = strategy(compression=compression, sync_every=2).wire_bytes_per_device(tensors, tensors)
    many = strategy(compression=compression, sync_every=64).wire_bytes_per_device(tensors, tensors)
    assert abs(whole / many - 32) < 0.1
    elements = table.num_parameters
    if compression == "dense":  # a ring of 4: 2 * 3 / 4 of fp32
        assert many == -(-(2 * 3 * 4 * elements // 4) // 64)


def test_a_worker_has_the_devices_that_share_a_copy_or_more() -> None:
    given_ = {"world_size": 16, "global_batch_size": 64, "sync_every": 4}
    sharded = strategy(**given_, sharding="zero3", shard_devices=2)
    assert (sharded.worker_devices, sharded.worker_count) == (2, 8)
    hybrid = strategy(**given_, sharding="zero3", shard_devices=2, worker_devices=8)
    assert (hybrid.worker_devices, hybrid.worker_count) == (8, 2)
    assert (strategy(**given_, worker_devices=4).worker_count, strategy(**given_).worker_count) == (4, 16)
    assert Strategy.of(**json.loads(json.dumps(hybrid.to_json()))) == hybrid


def test_each_device_sends_its_part_of_the_shard_to_the_other_workers() -> None:
    tensor, hybrid = Tensor("a.weight", (10, 3)), {"sharding": "zero3", "shard_devices": 4, "worker_devices": 8}
    s = strategy(world_size=16, **hybrid, compression="topk", sync_every=4, dense_rule={"min_elements": 0, "last_layer": False})
    ((_, plan),) = s.partition([tensor], [tensor])
    assert plan.shard(4, 2) == (5, 0)  # 3 of the 10 rows, 9 elements, in two parts
    phases = s.traffic(plan).phases
    assert phases[-1].name == "worker_gather" and phases[-1].sizes == (4 * 10,)
    assert phases[-1].groups()[0].tolist() == [0, 4] and all(p.groups()[0].tolist() == [0, 8] for p in phases[:-1])
