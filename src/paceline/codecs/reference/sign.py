"""One bit per element and the mean magnitude of each block: EF-SignSGD's compressor (Karimireddy et al. 2019, section 4), by
blocks, as 1-bit SGD does by columns (Seide et al. 2014).

It is biased; the caller feeds the error back. It keeps the share |x|_1**2 / (n |x|_2**2) of a block's energy (Lemma 8 there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import F32, Bytes
from paceline.codecs import counter
from paceline.codecs.container import PayloadError
from paceline.codecs.reference.blocks import Blocked, lifts, peaks, tiles


@dataclass(frozen=True, kw_only=True)
class Sign(Blocked):
    """One bit per element: the sign times the block's mean magnitude. Zero has a sign too, so it decodes to plus or minus that
    mean. Error feedback corrects this."""

    name: ClassVar[str] = "sign"
    code: ClassVar[int] = 9
    pads_with_mean: ClassVar[bool] = True

    def code_bytes(self, count: int) -> int:
        """Return the bytes of the codes: one bit per element."""
        return -(-count // 8)

    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Write the means, then the sign bits. Raises ValueError for NaN and infinity."""
        scales, planes = self.split(body, x.size)
        for tile in tiles(x, self.block):
            scales[tile.blocks] = mean_magnitudes(tile.values)
        planes[:] = np.packbits(np.signbit(x), bitorder="little")
        return body.size

    def decode_body(self, body: Bytes, count: int) -> F32:
        """Decode the mean with the sign bit of each element."""
        scales, planes = self.split(body, count)
        mean = self.checked_scales(scales)
        if count % 8 and planes[-1] >> count % 8:
            raise PayloadError("the padding behind the last sign is not zero")
        out = np.unpackbits(planes, count=count, bitorder="little").astype(np.uint32) << np.uint32(31)
        for tile in tiles(out.view(np.float32), self.block):
            tile.values.view(np.uint32)[:] |= mean[tile.blocks, None].view(np.uint32)
        return out.view(np.float32)


def mean_magnitudes(values: F32) -> F32:
    """Return mean |x| of each row, from magnitudes truncated to 24 bits of the largest. Such sums do not depend on the order.

    The cut takes at most 2**-23 of the largest magnitude from the mean; equal magnitudes lose nothing.
    """
    peak = peaks(values)
    lift = lifts(peak)
    exponent = ((peak * lift).view(np.uint32) >> 23).astype(np.int32)
    # 2**24 over the power of two above the peak, by its exponent field; a block of zeros takes any.
    unit = (277 - np.maximum(exponent, 23) << 23).view(np.float32)
    whole: NDArray[np.int64] = (np.abs(values) * lift[:, None] * unit[:, None]).astype(np.int64).sum(axis=1)
    mean: F32 = (whole / float(values.shape[1]) / (unit.astype(np.float64) * lift)).astype(np.float32)
    return mean
