"""Where elements of a stream over several gradients lie, and which gradients it takes."""

from __future__ import annotations

import torch

from paceline import codecs
from paceline.codecs.counter import Key
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice, TensorSlice, TensorSpec
from paceline.training.exchanges.streams import parts_stream
from paceline.training.exchanges.streams.integer_stream import IntegerStream


def slices(*gradients: torch.Tensor) -> list[GradientSlice]:
    parts, at = [], 0
    for index, gradient in enumerate(gradients):
        spec = TensorSpec(f"t{index}", tuple(gradient.shape), at)
        parts.append(GradientSlice(TensorSlice(spec, at, at + gradient.numel()), gradient))
        at += gradient.numel()
    return parts


def test_elements_are_the_gradients_own_memory():
    a, b, c = (torch.full((size,), float(size)) for size in (3, 5, 4))
    stream = IntegerStream(codecs.get("int4"), slices(a, b, c), Key(1, 2), 0, 1)
    assert stream.count == 12
    pieces, here = stream._pieces(2, 9)
    assert [piece.tolist() for piece in pieces] == [[3.0], [5.0] * 5, [4.0]] and here == slice(0, 3)
    pieces[1][0] = 9
    assert b[0] == 9
    pieces, here = stream._pieces(3, 8)
    assert [piece.size for piece in pieces] == [5] and here == slice(1, 2)


def test_contiguous_fp32_on_the_host_lies_flat():
    assert parts_stream.lie_flat(slices(torch.zeros(4), torch.zeros(2)))
    for other in (torch.zeros(4, dtype=torch.float16), torch.zeros(8)[::2], torch.zeros(4, device="meta")):
        assert not parts_stream.lie_flat(slices(torch.zeros(4), other))


def test_only_much_is_written_past_the_caches():
    small = slices(torch.zeros(64))
    large = slices(torch.empty(parts_stream.PAST_CACHES // 4 - 64), torch.empty(64))
    assert [IntegerStream(codecs.get("int4"), p, Key(1, 2), 0, 1)._past_caches for p in (small, large)] == [False, True]
