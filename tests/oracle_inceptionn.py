"""INCEPTIONN a second time, a float at a time and a bit at a time; nothing here comes from ``paceline``."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from math import ceil

ZERO, BYTE, HALF, WORD = 0b00, 0b01, 0b10, 0b11
WIDTH = {ZERO: 0, BYTE: 8, HALF: 16, WORD: 32}
CHUNK, BLOCK = 16384, 1024


def bits_of(f: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", f))[0])


def float_of(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def compress(bits: int, k: int) -> tuple[int, int]:
    """Algorithm 2 on one float's bits: tag and v. EB = 127 - k."""
    s, e, m = bits >> 31, bits >> 23 & 0xFF, bits & 0x7FFFFF
    eb = 127 - k
    if e >= 127:
        return WORD, bits
    if e < eb:
        return ZERO, 0
    n = 127 - e
    shifted = ((1 << 23) | m) >> n
    if e >= eb + ceil((127 - eb) / 2):
        return HALF, s << 15 | (shifted >> 8 & 0x7FFF)
    return BYTE, s << 7 | (shifted >> 16 & 0x7F)


def decompress(tag: int, v: int) -> int:
    """Algorithm 3, with trap 1 decided: a magnitude without a one is zero, and keeps its sign."""
    if tag == WORD:
        return v
    if tag == ZERO:
        return 0
    width = WIDTH[tag] - 1
    s, magnitude = v >> width, v & (1 << width) - 1
    if magnitude == 0:
        return s << 31
    n = next(i for i in range(1, width + 1) if magnitude >> (width - i) & 1)
    mantissa = magnitude << n & (1 << width) - 1  # the first one leaves at the top
    return s << 31 | (127 - n) << 23 | mantissa << (23 - width)


def stream(values: Sequence[tuple[int, int]]) -> bytes:
    """Groups of eight: tag vector in the low 16 bits, lane 0's tag lowest; then the payloads, lane 0 first, low bit first."""
    out = b""
    for first in range(0, len(values), 8):
        lanes = values[first : first + 8]
        whole, at = sum(tag << 2 * i for i, (tag, _) in enumerate(lanes)), 16
        for tag, v in lanes:
            whole |= v << at
            at += WIDTH[tag]
        out += whole.to_bytes(at // 8, "little")
    return out


def body(values: Sequence[int], k: int) -> bytes:
    """The body of fp32 bits: a directory of chunk lengths, then the chunks."""
    chunks = [stream([compress(b, k) for b in values[i : i + CHUNK]]) for i in range(0, len(values), CHUNK)]
    return b"".join(len(c).to_bytes(4, "little") for c in chunks) + b"".join(chunks)


def half_even(x: Fraction) -> int:
    return round(x)  # Python rounds a Fraction half to even


def exponent(values: Sequence[float]) -> int | None:
    """e of the smallest power of two above every magnitude; None when all are zero."""
    peak = max(abs(Fraction(v)) for v in values)
    if peak == 0:
        return None
    e = -148
    while Fraction(2) ** e <= peak:
        e += 1
    return e


def quantise(f: float, e: int, k: int) -> tuple[int, int]:
    """One value of ``inceptionn-scaled``: tag and payload."""
    y, s = abs(Fraction(f)) / Fraction(2) ** e, int(f < 0)
    small = half_even(y * 2**k)
    if small == 0:
        return ZERO, 0
    if small <= 127:
        return BYTE, s << 7 | small
    return HALF, s << 15 | min(half_even(y * 2**15), 32767)


def value(tag: int, v: int, e: int, k: int) -> Fraction:
    """What a payload of ``inceptionn-scaled`` stands for."""
    if tag == ZERO:
        return Fraction(0)
    width = WIDTH[tag] - 1
    magnitude = (v & (1 << width) - 1) * Fraction(2) ** (e - (k if tag == BYTE else 15))
    most = Fraction(float_of(0x7F7FFFFF))
    return (-1 if v >> width else 1) * min(magnitude, most)


def scaled_body(values: Sequence[float], k: int) -> tuple[bytes, list[Fraction]]:
    """The body of ``inceptionn-scaled``, and the values it holds."""
    directory, exponents, groups = b"", b"", b""
    decoded: list[Fraction] = []
    for first in range(0, len(values), CHUNK):
        chunk: list[tuple[int, int]] = []
        for at in range(first, min(first + CHUNK, len(values)), BLOCK):
            block = values[at : min(at + BLOCK, first + CHUNK, len(values))]
            e = exponent(block)
            exponents += struct.pack("<h", -32768 if e is None else e)
            codes = [] if e is None else [quantise(f, e, k) for f in block]
            decoded += [Fraction(0)] * len(block) if e is None else [value(*c, e, k) for c in codes]
            chunk += codes
        part = stream(chunk)
        directory += struct.pack("<I", len(part))
        groups += part
    return directory + exponents + groups, decoded
