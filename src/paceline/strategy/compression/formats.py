"""Wire formats of a tensor's elements. Message sizes are exact for formats of fixed length, a range for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, erfc, sqrt
from typing import Literal

from paceline.errors import UserError
from paceline.strategy.compression import card_frames

HEADER_BYTES = 32
"""Bytes before every message of a codec (docs/wire-format.md). A test compares this with the codecs' constant."""

PayloadBound = Literal["low", "expected", "high", "most"]


DEPENDS = "The payload of {name} depends on the gradients"
"""Beginning of the sentence on a length that is an estimate."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Bits of one element, in a format whose length depends on the values.

    Attributes:
        low, high: range expected in training. ``least``, ``most``: the format's bounds.
        source: origin of ``low`` and ``high``.
    """

    low: float
    high: float
    most: float
    source: str
    least: float = 2.0


@dataclass(frozen=True, slots=True)
class Format:
    """Wire format of encoded elements.

    Attributes:
        element_bits: bits of one element that is sent; their expected number if there is a ``spread``.
        group: elements that share whole bytes.
        grows: a sum of k contributions is an exact integer with 2k+1 levels (TernGrad, section 3.2).
        headers: pairs (elements, bytes): each started block of that many elements has that many bytes, such as a scale.
        kept: share of the elements that are sent, in millionths, each with ``element_bits`` and its index; 0: all.
        spread: range of the bits; None if the length depends only on the number of elements.
        in_card: True if a network card encodes, packet by packet: hosts send fp32 of known length.
        block: elements that are coded together, as with one scale. Every tensor begins with a block; see ``whole_blocks``.
    """

    name: str
    element_bits: float
    group: int = 1
    grows: bool = False
    headers: tuple[tuple[int, int], ...] = ()
    kept: int = 0
    spread: Spread | None = None
    in_card: bool = False
    block: int = 1

    @property
    def tells_sizes(self) -> bool:
        """True if a message's length is sent before it: the length depends on the values, and the sender encodes."""
        return self.spread is not None and not self.in_card

    def at(self, level: PayloadBound) -> Format:
        """Return the format at the low or high end of its expected range, or at its upper bound."""
        if self.spread is None or level == "expected":
            return self
        bits: Mapping[PayloadBound, float] = {"low": self.spread.low, "high": self.spread.high, "most": self.spread.most}
        return replace(self, element_bits=bits[level])

    def pull_bits(self, contributions: int) -> float:
        """Return the bits of one element of the sum of ``contributions`` encoded gradients."""
        return (2 * contributions).bit_length() if self.grows else self.element_bits

    def push_bytes(self, count: int) -> int:
        """Return the bytes of ``count`` encoded elements, without the header."""
        return self.pull_bytes(count, 1)

    def pull_bytes(self, count: int, contributions: int) -> int:
        """Return the bytes of ``count`` elements of the sum of ``contributions`` encoded gradients, without the header."""
        if self.kept:
            return _sparse_bytes(count, self._kept(count), self.element_bits) + self._header_bytes(count)
        whole = -(-count // self.group) * self.group
        return ceil(whole * self.pull_bits(contributions) / 8) + self._header_bytes(count)

    def _header_bytes(self, count: int) -> int:
        return sum(-(-count // run) * size for run, size in self.headers)

    def _kept(self, count: int) -> int:
        """Return the number of elements that are sent of ``count``: a share of each block."""
        whole, rest = divmod(count, self.block) if self.block > 1 else (0, count)
        return whole * -(-self.block * self.kept // 1_000_000) + -(-rest * self.kept // 1_000_000)

    def message_bytes(self, count: int, contributions: int = 1) -> int:
        """Return the bytes of a whole message, header included; 0 if it has no elements."""
        if self.in_card:
            block = sum(size for run, size in self.headers if (run, size) != DIRECTORY)
            return card_frames.message_bytes(count, self.element_bits, block, HEADER_BYTES)
        return HEADER_BYTES + self.pull_bytes(count, contributions) if count else 0


def whole_blocks(count: int, block: int) -> int:
    """Return the elements of a tensor of ``count`` elements that is padded with zeros to whole blocks."""
    return -(-count // block) * block


MOST_PADDED = 4
"""Largest ratio of a tensor in whole blocks to the tensor."""


def fills_blocks(count: int, block: int) -> bool:
    """Return whether a tensor is worth its last block. Below a quarter of one it is sent dense, in at most ``block`` bytes."""
    return MOST_PADDED * count >= block


FP32 = Format("fp32", 32)
BF16 = Format("bf16", 16)
TERNARY = Format("ternary", 2, group=8, grows=True)

# Headers of the codecs' blocks. docs/wire-format.md has the layouts. A test checks that they agree.
SCALE_BYTES = 4  # one fp32 scale a block: int8, int4, sign
CODINGS = (1024, 4)  # bf16-coded: base, width and number of other exponents of a block
LEVEL_BYTES = 4  # topk with values of 2 bits: two bfloat16 magnitudes a chunk
DIRECTORY = (1 << 14, 4)  # both forms of INCEPTIONN: the bytes of every chunk of 16,384 values
EXPONENTS = (1024, 2)  # inceptionn-scaled: one power of two a block


def _sparse_bytes(count: int, kept: int, value_bits: float) -> int:
    """Return the bytes of values and indices: the shortest of a bitmap and Elias-Fano codes with 8 or 16 low bits."""
    marks = [(count, 0), *((kept + (max(count - 1, 0) >> low), low) for low in (8, 16))]
    return -(-int(kept * value_bits) // 8) + min(-(-bits // 64) * 8 + kept * low // 8 for bits, low in marks)


# Li et al. 2018, Table III: fp32 bits / encoded bits (tags included) of AlexNet, HDC, ResNet-50, VGG-16 at each bound.
TABLE_III: Mapping[float, tuple[float, float, float, float]] = {
    2.0**-10: (5.6, 11.6, 9.1, 11.2),
    2.0**-8: (8.8, 13.2, 12.2, 13.9),
    2.0**-6: (12.3, 14.6, 14.6, 14.4),
}
INCEPTIONN_BITS = (2.0, 34.0)  # tag alone, and tag with a whole fp32: 16x and 0.94x


def inceptionn(options: Mapping[str, float]) -> Format:
    """Return INCEPTIONN's format: groups of eight elements of 0, 8, 16 or 32 bits and a 2-bit tag (Li et al. 2018, section
    VI-A)."""
    known = max((bound for bound in TABLE_III if bound <= options["bound"]), default=min(TABLE_III))
    bits = [32 / ratio for ratio in TABLE_III[known]]
    source = f"Li et al. 2018, Table III at 2^-{_exponent(known)}: four networks"
    spread = Spread(min(bits), max(bits), INCEPTIONN_BITS[1], source)
    if options["bound"] < known:
        spread = replace(
            spread, high=spread.most, source=f"{source}; this bound is tighter, so the high end is the format's worst"
        )
    return _measured(Format("inceptionn", sum(bits) / len(bits), 8, headers=(DIRECTORY,), spread=spread), options["ratio"])


def inceptionn_scaled(options: Mapping[str, float]) -> Format:
    """Return INCEPTIONN's format scaled by each block's maximum: 2 or 10 bits, from 2^-7 on also 18. No ratios are
    published."""
    k = _exponent(options["bound"])
    most = 10.0 if k < 7 else 18.0
    # A block of 1,024 normal values reaches 3.2 sigma, so its power of two is 4 sigma and the unit 4 sigma 2^-k.
    unit = 4 * 2.0**-k
    beyond_half, beyond_byte = (erfc(units * unit / sqrt(2)) for units in (0.5, 127.5))
    source = "expected for normal values; the ends are the format's own"
    fmt = Format(
        "inceptionn-scaled",
        2 + 8 * beyond_half + (8 * beyond_byte if k >= 7 else 0),
        8,
        headers=(DIRECTORY, EXPONENTS),
        block=EXPONENTS[0],
    )
    return _measured(replace(fmt, spread=Spread(2.0, most, most, source)), options["ratio"])


def bf16_coded(options: Mapping[str, float]) -> Format:
    """Return bfloat16 with coded exponents: a byte of sign and mantissa, and at most another of the exponent."""
    source = "gradients and weights of a small GPT-2 and LeNet-5 by kind of layer; benchmarks/results/coded_exponents.csv"
    fmt = Format("bf16-coded", 11.5, 8, headers=(CODINGS,), spread=Spread(11.1, 12.0, 16.0, source, least=8.0))
    return _measured(fmt, options["ratio"])


def _measured(fmt: Format, ratio: float) -> Format:
    """Return the format with the bits of a measured compression ratio; 0 changes nothing."""
    if not ratio or fmt.spread is None:
        return fmt
    bits = min(fmt.spread.most, max(fmt.spread.least, 32 / ratio))
    return replace(
        fmt, element_bits=bits, spread=replace(fmt.spread, low=bits, high=bits, source=f"a ratio of {ratio:g}, given")
    )


def _exponent(bound: float) -> int:
    return (1 / bound).as_integer_ratio()[0].bit_length() - 1


def whole_numbers(name: str, bits: int, options: Mapping[str, float]) -> Format:
    """Return a format of ``bits``-bit integers with one fp32 scale per block."""
    block = int(options["block"])
    return Format(name, bits, 8 // bits, headers=((block, SCALE_BYTES),), block=block)


def sign(options: Mapping[str, float]) -> Format:
    """Return a format of one bit per element and one fp32 scale per block."""
    block = int(options["block"])
    return Format("sign", 1, 8, headers=((block, SCALE_BYTES),), block=block)


def topk(options: Mapping[str, float]) -> Format:
    """Return a format of the largest elements, of all or of each chunk: their values and indices."""
    bits, chunk = options["value_bits"], int(options["chunk"])
    if bits < 16 and not chunk:
        raise UserError(f"value_bits={bits:g} of topk without a chunk", "give chunk=4096 too: two magnitudes belong to a chunk")
    headers = ((chunk, LEVEL_BYTES),) if bits < 16 else ()
    return Format("topk", bits, kept=round(options["density"] * 1_000_000), headers=headers, block=chunk or 1)
