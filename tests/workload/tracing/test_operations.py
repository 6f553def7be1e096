"""What one operation costs: the FLOPs that torch counts, products by hand, and bytes that must move."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from paceline.workload import Workload
from paceline.workload.tracing.fused import fused_kernels
from paceline.workload.tracing.operations import Kernel, kernels, tensor_bytes, tensors_in, traffic
from traced_layers import layer, products, work


def test_embedding_reads_rows_not_the_table() -> None:
    table = Workload.trace(lambda: nn.Embedding(1000, 8), torch.zeros((1, 4), dtype=torch.int64))
    (embedding,) = (entry for entry in table.layers if entry.kind == "Embedding")
    assert embedding.flops_forward == embedding.flops_backward == 0
    assert work(embedding, "bytes_forward") == 4 * 8 + 2 * 4 * 8 * 4  # four int64 indices; rows read and written
    assert work(embedding, "fixed_bytes_forward") == 0
    assert work(embedding, "fixed_bytes_backward") == 1000 * 8 * 4  # a dense gradient
    assert table.input_bytes == 4 * 8


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv1d(4, 6, 3, padding=1), (4, 9)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=(1, 0), dilation=(1, 2)), (4, 11, 13)),
        (nn.Conv3d(2, 3, 3), (2, 5, 5, 5)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (4, 5, 5)),
        (nn.LSTM(4, 5, batch_first=True), (7, 4)),
        (nn.GRU(4, 5, 3, batch_first=True, bidirectional=True, dropout=0.2), (7, 4)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), (5, 8)),
    ],
)
def test_flops_are_those_that_torch_counts(module: nn.Module, shape: tuple[int, ...]) -> None:
    given = torch.empty(2, *shape)
    table = Workload.trace(module, given)
    # Torch counts a recurrent layer by its steps, not as the one kernel that a GPU has for it.
    kernels = nullcontext() if isinstance(module, nn.RNNBase) else fused_kernels()
    with torch.device("meta"), kernels, warnings.catch_warnings():
        module, counter = module.to("meta").train(), FlopCounterMode(display=False)
        with counter:
            output = module(given.to("meta"))
            (output[0] if isinstance(output, tuple) else output).mean().backward()
    assert 2 * table.flops_per_sample == counter.get_total_flops() > 0
    assert table.coverage.share == 1.0


def test_grouped_convolution_costs_a_group_each() -> None:
    table = Workload.trace(nn.Sequential(nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4)), torch.empty(1, 8, 6, 6))
    # The input needs no gradient here: the rectifier has no parameters.
    assert layer(table, "1").flops_forward == layer(table, "1").flops_backward == 2 * 16 * 8 * 2 * 9


def test_products_of_a_linear_layer() -> None:
    table = Workload.trace(lambda: nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 30)), torch.empty(1, 7, 10))
    forward, of_input, of_weight = (1, 7, 30, 20, "m"), (1, 7, 20, 30, "m"), (1, 30, 20, 7, "k")
    assert products(table, "1") == [forward, of_input, of_weight]
    assert products(table, "0") == [(1, 7, 20, 10, "m"), (1, 20, 10, 7, "k")]
    assert [o.kind for o in layer(table, "1").operations][-1] == "memory"  # the sum of the bias gradients


@pytest.mark.parametrize(
    ("module", "forward", "of_input", "of_weight"),
    [
        (nn.Conv2d(4, 6, 3, padding=1), (1, 64, 6, 36, "m"), (1, 64, 4, 54, "m"), (1, 6, 36, 64, "k")),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), (1, 16, 6, 36, "m"), (1, 64, 4, 13.5, "m"), (1, 6, 36, 16, "k")),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 64, 1, 9, "m"), (4, 64, 1, 9, "m"), (4, 1, 9, 64, "k")),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (1, 256, 6, 4, "m"), (1, 64, 4, 24, "m"), (1, 4, 24, 64, "k")),
    ],
)
def test_products_of_a_convolution(
    module: nn.Module, forward: tuple[object, ...], of_input: tuple[object, ...], of_weight: tuple[object, ...]
) -> None:
    """Worked out by hand for 8x8 images; a stride leaves the input's gradient a part of the window a position."""
    table = Workload.trace(nn.Sequential(nn.Conv2d(3, 4, 1), module), torch.empty(1, 3, 8, 8))
    assert products(table, "1") == [forward, of_input, of_weight]
    convolutions = [o for o in layer(table, "1").operations if o.kind == "conv"]
    assert {o.window for o in convolutions} == {9 if module.kernel_size == (3, 3) else 4}
    gradient = 4 * prod_of_output(module)
    assert convolutions[1].bytes == 4 * 4 * 64 + gradient / 2 and convolutions[2].bytes == convolutions[1].bytes


def prod_of_output(module: nn.Module) -> int:
    return int(module(torch.empty(1, 4, 8, 8)).numel())


def test_an_expanded_dimension_has_one_element() -> None:
    assert tensor_bytes(torch.empty(3, 5)) == 60 == tensor_bytes(torch.empty(3, 5).expand(7, 3, 5))
    assert tensor_bytes(torch.empty(0, 5)) == 0 and tensor_bytes(torch.empty(())) == 4
    assert tensor_bytes(torch.empty(6, dtype=torch.float16)) == 24, "tables are at fp32"
    assert tensor_bytes(torch.empty(6, dtype=torch.int64)) == 48 and tensor_bytes(torch.empty(6, dtype=torch.bool)) == 6


def test_what_only_writes_or_only_gathers_reads_no_more() -> None:
    table, rows = torch.empty(1000, 8), torch.empty(4, 8)
    assert traffic("aten.zeros_like", [table], [rows]) == 128
    assert traffic("aten.embedding", [table, torch.zeros(4, dtype=torch.int64)], [rows]) == 128 + 128 + 32
    assert traffic("aten.add", [rows, rows], [rows]) == 3 * 128


def test_each_tensor_is_named_once_wherever_it_is() -> None:
    a, b = torch.empty(1), torch.empty(1)
    assert [*tensors_in([a, (b, {"x": a, "y": [b]}), 3, None, "text"])] == [a, b]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_a_product_is_two_flops_for_each_multiply_add(batch: int, m: int, n: int, k: int) -> None:
    left, right, out = torch.empty(batch, m, k), torch.empty(batch, k, n), torch.empty(batch, m, n)
    (kernel,) = kernels("aten.bmm", [left, right], [left, right], [out], False)
    assert kernel == Kernel("matmul", 4.0 * batch * (m * k + k * n + m * n), 2.0 * batch * m * n * k, (batch, m, n, k))


def test_what_is_not_known_has_no_flops() -> None:
    data = torch.empty(4)
    assert kernels("aten.fft_fft", [data], [data], [data], False) == [Kernel("memory", 32.0, None)]
    assert kernels("aten.relu", [data], [data], [data], True) == [Kernel("memory", 32.0, 0.0)]
    waves = torch.empty(2, 2, dtype=torch.complex64)
    assert kernels("aten.mm", [waves, waves], [waves, waves], [waves], False)[0].flops is None
