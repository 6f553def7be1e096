"""How the elements of a tensor travel: bytes of a message, exact where the format's length is fixed, a range where not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

HEADER_BYTES = 32
"""In front of every message that a codec writes (docs/wire-format.md); the codecs' own constant, held equal by a test."""

Level = Literal["low", "expected", "high", "most"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Bits of one element where they depend on the values.

    Attributes:
        low, high: between which training is expected to lie; ``most`` the format never exceeds.
        source: of ``low`` and ``high``.
    """

    low: float
    high: float
    most: float
    source: str


@dataclass(frozen=True, slots=True)
class Format:
    """A layout on the wire.

    Attributes:
        element_bits: bits of one element; the expected number where ``spread`` is not None.
        group: elements that share whole bytes.
        block: elements under one block header of ``block_bytes``; 0 for none.
        grows: a sum of k contributions is an exact integer with 2k+1 levels (TernGrad, section 3.2).
        spread: None where the length depends on the number of elements alone.
    """

    name: str
    element_bits: float
    group: int = 1
    grows: bool = False
    block: int = 0
    block_bytes: int = 0
    spread: Spread | None = None

    def at(self, level: Level) -> Format:
        """The format at the low or the high end of what is expected, or at its worst."""
        if self.spread is None or level == "expected":
            return self
        bits: Mapping[Level, float] = {"low": self.spread.low, "high": self.spread.high, "most": self.spread.most}
        return replace(self, element_bits=bits[level])

    def pull_bits(self, contributions: int) -> float:
        """Bits of one element of the sum of ``contributions`` encoded gradients."""
        return (2 * contributions).bit_length() if self.grows else self.element_bits

    def push_bytes(self, count: int) -> int:
        """Bytes of ``count`` encoded elements, without the header."""
        return self.pull_bytes(count, 1)

    def pull_bytes(self, count: int, contributions: int) -> int:
        """Bytes of ``count`` elements of the sum of ``contributions`` encoded gradients, without the header."""
        whole = -(-count // self.group) * self.group
        blocks = -(-count // self.block) * self.block_bytes if self.block else 0
        return ceil(whole * self.pull_bits(contributions) / 8) + blocks

    def message_bytes(self, count: int, contributions: int = 1) -> int:
        """Bytes of a whole message, header included. No elements are no message."""
        return HEADER_BYTES + self.pull_bytes(count, contributions) if count else 0


FP32 = Format("fp32", 32)
BF16 = Format("bf16", 16)
TERNARY = Format("ternary", 2, group=8, grows=True)

# Block headers of the block formats. docs/wire-format.md has the layouts; a test holds both equal.
SCALE_BYTES = 4  # one fp32 scale a block: int8, int4, sign
EXPONENT_BYTES = 1  # one power of two a block: inceptionn-scaled
TOPK_BLOCK = 1 << 16  # elements that a 16-bit offset can tell apart
TOPK_BLOCK_BYTES = 4  # how many elements of the block are kept
TOPK_KEPT_BYTES = 6  # a kept element: 16-bit offset and fp32 value

# Li et al. 2018, Table III: fp32 bits / encoded bits (tags included) of AlexNet, HDC, ResNet-50, VGG-16 at each bound.
TABLE_III: Mapping[float, tuple[float, float, float, float]] = {
    2.0**-10: (5.6, 11.6, 9.1, 11.2),
    2.0**-8: (8.8, 13.2, 12.2, 13.9),
    2.0**-6: (12.3, 14.6, 14.6, 14.4),
}
INCEPTIONN_BITS = (2.0, 34.0)  # tag alone, and tag with a whole fp32: 16x and 0.94x


def inceptionn(options: Mapping[str, float]) -> Format:
    """Groups of eight elements, a 2-bit tag and 0, 8, 16 or 32 bits each (Li et al. 2018, section VI-A)."""
    return _tagged("inceptionn", options, TABLE_III[_nearest(options["bound"])], 0)


def inceptionn_scaled(options: Mapping[str, float]) -> Format:
    """The same with a power of two in front of each block of 1,024. Nobody has published its ratios."""
    return _tagged("inceptionn-scaled", options, TABLE_III[_nearest(options["bound"])], 1024)


def _nearest(bound: float) -> float:
    """The nearest bound of Table III that is no looser, so that the bits are not too few."""
    return max((known for known in TABLE_III if known <= bound), default=min(TABLE_III))


def _tagged(name: str, options: Mapping[str, float], ratios: tuple[float, ...], block: int) -> Format:
    least, most = INCEPTIONN_BITS
    if options["ratio"]:
        low = mean = high = min(most, max(least, 32 / options["ratio"]))
        source = f"a ratio of {options['ratio']:g}, given"
    else:
        bits = [32 / ratio for ratio in ratios]
        low, mean, high = min(bits), sum(bits) / len(bits), max(bits)
        source = f"Li et al. 2018, Table III at 2^-{_exponent(_nearest(options['bound']))}: four networks"
        if block:
            # Scaled to the block's maximum no value counts as small once and for all: the worst case bounds the range.
            high, source = most, f"{source}; with a scale nobody has measured, so the high end is the format's worst"
        elif options["bound"] < min(TABLE_III):
            high, source = most, f"{source}; the bound is tighter, so the high end is the format's worst"
    spread = Spread(low, high, most, source)
    return Format(name, mean, 8, block=block, block_bytes=EXPONENT_BYTES if block else 0, spread=spread)


def _exponent(bound: float) -> int:
    return (1 / bound).as_integer_ratio()[0].bit_length() - 1


def whole_numbers(name: str, bits: int, options: Mapping[str, float]) -> Format:
    """Integers of ``bits`` bits with one fp32 scale a block."""
    return Format(name, bits, 8 // bits, block=int(options["block"]), block_bytes=SCALE_BYTES)


def sign(options: Mapping[str, float]) -> Format:
    """One bit an element, one fp32 scale a block."""
    return Format("sign", 1, 8, block=int(options["block"]), block_bytes=SCALE_BYTES)


def topk(options: Mapping[str, float]) -> Format:
    """The largest elements of each block: offset and value."""
    bits = 8 * TOPK_KEPT_BYTES * options["density"]
    return Format("topk", bits, block=TOPK_BLOCK, block_bytes=TOPK_BLOCK_BYTES)
