"""Gradients without compression, and rounded to bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.array_types import F32, Bytes
from paceline.codecs import counter
from paceline.codecs.codec import Codec


@dataclass(frozen=True, kw_only=True)
class Fp32(Codec):
    """Codec of uncompressed little-endian fp32."""

    name: ClassVar[str] = "fp32"
    code: ClassVar[int] = 1

    def body_range(self, count: int) -> tuple[int, int]:
        """Return the bytes of a body: four per element."""
        return 4 * count, 4 * count

    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Copy the values."""
        body.view("<f4")[:] = x
        return body.size

    def decode_body(self, body: Bytes, count: int) -> F32:
        """Return a view of the body as fp32."""
        return np.frombuffer(body.data, "<f4")


@dataclass(frozen=True, kw_only=True)
class Bf16(Codec):
    """Upper half of fp32, rounded to nearest even (Kalamkar et al. 2019, arXiv 1905.12322). Every NaN becomes 0x7fc0."""

    name: ClassVar[str] = "bf16"
    code: ClassVar[int] = 2

    def body_range(self, count: int) -> tuple[int, int]:
        """Return the bytes of a body: two per element."""
        return 2 * count, 2 * count

    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Round to nearest even by adding half of the last kept bit, or slightly less for an even value, and truncating."""
        bits = x.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
        body.view("<u2")[:] = np.where(np.isnan(x), np.uint32(0x7FC0), rounded)
        return body.size

    def decode_body(self, body: Bytes, count: int) -> F32:
        """Decode with a lower half of zero."""
        return (np.frombuffer(body.data, "<u2").astype(np.uint32) << 16).view(np.float32)
