"""Combinational stages of the codec for one value, between the registers of the engines.

Both formats measure a magnitude in units of 2^(e-15) of a scale 2^e. The published format has the scale 1 (e = 0) and cuts;
``inceptionn-scaled`` has the scale of the value's block and rounds to nearest even (docs/wire-format.md).
"""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Value
from amaranth.lib import data

from paceline.nic.engine.stream import named

EMPTY = -(1 << 15)
"""Exponent of a block whose values are all zero."""
LEAST_EXPONENT, MOST_EXPONENT = -148, 128
ZERO, BYTE, HALF, WORD = range(4)
"""The tags: payloads of 0, 1, 2 and 4 bytes."""
_MOST = 0x7F7FFFFF  # bits of the largest fp32 number


class FrameFormat(data.Struct):
    """Format of a frame: the bound 2^-k, and True for scaled blocks."""

    k: 4
    scaled: 1


def payload_bytes(tag: Value) -> Value:
    """Return the bytes of a tag's payload: 0, 1, 2 or 4."""
    return Cat(tag == BYTE, tag == HALF, tag == WORD)


def faithful_tag(exponent: Value, k: Value) -> Value:
    """Return the tag of a value from its exponent field, by algorithm 2."""
    smallest = 127 - k
    half = smallest + ((k + 1) >> 1)
    one = exponent >= 127
    return Mux(one, WORD, Mux(exponent >= half, HALF, Mux(exponent >= smallest, BYTE, ZERO)))


@dataclass
class Shifted:
    """Magnitude in units of 2^(e-15), 16 bits, with the next lower bit and a flag for lower ones."""

    whole: Value
    half: Value
    below: Value


def shift_amount(exponent: Value, scale: Value) -> Value:
    """Return the right shift of a significand, 0 to 63; from 40 on it becomes 0.

    Args:
        exponent: the field of the value. Above ``scale`` it has no meaning: the value keeps all bits. scale: e + 150.
    """
    amount = scale - Mux(exponent == 0, 1, exponent)
    return amount[:6] | amount[6:9].any().replicate(6)


def shifted(m: Module, significand: Value, amount: Value) -> Shifted:
    """Return the significand (24 bits) shifted down by ``amount``. Bits shifted out are collected, level by level."""
    value = Cat(Const(0, 15 + 1), significand)  # bit 0 is the half below the last place
    below: Value = Const(0)
    for level in range(6):
        step = 1 << level
        lost = value[:step].any()
        below = below | (amount[level] & lost)
        value = named(m, Mux(amount[level], value >> step, value), f"shifted{level}")
    return Shifted(value[1:17], value[0], below)


@dataclass
class Halved:
    """Magnitude truncated to units of 2^(e-15) and of 2^(e-k), and whether rounding to nearest even adds one to each."""

    large: Value
    large_up: Value
    small: Value
    small_up: Value


def halved(k: Value, magnitude: Shifted) -> Halved:
    """Return both truncations of a shifted magnitude."""
    whole = magnitude.whole
    drop = (15 - k)[:4]  # from units of 2^(e-15) to 2^(e-k)
    widened = Cat(magnitude.half, whole)
    small = (whole >> drop)[:16]
    half = (widened >> drop)[0]
    below = (widened[:15] & ((1 << drop) - 1)[:15]).any() | magnitude.below
    return Halved(whole, magnitude.half & (magnitude.below | whole[0]), small, half & (below | small[0]))


def coded(scaled: Value, value: Value, tag: Value, cut: Halved) -> tuple[Value, Value]:
    """Return tag and payload (its lower bytes) of a value.

    Args:
        scaled: the format: rounded, else as published.
        value: the fp32 value.
        tag: tag of the published format.
    """
    sign, whole = value[31], cut.large
    published = Mux(tag == WORD, value, Mux(tag == HALF, Cat(whole[:15], sign), Cat(whole[8:15], sign)))
    rounded = whole + cut.large_up
    large = Mux(rounded > 32767, 32767, rounded[:15])
    small = cut.small + cut.small_up
    wide = small[7:].any()
    scaled_tag = Mux(wide, HALF, Mux(small[:7].any(), BYTE, ZERO))
    return Mux(scaled, scaled_tag, tag), Mux(scaled, Mux(wide, Cat(large, sign), Cat(small[:7], sign)), published)


@dataclass
class Received:
    """Magnitude in units of 2^(e-15), 16 bits, its sign, and whether its code is one that no encoder writes."""

    magnitude: Value
    sign: Value
    illegal: Value


def received(choice: Value, tag: Value, payload: Value) -> Received:
    """Return the value of a tag and a payload (its lower bytes). Tag 11 of the published format is not a magnitude."""
    k = choice.k
    half, byte = tag == HALF, tag == BYTE
    small, large = payload[:7], payload[:15]
    up = Mux(choice.scaled, 15 - k, 8)[:4]
    magnitude = Mux(half, large, Mux(byte, (small << up)[:16], 0))
    sign = Mux(half, payload[15], payload[7]) & (half | byte)
    most = Mux(k > 6, 127, (1 << k[:3])[:7])
    least_large = (255 << (14 - k)[:4])[:15]
    illegal_scaled = (tag == WORD) | (byte & ((small == 0) | (small > most))) | (half & ((k < 7) | (large < least_large)))
    # The published format: a magnitude lies between the thresholds of its tag, 2^-k and 2^-(k - ceil(k/2)).
    at_byte = (1 << (15 - k)[:4])[:16]
    at_half = (1 << (15 - (k >> 1))[:4])[:16]
    cut_to_zero = (k > 7) & (magnitude == 0)
    illegal_byte = byte & ~cut_to_zero & ((magnitude < at_byte) | (magnitude >= at_half))
    illegal_half = half & (magnitude < at_half)
    illegal_word = (tag == WORD) & (payload[23:31] < 127)
    illegal = Mux(choice.scaled, illegal_scaled, illegal_byte | illegal_half | illegal_word)
    return Received(magnitude, sign, illegal)


def lost_bits(scale: Value) -> Value:
    """Return a mask of the bits, in units of 2^(e-15), below fp32's last place 2^-149: up to 14 of 16 bits.

    Args:
        scale: e, signed.
    """
    return Cat(*(scale < -134 - bit for bit in range(14)), Const(0, 2))


def rounded(magnitude: Value, lost: Value) -> Value:
    """Return the magnitude without its lost bits, rounded to nearest even. No encoder writes it, but the codec takes it."""
    last = Cat(Const(1, 1), lost[:15]) & ~lost  # the lowest bit that stays
    odd = (magnitude & last).any()
    return (magnitude + (lost >> 1) + (odd & lost[0]))[:16] & ~lost


def top_bit(magnitude: Value) -> Value:
    """Return the index of the highest set bit of 16; 0 if no bit is set."""
    index: Value = Const(0, 4)
    for bit in range(1, 16):
        index = Mux(magnitude[bit], bit, index)
    return index


@dataclass
class Lift:
    """Constants of the scale 2^e for all values of a beat.

    Attributes:
        exponent: e + 112, signed: the exponent field of a magnitude whose highest bit is bit 0.
        down, amount: shift of a subnormal value: direction and number of bits.
    """

    exponent: Value
    down: Value
    amount: Value


def lift(scale: Value) -> Lift:
    """Compute the constants for e, signed."""
    up = scale + 134  # from units of 2^(e-15) to units of 2^-149
    return Lift(scale + 112, up < 0, Mux(up < 0, -up, up)[:5])


@dataclass
class Restored:
    """Restored magnitude as a normal and as a subnormal fp32 number. The signed ``exponent`` tells which one applies."""

    exponent: Value
    fraction: Value
    subnormal: Value
    zero: Value


def restored(magnitude: Value, top: Value, by: Lift) -> Restored:
    """Restore a magnitude in units of 2^(e-15), without bits that fp32 lacks (``rounded``). ``top``: its highest bit."""
    fraction = (magnitude << (15 - top)[:4])[:15]
    subnormal = Mux(by.down, magnitude >> by.amount[:4], magnitude << by.amount)[:23]
    return Restored(by.exponent + top, Cat(Const(0, 8), fraction), subnormal, magnitude == 0)


def fp32_word(value: Restored, sign: Value) -> Value:
    """Return the fp32 word, limited to the largest number; below 2^-126 it is subnormal."""
    exponent = value.exponent
    normal = Mux(exponent > 254, _MOST, Cat(value.fraction, exponent[:8]))
    return Cat(Mux(value.zero, 0, Mux(exponent > 0, normal, Cat(value.subnormal, Const(0, 8)))), sign)
