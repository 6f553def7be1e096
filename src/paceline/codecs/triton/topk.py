"""Codec topk on the GPU: selection, compaction and scattering by PyTorch's own kernels."""

from __future__ import annotations

import torch

from paceline.codecs import counter
from paceline.codecs.reference.topk import TopK
from paceline.codecs.triton.launch import GATE, REFUSED

_INFINITY = 0x7F800000


def serves(codec: TopK) -> bool:
    """Return whether elements are the largest of all. The largest of each chunk are selected on the host."""
    return not codec.chunk


def encode(codec: TopK, x: torch.Tensor, body: torch.Tensor, key: counter.Key, start: int, state: torch.Tensor) -> int:
    """Encode the largest elements; see ``triton.Kernels``."""
    at = codec.layout(x.shape[0])
    if at.kept == 0:
        return body.shape[0]
    bits = x.view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    state[REFUSED] = magnitude.amax() >= _INFINITY
    threshold = magnitude.topk(at.kept, sorted=False).values.amin()
    chosen, equal = magnitude > threshold, magnitude == threshold
    chosen |= equal & (equal.cumsum(0) <= at.kept - chosen.sum())  # of equal ones the first
    index = _places(chosen, at.kept)
    places = torch.arange(at.kept, device=x.device) + (index >> at.low_bits) if at.low_bits else index
    marks = torch.zeros(8 * at.marks, dtype=torch.uint8, device=x.device)
    marks[places] = 1
    values = _bf16(bits[index]) if codec.value_bits == 16 else bits[index]
    parts = [(marks.view(-1, 8) << _shifts(x)).sum(1, dtype=torch.uint8), _bytes(values, codec.value_bits)]
    if at.low_bits:
        parts.append(_bytes(index & (1 << at.low_bits) - 1, at.low_bits))
    torch.cat(parts, out=body)
    return body.shape[0]


def decode(codec: TopK, body: torch.Tensor, out: torch.Tensor, mode: int, state: torch.Tensor) -> None:
    """Decode the sent elements; see ``triton.Kernels``. No index points outside ``out``, whatever the body contains."""
    n = out.shape[0]
    at = codec.layout(n)
    sent = torch.zeros(n, dtype=torch.bool, device=out.device)
    if at.kept == 0:
        state[REFUSED] |= body.any()
        values = out.new_zeros(n)
    else:
        marks = (body[: at.marks].view(-1, 1) >> _shifts(body) & 1).view(-1)
        words = _words(body[at.marks : at.marks + at.values], codec.value_bits) << 32 - codec.value_bits
        order = marks.cumsum(0)  # of a one: how many there are up to it
        wrong = (order[-1] != at.kept) | marks[at.mark_bits :].any()
        index = _places(marks.bool(), at.kept, order)
        if at.low_bits:
            high = index - torch.arange(at.kept, device=body.device)
            index = (high << at.low_bits) + _words(body[at.marks + at.values :], at.low_bits).long()
            wrong |= (index.diff() <= 0).any()
        wrong |= (index[-1] >= n) | ((words & 0x7FFFFFFF) >= _INFINITY).any()
        state[REFUSED] |= wrong
        values = out.new_zeros(n)
        index = index.clamp(0, n - 1)
        values.scatter_(0, index, words.view(torch.float32))
        sent[index] = True
    opened = state[GATE] == 0
    added = out + values if mode == 1 else out - values
    # Elements that were not sent stay: adding 0 would turn a -0 there into +0.
    added = torch.where(sent, added, out)
    out.copy_(torch.where(opened, values if mode == 0 else added, out))


def _places(chosen: torch.Tensor, count: int, order: torch.Tensor | None = None) -> torch.Tensor:
    """Return the indices of the first ``count`` true elements. Unlike ``nonzero`` it does not wait for their number.

    Args:
        order: ``chosen.cumsum(0)`` if it is known.
    """
    order = chosen.cumsum(0) if order is None else order
    # Others fall into a last place that nothing reads.
    target = torch.where(chosen, order - 1, count).clamp_(max=count)
    places = torch.zeros(count + 1, dtype=torch.int64, device=chosen.device)
    return places.scatter_(0, target, torch.arange(chosen.shape[0], device=chosen.device))[:count]


def _bf16(bits: torch.Tensor) -> torch.Tensor:
    """Return the upper halves (int32) of finite values, rounded to nearest even, but never up to infinity."""
    magnitude = bits & 0x7FFFFFFF
    # Below infinity's bits the sum stays below 2**31.
    rounded = (magnitude + 0x7FFF + (magnitude >> 16 & 1) >> 16).clamp(max=0x7F7F)
    return rounded | (bits >> 31 & 1) << 15


def _shifts(like: torch.Tensor) -> torch.Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)


def _bytes(words: torch.Tensor, width: int) -> torch.Tensor:
    """Return the low ``width`` bits of integers, little-endian."""
    kind = {8: torch.uint8, 16: torch.int16, 32: torch.int32}[width]
    if width == 16:  # into the range of a signed integer, with the same bits
        words = (words & 0xFFFF ^ 0x8000) - 0x8000
    return words.to(kind).view(torch.uint8)


def _words(data: torch.Tensor, width: int) -> torch.Tensor:
    """Return little-endian integers of ``width`` bits as int32. A clone is made if a view of larger words would be
    unaligned."""
    if width == 8:
        return data.int()
    if width == 32:
        return data.clone().view(torch.int32)
    return data.clone().view(torch.int16).int() & 0xFFFF
