"""GPU functions of inceptionn and inceptionn-scaled, from values to tags and lanes and back.

The constexpr SCALED chooses between the two. Powers of two multiply in fp64, where all of it is exact, as in the reference.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def power(exponent):
    """Return 2**exponent as fp64, for exponents from -1022 to 1023."""
    return ((1023 + exponent).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _exponent(peak):
    """Return the exponent of ``frexp`` of a finite magnitude (as int32 bits), normal or subnormal; -32768 for 0."""
    small = peak.to(tl.float32).to(tl.int32, bitcast=True)  # the mantissa of a subnormal number as a number
    e = tl.where(peak >= 1 << 23, (peak >> 23) - 126, (small >> 23) - 126 - 149)
    return tl.where(peak == 0, -32768, e)


@triton.jit
def tag_of(magnitude, k):
    """Return ``Inceptionn.tags`` of magnitudes given as int32 bits."""
    least = 127 - k
    middle = least + (k + 1) // 2
    reached = (magnitude >= least << 23).to(tl.int32) + (magnitude >= middle << 23).to(tl.int32)
    return reached + (magnitude >= 127 << 23).to(tl.int32)


@triton.jit
def coded(values, k, SCALED: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr):
    """Return tags, lanes (int32, uint32) and, if SCALED, the exponent of each value's block (else 0)."""
    bits = values.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    sign = values.to(tl.uint32, bitcast=True) & 0x80000000
    if SCALED:
        peak = tl.max(magnitude.reshape(TILE // BLOCK, BLOCK), axis=1)
        e = _exponent(tl.where(peak >= 0x7F800000, 0, peak))  # what is no number is refused
        e = tl.broadcast_to(e[:, None], (TILE // BLOCK, BLOCK)).reshape(TILE)
        finite = tl.where(magnitude >= 0x7F800000, 0.0, tl.abs(values)).to(tl.float64)
        exact = tl.where(e == -32768, 0.0, finite * power(tl.where(e == -32768, 0, k - e)))
        # Adding and taking off 2**52 rounds to the nearest integer, half to even.
        small = (exact + 4503599627370496.0 - 4503599627370496.0).to(tl.int32)
        large = (exact * power(15 - k) + 4503599627370496.0 - 4503599627370496.0).to(tl.int32)
        large = tl.minimum(large, 32767)
        tags = (small > 0).to(tl.int32) + (small > 127).to(tl.int32)
        lanes = tl.where(tags == 2, large << 16, small << 24).to(tl.uint32, bitcast=True) | sign
    else:
        e = tl.zeros((TILE,), tl.int32)
        tags = tag_of(magnitude, k)
        fixed = (tl.where(tags == 3, 0.0, tl.abs(values)) * 2147483648.0).to(tl.int32)  # cut
        lanes = tl.where(tags == 3, bits, fixed).to(tl.uint32, bitcast=True) | sign
    return tags, lanes, e


@triton.jit
def published(tags, lanes, k):
    """Return the values that tags and lanes stand for, and a mask of pairs that no encoder writes."""
    sign = lanes & 0x80000000
    fixed = (lanes & 0x7FFFFFFF).to(tl.int32).to(tl.float32) * 4.656612873077393e-10
    bits = tl.where(tags == 3, lanes, fixed.to(tl.uint32, bitcast=True) | sign)
    lost = (tags == 1) & (fixed == 0.0) & (k > 7)  # cut below the step of the one-byte magnitude
    wrong = tag_of((bits & 0x7FFFFFFF).to(tl.int32), k) != tl.where(lost, 0, tags)
    return bits.to(tl.float32, bitcast=True), wrong


@triton.jit
def scaled(tags, lanes, e, k):
    """Return the values of tags, lanes and block exponents (of nonempty blocks), and a mask of those that no encoder writes."""
    unsigned = (lanes & 0x7FFFFFFF).to(tl.int32)
    magnitude = tl.where(tags == 2, unsigned >> 16, unsigned >> 24)
    least = tl.where(tags == 2, 255 << (14 - k), tags)
    most = tl.where(tags == 2, 32767, tl.where(tags == 1, tl.minimum(127, 1 << k), 0))
    wrong = (magnitude < least) | (magnitude > most) | (tags == 3)
    exact = magnitude.to(tl.float64) * power(e - tl.where(tags == 2, 15, k))
    rounded = tl.minimum(exact, 3.4028234663852886e38).to(tl.float32)
    return (rounded.to(tl.uint32, bitcast=True) | (lanes & 0x80000000)).to(tl.float32, bitcast=True), wrong
