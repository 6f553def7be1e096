"""The mesh: its order, its names, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import facts
from paceline.errors import UserError
from paceline.strategy import SHARDINGS, Parallelism, Strategy
from wrong_types import wrong_types

meshes = st.builds(
    Parallelism,
    data=st.integers(1, 1 << 16),
    sharding=st.sampled_from([*SHARDINGS, "fsdp"]),
    micro_batches=st.integers(1, 64),
    recompute=st.sampled_from(["none", "selective", "full", "selective:mlp,layernorm"]),
)


@given(meshes)
def test_the_mesh_names_its_dimensions_outermost_first(mesh: Parallelism) -> None:
    assert list(mesh.mesh) == ["pipeline", "data", "context", "tensor"]  # torchtitan's order: tensor within a node
    assert mesh.mesh["data"] == mesh.data
    assert mesh.devices == np.prod(list(mesh.mesh.values())) == mesh.data


def test_the_default_is_one_device_that_shares_nothing() -> None:
    mesh = Parallelism()
    assert (mesh.devices, mesh.sharding.name, mesh.micro_batches, mesh.recompute.name) == (1, "ddp", 1, "none")
    assert not mesh.sharding.gather_names


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_devices_are_the_product_of_the_dimensions(data: int, tensor: int, pipeline: int) -> None:
    mesh = Parallelism(data=data, tensor=tensor, pipeline=pipeline)
    assert mesh.devices == np.prod(list(mesh.mesh.values())) == data * mesh.model_devices
    assert mesh.replicas == Parallelism(data=data)
    strategy = Strategy.of(world_size=mesh.devices, tensor=tensor, pipeline=pipeline, global_batch_size=data * 3)
    assert strategy.parallelism == mesh and strategy.micro_batch_size == 3
    assert strategy == Strategy.of(data=data, tensor=tensor, pipeline=pipeline, global_batch_size=data * 3)
    assert Strategy.from_json(**strategy.to_json()) == strategy
    assert (strategy.choice("world_size"), strategy.choice("data")) == (mesh.devices, data)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"sequence": True}, "sequence parallelism without tensor parallelism; give tensor"),
        ({"virtual_stages": 2}, facts("2 virtual stages", "one stage")),
        ({"virtual_stages": 2, "pipeline": 2, "micro_batches": 2, "schedule": "gpipe"}, "2 virtual stages with schedule gpipe"),
        ({"virtual_stages": 2, "pipeline": 4, "micro_batches": 6}, facts("6 micro batches", "4 stages", "multiple of 4")),
        ({"virtual_stages": 2, "pipeline": 2, "micro_batches": 2, "schedule": "zero_bubble"}, "with schedule zero_bubble"),
        ({"shard_devices": 2, "data": 4}, facts("shard_devices 2", "sharding ddp", "sharding zero3")),
        ({"shard_devices": 3, "data": 4, "sharding": "zero3"}, facts("3 devices", "4 replicas")),
        ({"first_stage_layers": 3}, facts("first_stage_layers 3", "one stage", "give pipeline")),
        ({"schedule": "gpipe"}, facts("schedule gpipe", "one stage", "give pipeline")),
        ({"context_exchange": "all_to_all"}, "context exchange all_to_all without context parallelism; give context"),
        ({"schedule": "1f2b"}, "unknown pipeline schedule '1f2b'; legal: 1f1b, gpipe, zero_bubble"),
        (
            {"data": 6, "expert": 4},
            facts("4 devices", "experts", "6", "pipeline stage", "divisor"),
        ),
        ({"pipeline": 2, "expert": 2}, facts("2 devices", "experts", "1", "pipeline stage")),
        ({"data": 4, "expert": 2, "expert_tensor": 4}, facts("8 devices", "experts", "4")),
        ({"data": 2, "expert": 2, "expert_imbalance": 0.5}, "expert_imbalance=0.5; give 1, or how much more"),
        ({"data": 2, "expert": 2, "expert_imbalance": float("nan")}, "expert_imbalance=nan; give 1, or"),
        ({"data": 2, "expert": 2, "expert_imbalance": "2"}, "expert_imbalance='2'; give 1, or"),
        ({"data": 4, "expert": 4, "expert_imbalance": 4.5}, facts("expert_imbalance=4.5", "at most 4")),
        ({"data": 8, "expert": 2, "expert_tensor": 4, "expert_imbalance": 3}, "expert_imbalance=3: .*; give at most 2"),
        ({"expert_imbalance": 2}, "expert imbalance without expert parallelism; give expert"),
        ({"expert_exchange": "once_per_node"}, "expert exchange without expert parallelism; give expert"),
        ({"expert_overlap": True}, "expert overlap without expert parallelism; give expert"),
        (
            {"data": 2, "expert": 2, "expert_overlap": True},
            facts("overlap", "experts", "one micro batch", "give micro_batches"),
        ),
        ({"data": 2, "expert": 2, "expert_overlap": 1}, "expert_overlap=1; give True or False"),
        (
            {"data": 2, "expert": 2, "expert_exchange": "deepep"},
            "unknown expert exchange 'deepep'; legal: all_to_all, once_per",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(choices: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Parallelism(**choices)  # type: ignore[arg-type]


@given(st.integers(1, 64))
def test_fsdp_and_zero3_are_one_thing(data: int) -> None:
    assert Parallelism(data=data, sharding="fsdp") == Parallelism(data=data, sharding="zero3")
    assert hash(Parallelism(data=data, sharding="fsdp")) == hash(Parallelism(data=data, sharding="zero3"))
    assert Parallelism(sharding="fsdp").sharding is SHARDINGS["zero3"]
    assert Parallelism(sharding="none") == Parallelism(sharding="ddp")


def test_groups_of_experts_lie_within_a_stage_across_its_dimensions() -> None:
    mesh = Parallelism(data=4, context=2, tensor=2, pipeline=3, expert=8, expert_tensor=2, sequence=True)
    assert (mesh.stage_devices, mesh.expert_devices, mesh.expert_replicas.data, mesh.replicas.data) == (16, 16, 1, 8)
    assert Parallelism(data=8, expert=2).expert_replicas == Parallelism(data=4)
    assert Parallelism(data=8).whole and not Parallelism(data=8, expert=2).whole and not Parallelism(tensor=2).whole
    assert Strategy.of(world_size=8, expert=4, expert_imbalance=1.5, global_batch_size=8).parallelism.expert_imbalance == 1.5
    assert Parallelism(data=4, expert=4, expert_imbalance=4).expert_imbalance == 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data", "workers"),
        ("micro_batches", "micro steps"),
        ("tensor", "tensor"),
        ("pipeline", "pipeline"),
        ("context", "context"),
        ("expert", "expert"),
    ],
)
def test_a_size_is_a_whole_number_from_1_up(name: str, words: str) -> None:
    for size in (0, -1, True, 1 << 60, *wrong_types(int)):
        with pytest.raises(UserError, match=rf" {words}; give a whole number from 1 "):
            Parallelism(**{name: size})


def test_sizes_may_be_numpys_and_are_kept_as_plain_numbers() -> None:
    mesh = Parallelism(data=np.int64(8), micro_batches=np.int32(2))  # type: ignore[arg-type]
    assert mesh == Parallelism(data=8, micro_batches=2)
    assert type(mesh.data) is int and type(mesh.micro_batches) is int


def test_a_sharding_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(
        UserError, match=r"'fsdpp'; legal: ddp, zero1, zero2, zero3, distributed_optimizer, fsdp; did you mean fsdp\?"
    ):
        Parallelism(sharding="fsdpp")


def test_a_sharding_is_a_name() -> None:
    for sharding in wrong_types(str):
        with pytest.raises(
            UserError, match=facts("sharding", "a name", "was given", "ddp", "zero1", "zero2", "zero3", "distributed_optimizer")
        ):
            Parallelism(sharding=sharding)


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_a_mesh_covers_a_cluster_of_as_many_devices_and_no_other(data: int, devices: int) -> None:
    mesh = Parallelism(data=data)
    if data == devices:
        mesh.check_covers(devices)
    else:
        with pytest.raises(UserError, match=f"{data} workers and the cluster {devices} devices; give both the same number"):
            mesh.check_covers(devices)


def test_a_strategy_takes_a_mesh_or_its_sizes_by_name() -> None:
    whole = Strategy(global_batch_size=64, parallelism=Parallelism(data=4, micro_batches=2, sharding="zero2"))
    assert Strategy.of(global_batch_size=64, world_size=4, grad_accum_steps=2, sharding="zero2") == whole
    assert whole.world_size == 4 and whole.micro_batch_size == 8
