"""How the elements of one format travel: encoded for their owner, summed by it, decoded by everyone.

A bucket is one or two streams: the compressed elements and those that stay dense. An exchange moves messages and knows no
format; a stream knows its format and no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.codecs import bits, ternary
from paceline.strategy import BF16, FP32, TERNARY, Format

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Stream(Protocol):
    """``count`` elements in one format. ``out`` (fp32) holds the mean over the workers after every ``decode``."""

    format: Format
    count: int
    out: F32

    def encode(self, start: int, stop: int) -> Bytes:
        """The push message of elements ``start`` to ``stop``."""

    def reduce(self, messages: Sequence[Bytes], count: int) -> Bytes:
        """The pull message for ``count`` elements, from every rank's push message in rank order."""

    def decode(self, message: Bytes, start: int, stop: int) -> None:
        """Write the mean of elements ``start`` to ``stop`` into ``out``."""


class Fp32Stream:
    """Dense: fp32 both ways, summed in rank order, so the result does not depend on how elements are cut into shards."""

    format = FP32

    def __init__(self, values: F32) -> None:
        self.values, self.count, self.out = values, values.size, np.empty_like(values)

    def encode(self, start: int, stop: int) -> Bytes:
        return self.values[start:stop].view(np.uint8)

    def reduce(self, messages: Sequence[Bytes], count: int) -> Bytes:
        total = messages[0].view(np.float32).copy()
        for message in messages[1:]:
            total += message.view(np.float32)
        total /= np.float32(len(messages))
        return total.view(np.uint8)

    def decode(self, message: Bytes, start: int, stop: int) -> None:
        self.out[start:stop] = message.view(np.float32)


class Bf16Stream:
    """Rounded to bfloat16 on the push and again on the pull; the owner sums in fp32."""

    format = BF16

    def __init__(self, values: F32) -> None:
        self.values, self.count, self.out = values, values.size, np.empty_like(values)

    def encode(self, start: int, stop: int) -> Bytes:
        return _to_bf16(self.values[start:stop])

    def reduce(self, messages: Sequence[Bytes], count: int) -> Bytes:
        total = np.zeros(count, np.float32)
        for message in messages:
            total += _from_bf16(message)
        return _to_bf16(total / np.float32(len(messages)))

    def decode(self, message: Bytes, start: int, stop: int) -> None:
        self.out[start:stop] = _from_bf16(message)


class TernaryStream:
    """TernGrad: two bits on the push, the exact integer sum on the pull (no second quantisation).

    Args:
        planes: bit planes (nonzero, negative) of every element, tensors one after the other.
        scales: the shared scaler of each tensor, fp32; ``sizes`` its elements.
    """

    format = TERNARY

    def __init__(self, planes: tuple[bits.Plane, bits.Plane], scales: F32, sizes: Sequence[int], workers: int) -> None:
        self.planes, self.workers = planes, workers
        self.count = planes[0].size
        self.units = np.repeat(scales / np.float32(workers), sizes)
        self.out = np.empty(self.count, np.float32)

    def encode(self, start: int, stop: int) -> Bytes:
        return bits.pack_planes([plane[start:stop] for plane in self.planes])

    def reduce(self, messages: Sequence[Bytes], count: int) -> Bytes:
        total: np.ndarray = np.zeros(count, np.int8) if len(messages) < 128 else np.zeros(count, np.int32)
        for message in messages:
            total += ternary.unpack_codes(message, count)
        return ternary.pack_sum(total, self.workers)

    def decode(self, message: Bytes, start: int, stop: int) -> None:
        codes = ternary.unpack_sum(message, stop - start, self.workers).astype(np.float32)
        np.multiply(codes, self.units[start:stop], out=self.out[start:stop])


def _to_bf16(values: F32) -> Bytes:
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16).view(torch.uint8).numpy()


def _from_bf16(message: Bytes) -> F32:
    # An offset inside a message may be odd; torch wants bf16 aligned.
    return torch.from_numpy(message.copy()).view(torch.bfloat16).to(torch.float32).numpy()
