"""bfloat16 with its exponents coded in fewer bits, without loss, as ZipCCL (arXiv 2604.27844) and UCCL-Zip (arXiv 2604.17172).

Gradients are rounded as by ``bf16``. Sign and mantissa are sent as they are, in a byte. The exponents of a block are few and
near to each other: each takes ``width`` bits, counted from the block's ``base``, and the highest code stands for all others,
whose exponents follow as bytes. Base and width are those with the fewest bytes, so a block never takes more than ``bf16`` and
four bytes. A Huffman code would be up to 5 % shorter on normal values, but these codes can be decoded in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.array_types import F32, Bytes
from paceline.codecs import counter
from paceline.codecs.container import PayloadError
from paceline.codecs.reference.bit_planes import pack, unpack
from paceline.codecs.reference.dense import Bf16

BLOCK = 1024
HEADER = 4
RAW = 8  # width of exponents that are sent as they are


@dataclass(frozen=True, kw_only=True)
class Bf16Coded(Bf16):
    """Codec of bfloat16 with coded exponents. A body is headers, signs with mantissas, codes, other exponents."""

    name: ClassVar[str] = "bf16-coded"
    code: ClassVar[int] = 12

    def body_range(self, count: int) -> tuple[int, int]:
        """Return the range of a body's bytes: from blocks of one exponent to exponents as they are."""
        least = HEADER * -(-count // BLOCK) + count
        return least, least + RAW * -(-count // 8)

    def encode_body(self, x: F32, body: Bytes, key: counter.Key, start: int) -> int:
        """Write the rounded values."""
        halves = np.empty(2 * x.size, np.uint8)
        super().encode_body(x, halves, key, start)
        words = halves.view("<u2")
        exponents = (words >> 7 & 0xFF).astype(np.uint8)
        headers, codes, others = [], [], []
        for first in range(0, x.size, BLOCK):
            part = exponents[first : first + BLOCK]
            base, width = best(part)
            coded, escaped = _coded(part, base, width)
            headers.append([base, width, escaped.size & 0xFF, escaped.size >> 8])
            codes.append(pack(coded, width) if width else coded[:0])
            others.append(escaped)
        parts = [np.array(headers, np.uint8).reshape(-1), (words >> 8 & 0x80 | words & 0x7F).astype(np.uint8), *codes, *others]
        written = np.concatenate(parts)
        body[: written.size] = written
        return int(written.size)

    def decode_body(self, body: Bytes, count: int) -> F32:
        """Decode the values. Raises PayloadError for a body whose parts do not fit together."""
        blocks = -(-count // BLOCK)
        headers = body[: HEADER * blocks].reshape(-1, HEADER).astype(np.int64)
        bases, widths, escapes = headers[:, 0], headers[:, 1], headers[:, 2] + 256 * headers[:, 3]
        sizes = np.minimum(BLOCK, count - BLOCK * np.arange(blocks))
        lengths = widths * -(-sizes // 8)
        codes_at = HEADER * blocks + count
        others_at = codes_at + int(lengths.sum())
        bare = (widths == 0) | (widths == RAW)
        if (widths > RAW).any() or (escapes[bare] > 0).any() or others_at + int(escapes.sum()) != body.size:
            raise PayloadError("the blocks' headers do not add up to the body")
        signs = body[HEADER * blocks : codes_at].astype(np.uint32)
        exponents = np.empty(count, np.uint32)
        for index in range(blocks):
            coded = body[codes_at : codes_at + lengths[index]]
            others = body[others_at : others_at + escapes[index]]
            codes_at, others_at = codes_at + int(lengths[index]), others_at + int(escapes[index])
            part = exponents[index * BLOCK : index * BLOCK + sizes[index]]
            part[:] = _decoded(coded, others, part.size, int(bases[index]), int(widths[index]))
        return ((signs & 0x80) << 24 | exponents << 23 | (signs & 0x7F) << 16).astype(np.uint32).view(np.float32)


def best(exponents: Bytes) -> tuple[int, int]:
    """Return the base and the width with which a block takes the fewest bytes; of equal ones the least width, then base."""
    counts = np.bincount(exponents, minlength=256)
    if counts.max() == exponents.size:
        return int(exponents[0]), 0
    planes, found = -(-exponents.size // 8), (0, RAW)
    least = RAW * planes
    for width in range(RAW - 1, 0, -1):
        window = (1 << width) - 1
        sums = np.cumsum(np.concatenate(([0], counts, np.zeros(window, np.int64))))
        inside = sums[window : window + 256] - sums[:256]
        base = int(inside.argmax())
        size = width * planes + exponents.size - int(inside[base])
        if size <= least:
            least, found = size, (base, width)
    return found


def _coded(exponents: Bytes, base: int, width: int) -> tuple[Bytes, Bytes]:
    """Return the codes, and the exponents that have none."""
    if width in (0, RAW):
        return exponents, exponents[:0]
    top = (1 << width) - 1
    above = exponents.astype(np.int64) - base
    codes = np.where(above < 0, top, np.minimum(above, top)).astype(np.uint8)
    return codes, exponents[codes == top]


def _decoded(coded: Bytes, others: Bytes, count: int, base: int, width: int) -> Bytes:
    """Return the exponents of a block. Raises PayloadError for codes that no encoder writes."""
    if width == 0:
        return np.full(count, base, np.uint8)
    codes = unpack(coded, count, width).astype(np.int64)
    if width == RAW:
        return codes.astype(np.uint8)
    escaped = codes == (1 << width) - 1
    if np.count_nonzero(escaped) != others.size or (np.where(escaped, 0, codes) + base > 255).any():
        raise PayloadError("codes of exponents that no encoder writes")
    exponents = (codes + base).astype(np.uint8)
    exponents[escaped] = others
    return exponents
