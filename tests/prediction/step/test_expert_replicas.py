"""Exchanges of networks whose experts have other replicas than the rest, against closed forms."""

from __future__ import annotations

import pytest

from expert_toys import MIXED, TWO_NODES, parts, step


def test_experts_are_held_once_in_a_group() -> None:
    experts = sum(p.size for p in MIXED.parameters if ".experts." in p.name)
    alone, shared = step(), step(expert=8)
    for purpose, width in (("weights", 6), ("gradients", 4), ("optimizer state", 8)):
        assert alone.memory[purpose] - shared.memory[purpose] == pytest.approx(width * experts * 7 / 8), purpose


def test_optimizer_states_of_experts_are_shared_among_their_replicas() -> None:
    experts = sum(p.size for p in MIXED.parameters if ".experts." in p.name)
    rest = MIXED.num_parameters - experts
    for expert in (2, 4, 8):
        p = step(expert=expert, sharding="zero1")
        # Each device updates an eighth of the rest, and its part of its own experts: as much in groups of every size.
        assert p.memory["optimizer state"] == pytest.approx(8 * (rest + experts) / 8)
        sharded = step(expert=expert, sharding="zero3")
        assert sharded.memory["weights"] == pytest.approx(4 * (rest + experts) / 8)


def test_gradients_are_exchanged_among_those_that_have_the_same_parameters() -> None:
    experts = sum(p.size for p in MIXED.parameters if ".experts." in p.name)
    rest = MIXED.num_parameters - experts
    for expert in (2, 4, 8):
        (own,) = parts(expert=expert).steps
        replicas = 8 // expert
        expected = 2 * 7 / 8 * 4 * rest + 2 * (replicas - 1) / replicas * 4 * experts / expert
        assert own.wire_bytes == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero3"])
def test_buckets_of_both_kinds_run_from_the_last_layer_to_the_first(sharding: str) -> None:
    (own,) = parts(TWO_NODES, expert=4, sharding=sharding, global_batch_size=64).steps
    plan = own.plan
    assert plan.count == len(plan.partition.layers) == len(plan.begin) == len(own.costs.exchange.buckets)
    assert plan.elements.sum() == own.experts.workload.num_parameters + own.workload.num_parameters  # type: ignore[union-attr]
    assert list(plan.bucket) == sorted(plan.bucket)
    assert own.costs.exchange.buckets.sum() == pytest.approx(own.costs.exchange.waited.sum())
    named = [any(".experts." in own.workload.layers[i].name for i in layers) for layers in plan.partition.layers]
    assert any(named) and not all(named)


def test_compressed_gradients_of_experts_are_compressed_too() -> None:
    dense, packed = (step(expert=2, compression=name) for name in ("dense", "int8"))
    assert packed.compression_ratio > 1.2 and packed.wire_bytes_per_device < dense.wire_bytes_per_device


def test_experts_of_tensor_parallel_devices_have_replicas_across_tensor_and_data() -> None:
    (own,) = parts(tensor=4, sequence=True).steps
    assert own.experts is not None
    assert own.experts.strategy.parallelism.data == 8 and own.strategy.parallelism.data == 2
