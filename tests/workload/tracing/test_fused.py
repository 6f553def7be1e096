"""Meta tensors take the kernels of a GPU: fused attention, dropout, recurrent layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.workload import Workload
from paceline.workload.tracing.fused import fused_kernels
from traced_layers import layer, products


def test_attention_is_traced_as_one_fused_kernel() -> None:
    heads, length, width = 2, 16, 8
    block = nn.MultiheadAttention(width, heads, batch_first=True)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(length, length, dtype=torch.bool).triu(1)
            result: Tensor = self.block(x, x, x, attn_mask=mask, need_weights=False)[0]
            return result

    table = Workload.trace(Masked, torch.empty(1, length, width))
    products = 2 * length * length * width  # over all heads
    projections = 2 * length * width * 4 * width
    assert layer(table, "block").flops_forward == projections + 2 * products
    assert layer(table, "block").activation_bytes < 4 * heads * length * length + 4 * 8 * length * width
    assert table.coverage.share == 1.0


def test_products_of_attention_and_of_steps_in_time() -> None:
    table = Workload.trace(nn.MultiheadAttention(8, 2, batch_first=True), (torch.empty(1, 16, 8),) * 3)
    assert (2, 16, 16, 4, "batch") in products(table, "(model)")
    steps = Workload.trace(nn.LSTM(4, 5, batch_first=True), torch.empty(1, 7, 4))
    (recurrent,) = (o for o in steps.layers[0].operations if o.k == 5 and not o.backward)
    assert (recurrent.calls, recurrent.m, recurrent.n, recurrent.grows) == (7, 1, 20, "m")


def test_dropout_is_one_kernel_and_none_where_nothing_drops() -> None:
    def calls(p: float, train: bool) -> int:
        seen: list[object] = []

        class Count(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.append(func)
                return func(*args, **(kwargs or {}))

        with fused_kernels(), torch.device("meta"):
            data = torch.empty(4, 4)
            with Count():
                assert nn.functional.dropout(data, p, train).shape == data.shape
        return len(seen)

    assert (calls(0.5, True), calls(0.0, True), calls(0.5, False)) == (1, 0, 0)


@pytest.mark.parametrize("shape", [(3, 5, 8), (2, 3, 5, 8)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_keeps_the_shape_of_its_queries(shape: tuple[int, ...], masked: bool) -> None:
    with fused_kernels(), torch.device("meta"):
        query, key = torch.empty(shape, requires_grad=True), torch.empty(*shape[:-2], 7, 8)
        mask = torch.ones(5, 7, dtype=torch.bool) if masked else None
        mixed = nn.functional.scaled_dot_product_attention(query, key, key, attn_mask=mask)
        mixed.sum().backward()
    assert mixed.shape == shape and query.grad is not None and query.grad.shape == shape


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("both", [False, True])
def test_a_recurrent_layer_has_the_shapes_that_it_has_on_a_cpu(kind: type[nn.RNNBase], both: bool) -> None:
    layer = kind(4, 5, 2, batch_first=True, bidirectional=both)
    output, state = layer(torch.zeros(3, 7, 4))
    with fused_kernels():
        there, kept = layer.to("meta")(torch.zeros(3, 7, 4, device="meta"))
        there.sum().backward()
    assert there.shape == output.shape
    pairs = zip(kept, state, strict=True) if kind is nn.LSTM else [(kept, state)]
    assert all(a.shape == b.shape for a, b in pairs)
    assert all(p.grad is not None and p.grad.shape == p.shape for p in layer.parameters())


def test_a_cell_of_an_lstm_is_two_products_and_a_kernel() -> None:
    cell = nn.LSTMCell(4, 5)
    state = cell(torch.zeros(3, 4))
    with fused_kernels():
        there = cell.to("meta")(torch.zeros(3, 4, device="meta"))
        there[0].sum().backward()
    assert [part.shape for part in there] == [part.shape for part in state]
    assert all(p.grad is not None and p.grad.shape == p.shape for p in cell.parameters())


def test_afterwards_torch_is_as_before() -> None:
    data = torch.empty(2, 3, 5, 8, device="meta")
    before = torch._C._dispatch_has_kernel_for_dispatch_key("aten::dropout", "AutogradMeta")
    with fused_kernels():
        assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::dropout", "AutogradMeta")
    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::dropout", "AutogradMeta") == before
    assert nn.functional.scaled_dot_product_attention(data, data, data).shape == data.shape
