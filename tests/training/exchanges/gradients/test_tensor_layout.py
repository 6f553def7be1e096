"""Where the tensors of one exchange lie: compressed ones first, in the order of the model, whatever order they come in."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paceline.training.exchanges.gradients.tensor_layout import (
    GradientSlice,
    Layout,
    TensorSlice,
    TensorSpec,
    gather,
    numbered,
    scatter,
)

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=8)


def model(sizes: list[int]) -> list[TensorSpec]:
    return [TensorSpec(f"t{i}", (size,), sum(sizes[:i])) for i, size in enumerate(sizes)]


@given(SIZES, st.data())
def test_a_layout_does_not_depend_on_the_order(sizes: list[int], data: st.DataObject) -> None:
    tensors = model(sizes)
    dense = data.draw(st.sets(st.sampled_from([t.name for t in tensors])))
    layout = Layout(tensors, dense)
    other = Layout(data.draw(st.permutations(tensors)), dense)
    kept = [name for name in layout.names if name in dense]
    assert (layout.compressed, layout.total) == (sum(t.elements for t in tensors if t.name not in dense), sum(sizes))
    assert layout.names == (*(t.name for t in tensors if t.name not in dense), *kept)
    bounds = [(piece.start, piece.stop) for piece in layout.pieces]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])] and bounds[-1][1] == layout.total
    if all(sizes):  # tensors without elements share their place
        assert other.pieces == layout.pieces and other.first == layout.first


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8), st.sampled_from([1, 64, 256]))
def test_every_compressed_tensor_begins_with_a_block(sizes: list[int], block: int) -> None:
    layout = Layout(model(sizes), {"t0"}, block)
    packed = [piece for piece in layout.pieces if piece.stop <= layout.compressed and piece.start < piece.stop]
    assert all(start % block == 0 for _, start, _ in packed)
    assert {t.name for t, *_ in packed} >= {t.name for t in model(sizes) if t.name != "t0" and 4 * t.elements >= max(block, 4)}
    assert layout.compressed == sum(-(-t.elements // block) * block for t, *_ in packed)
    assert layout.total - layout.compressed == sum(sizes) - sum(t.elements for t, *_ in packed)
    covered = sorted([(start, stop) for _, start, stop in packed] + layout.gaps)
    assert [start for start, _ in covered] == [0, *(stop for _, stop in covered[:-1])][: len(covered)]
    first, last = layout.compressed // 3, layout.compressed // 2
    inside = sum(stop - start for start, stop in layout.gaps_in(first, last))
    assert inside + sum(stop - start for _, start, stop in layout.packed(first, last)) == last - first


@given(SIZES, st.integers(0, 40), st.integers(0, 40))
def test_a_window_has_every_compressed_element_once(sizes: list[int], start: int, length: int) -> None:
    layout = Layout(model(sizes), {"t0"})
    stop = start + length
    pieces = list(layout.packed(start, stop))
    assert sum(end - begin for _, begin, end in pieces) == max(0, min(stop, layout.compressed) - min(start, layout.compressed))
    assert all(0 <= begin < end <= length and tensor.name != "t0" for tensor, begin, end in pieces)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@given(SIZES, st.sampled_from([1.0, 2.0, 8.0]))
def test_scatter_is_the_inverse_of_gather(dtype: torch.dtype, sizes: list[int], divisor: float) -> None:
    layout = Layout(model(sizes), {"t1"})
    gradients = {t.name: torch.arange(1.0, t.elements + 1, dtype=dtype) for t in model(sizes)}
    before = {name: gradient.clone() for name, gradient in gradients.items()}
    for parts in layout.parts(gradients):
        flat = torch.empty(sum(stop - start for (_, start, stop), _ in parts))
        gather(parts, flat)
        scatter(flat * divisor, parts, divisor)
    assert all(torch.equal(gradients[name], value) for name, value in before.items())


def test_units_multiply_instead() -> None:
    gradients = {"t0": torch.zeros(2), "t1": torch.zeros(3)}
    parts, dense = Layout(model([2, 3]), ()).parts(gradients)
    scatter(torch.ones(5), parts, 4.0, units=(2.0, 8.0))
    assert not dense and gradients["t0"].tolist() == [0.5] * 2 and gradients["t1"].tolist() == [2.0] * 3


def test_a_gradient_that_lies_in_place_is_not_copied() -> None:
    flat = torch.arange(4.0)
    gather([GradientSlice(TensorSlice(TensorSpec("t", (2,), 0), 1, 3), flat[1:3])], flat)
    assert flat.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_tensors_are_numbered_one_after_the_other() -> None:
    layers = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1, bias=False))
    tensors = numbered(layers.named_parameters())
    assert [(t.name, t.shape, t.offset, t.elements) for t in tensors.values()] == [
        ("0.weight", (2, 3), 0, 6),
        ("0.bias", (2,), 6, 2),
        ("1.weight", (1, 2), 8, 2),
    ]
    assert list(tensors) == [id(p) for p in layers.parameters()]
