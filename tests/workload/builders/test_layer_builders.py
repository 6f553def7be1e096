"""Layers from their dimensions are those that a trace finds in the module of the same name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paceline.workload import Layer, Operation, Workload
from paceline.workload.builders.attention import attention
from paceline.workload.builders.layer_builders import (
    LayerSpec,
    cross_entropy,
    dropout,
    embedding,
    lay_out,
    linear,
    normalisation,
    positions,
    product,
)
from traced_layers import layer, work

FIELDS = [f"{field}_{way}" for field in ("flops", "bytes", "fixed_bytes", "calls") for way in ("forward", "backward")]


def as_layer(part: LayerSpec) -> Layer:
    return Layer(
        name=part.name,
        kind=part.kind,
        operations=part.operations,
        activation_bytes=part.kept,
        activation_bytes_half=part.kept_half,
    )


def assert_traced(part: LayerSpec, build: Callable[[], nn.Module], *shape: int) -> None:
    """``part`` is the layer ``1`` behind a linear layer that asks for its gradient."""
    traced = layer(Workload.trace(lambda: nn.Sequential(nn.Linear(shape[-1], shape[-1]), build()), torch.empty(1, *shape)), "1")
    own = as_layer(part)
    assert {f: work(own, f) for f in FIELDS} == {f: work(traced, f) for f in FIELDS}
    assert own.activation_bytes == traced.activation_bytes and own.kind == traced.kind
    assert own.activation_bytes_half == traced.activation_bytes_half


@settings(max_examples=6)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_linear_layers_are_those_of_the_module(rows: int, inputs: int, outputs: int, bias: bool) -> None:
    assert_traced(linear("1", rows, inputs, outputs, bias=bias), lambda: nn.Linear(inputs, outputs, bias), rows, inputs)


@settings(max_examples=4)
@given(st.integers(1, 9), st.integers(2, 9))
def test_normalisations_are_those_of_the_module(rows: int, width: int) -> None:
    assert_traced(normalisation("1", rows, width), lambda: nn.LayerNorm(width), rows, width)


@settings(max_examples=4)
@given(st.integers(1, 9), st.integers(2, 9))
def test_dropout_is_that_of_the_module(rows: int, width: int) -> None:
    assert_traced(dropout("1", rows * width), lambda: nn.Dropout(0.1), rows, width)


@given(st.integers(1, 99), st.integers(1, 9), st.integers(1, 9), st.integers(1, 8), st.booleans())
def test_fused_attention_does_seven_products_and_keeps_no_scores(
    queries: int, keys: int, width: int, heads: int, shared: bool
) -> None:
    kv_heads = 1 if shared else heads
    fused, written = (as_layer(attention("a", queries, keys, heads, kv_heads, width, fused=f)) for f in (True, False))
    each = 2 * queries * keys * heads * width
    assert (fused.flops_forward, fused.flops_backward) == (2 * each, 5 * each)
    assert (written.flops_forward, written.flops_backward) == (2 * each, 4 * each)
    assert work(fused, "bytes_forward") < work(written, "bytes_forward")
    kept = 4 * (2 * queries * heads * width + 2 * keys * kv_heads * width)
    assert fused.activation_bytes == kept + 4 * queries * heads
    assert written.activation_bytes == kept + (2 * 4 + 1) * queries * keys * heads
    assert fused.activation_bytes_half == kept / 2 + 4 * queries * heads
    assert written.activation_bytes_half == kept / 2 + (4 + 1 + 2) * queries * keys * heads


@given(st.integers(1, 9), st.integers(1, 99), st.integers(1, 9))
def test_a_table_of_vectors_is_read_by_its_rows(rows: int, entries: int, width: int) -> None:
    plain, tied = (as_layer(embedding("e", rows, entries, width, tied=tied)) for tied in (False, True))
    assert work(plain, "fixed_bytes_forward") == 0 and work(plain, "bytes_forward") == 8 * rows + 2 * 4 * rows * width
    assert work(tied, "fixed_bytes_backward") == 4 * work(plain, "fixed_bytes_backward") == 16 * entries * width
    places = as_layer(positions("p", rows, entries, width))
    assert places.activation_bytes == 0 and work(places, "bytes_backward") == 4 * rows * width


def test_a_product_of_several_calls_is_so_many_times_the_work() -> None:
    single, double = (product(3, 4, 5, 2, 60.0, True, calls=calls) for calls in (1, 2))
    assert (double.flops, double.bytes, double.calls) == (2 * single.flops, 120.0, 2) and single.flops == 2 * 3 * 4 * 5 * 2


def test_the_loss_reads_its_logits_seven_times() -> None:
    loss = as_layer(cross_entropy("loss", 7, 10))
    assert (work(loss, "bytes_forward") + work(loss, "bytes_backward")) == 7 * 4 * 70 + 2 * 8 * 7 and work(
        loss, "calls_forward"
    ) == 2


def test_gradients_become_ready_from_the_last_layer_to_the_first() -> None:
    layers, parameters = lay_out([linear("a", 1, 2, 3).named("x."), normalisation("b", 1, 3)])
    assert [entry.name for entry in layers] == ["x.a", "b"]
    assert [p.name for p in parameters] == ["x.a.weight", "x.a.bias", "b.weight", "b.bias"]
    assert [p.name for p in sorted(parameters, key=lambda p: p.ready)] == ["b.weight", "b.bias", "x.a.bias", "x.a.weight"]
    assert [p.layer for p in parameters] == [0, 0, 1, 1]
    assert all(isinstance(operation, Operation) for entry in layers for operation in entry.operations)


def test_sums_of_gradients_are_a_kernel_each() -> None:
    plain, summed = (as_layer(linear("a", 4, 2, 3, sums=sums)) for sums in (0, 2))
    assert work(summed, "calls_backward") - work(plain, "calls_backward") == 2
    assert work(summed, "bytes_backward") - work(plain, "bytes_backward") == pytest.approx(2 * 3 * 4 * 4 * 2)
    assert as_layer(linear("a", 4, 2, 3, kept=False)).activation_bytes == 0
