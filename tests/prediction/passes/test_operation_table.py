"""The operations of a workload as arrays."""

from __future__ import annotations

import gc
import weakref

import pytest

from paceline import Workload
from paceline.prediction.passes.operation_table import ATTENTION, MATMUL, operation_table
from prediction_toys import make_workload


@pytest.mark.long
def test_a_table_is_made_once_and_goes_with_its_workload() -> None:
    workload = make_workload()
    assert operation_table(workload) is operation_table(workload)
    assert len(operation_table(workload).kind) == 2  # equal layers once
    made = weakref.ref(operation_table(workload).kind)
    del workload
    gc.collect()
    assert made() is None


def test_recipes_quantise_products_with_weights_but_the_logits() -> None:
    gpt = Workload.named("gpt2")
    own = operation_table(gpt)
    assert not own.narrow[own.kind == ATTENTION].any() and own.narrow[own.kind == MATMUL].any()
    narrow = {gpt.layers[layer].name.split(".")[-1] for layer, row in zip(own.layer, own.row, strict=True) if own.narrow[row]}
    assert narrow == {"qkv", "project", "expand", "contract"}
    assert [layer.name for layer in gpt.layers if layer.is_logits] == ["head"]


def test_products_of_one_shape_in_and_out_of_the_logits_are_two_rows() -> None:
    square = make_workload(layers=2, width=64)
    assert len(operation_table(square).kind) == 2
    assert operation_table(square).flops.sum() > 0


def test_products_of_one_input_share_its_cast() -> None:
    net = Workload.named("qwen-3-30b-a3b")
    own = operation_table(net)
    sharing = {
        (net.layers[layer].name.removeprefix("blocks.0."), backward)
        for layer, row, backward in zip(own.layer, own.row, own.backward, strict=True)
        if own.shares[row] and net.layers[layer].name.startswith("blocks.0.")
    }
    assert {name for name, _ in sharing} == {"attention.key", "attention.value", "experts.gate"}
    assert sum(own.shares[own.row] & own.backward) == sum(own.shares[own.row] & ~own.backward)  # the weight's gradient alone


def test_products_of_one_input_are_joined_in_tuned_software() -> None:
    net = Workload.named("llama-3-8b")
    own = operation_table(net)
    sizes = {
        (net.layers[layer].name, bool(backward), bool(own.grows[row, 2])): (own.sizes[row], own.joined[row])
        for layer, row, backward in zip(own.layer, own.row, own.backward, strict=True)
        if own.kind[row] == MATMUL and net.layers[layer].name.startswith("blocks.0.")
    }
    for name, outputs in (("attention.query", 6144), ("attention.value", 6144), ("gate", 28672), ("contract", 4096)):
        for backward, weight, column in ((False, False, 1), (True, False, 2), (True, True, 0)):
            alone, joined = sizes[f"blocks.0.{name}", backward, weight]
            assert joined[column] == outputs and (alone == joined).sum() == 4 - (name != "contract")
