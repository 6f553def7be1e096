"""Eight lanes that choose TernGrad's values, one beat per cycle: the draw, the fp32 product and their comparison.

An element is nonzero when ``u < fp32(min(|x|, bound) * factor)``, with ``factor = fp32(2^24 / s)`` and u an integer below 2^24
(docs/wire-format.md, "The draw"; Wen et al. 2017, equation 1). The product is never built as an fp32 number. With its rounded
significand ``R`` (24 bits, up to 2^24) and ``value = R * 2^-j``,

    u < R * 2^-j    is    u <= (R - 1) >> j    for j >= 0,    and always true for j < 0.

Below 1 only u = 0 can be smaller, so there the comparison asks only whether the product rounds to zero: whether it is at most
half of the smallest subnormal number, 2^-150.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

LANES = 8
DEPTH = 7
"""Registers between a beat and its choice."""

MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
"""Constants of the two rounds of the draw (paceline.codecs.counter)."""

KEYS = data.StructLayout({"low": 32, "high": 32, "high_after": 32})
"""The draw's key: its first word; its second word at the frame's first element; its second word behind a multiple of 2^32."""

SETTINGS = data.StructLayout({"factor": 32, "bound": 32, "key": KEYS})
"""Settings shared by all elements of a frame: ``factor`` and ``bound`` are fp32 words without a sign."""

LARGEST_FACTOR_FIELD = 251
"""The largest exponent field of a legal factor: 2^24 / s for s from 2^-100 up. Zero is legal too: it sends zeros."""


def ternary_ports(lanes: int = LANES) -> dict[str, wiring.Member]:
    """Return the ports of ``TernaryLanes``."""
    inputs = {"enable": 1, "words": 32 * lanes, "index": 32, "after": 1, "settings": SETTINGS}
    outputs = {"nonzero": lanes, "negative": lanes}
    return {k: In(v) for k, v in inputs.items()} | {k: Out(v) for k, v in outputs.items()}


class TernaryLanes(wiring.Component):
    """Circuit that chooses ``lanes`` ternary elements, with a delay of ``DEPTH`` enabled cycles.

    Ports:
        enable: a cycle in which every register takes its next value.
        words: an fp32 word a lane. Infinity and NaN count as the bound.
        index, after: number of word 0, modulo 2^32, and whether there is a multiple of 2^32 between the first element and it.
        settings: settings of the frame of these words; they may change with every beat.
        nonzero, negative: a bit a word. (0, 1) does not occur.
    """

    def __init__(self, lanes: int = LANES) -> None:
        self._lanes = lanes
        super().__init__(ternary_ports(lanes))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        clock = Enabled(m, self.enable)
        factor = clock.register(self.settings.factor[:31], "factor")
        high = clock.register(Cat(self.settings.key.high, self.settings.key.high_after), "high", cycles=2)
        for lane in range(self._lanes):
            value = self.words.word_select(lane, 32)
            number = Signal(33, name=f"number_{lane}")
            m.d.comb += number.eq(self.index + lane)
            after = clock.register(self.after | number[32], f"after_{lane}", cycles=2)
            hashed = clock.register(_fold(number[:32] ^ self.settings.key.low, 16), f"first_round_{lane}")
            draw = _draw(clock, hashed, Mux(after, high[32:], high[:32]), lane)
            magnitude = Signal(31, name=f"magnitude_{lane}")
            bound = self.settings.bound[:31]
            m.d.comb += magnitude.eq(Mux(value[:31] < bound, value[:31], bound))
            product = multiply(clock, clock.register(magnitude, f"clipped_{lane}"), factor, str(lane))
            smaller = compare(clock, product, draw, str(lane))
            sign = clock.register(value[31], f"sign_{lane}", cycles=DEPTH)
            m.d.comb += [self.nonzero[lane].eq(smaller), self.negative[lane].eq(smaller & sign)]
        return m


class Enabled:
    """Registers that hold their value in cycles without ``enable``."""

    def __init__(self, m: Module, enable: Value) -> None:
        self.m, self.enable = m, enable

    def register(self, value: Value, name: str, cycles: int = 1) -> Signal:
        """Return ``value`` delayed by a number of enabled cycles. No reset: invalid values are not read."""
        for cycle in range(cycles):
            held = Signal(Value.cast(value).shape(), name=f"{name}_{cycle + 1}" if cycles > 1 else name, reset_less=True)
            with self.m.If(self.enable):
                self.m.d.sync += held.eq(value)
            value = held
        return held


def _fold(x: Value, by: int) -> Value:
    return x ^ x[by:]


def _draw(clock: Enabled, first: Signal, high: Value, lane: int) -> Signal:
    """Return the 24-bit draw, four cycles after ``first``; ``high`` is the key's second word, one cycle after ``first``."""
    second = clock.register(_fold(_times(clock, first, MULTIPLIERS[0], f"a_{lane}") ^ high, 15), f"second_round_{lane}")
    third = _fold(_times(clock, second, MULTIPLIERS[1], f"b_{lane}"), 16)
    return clock.register(third[8:32], f"draw_{lane}")


def _times(clock: Enabled, x: Value, constant: int, name: str) -> Value:
    """Return ``x * constant`` modulo 2^32: three products of 16 bits, a multiplier block each, then a cycle later their sum."""
    low, high = constant & 0xFFFF, constant >> 16
    lower = clock.register(x[:16] * Const(low, 16), f"lower_{name}")
    crossed = [
        clock.register((part * Const(c, 16))[:16], f"crossed_{name}_{k}")
        for k, (part, c) in enumerate(((x[:16], high), (x[16:32], low)))
    ]
    return Cat(lower[:16], (lower[16:] + crossed[0] + crossed[1])[:16])


class Product:
    """Exact product of two fp32 magnitudes: ``significand * 2^(exponents - 300)``, and ``150 - exponents``."""

    def __init__(self, significand: Signal, exponents: Signal, half_of_least: Signal) -> None:
        self.significand, self.exponents, self.half_of_least = significand, exponents, half_of_least


def multiply(clock: Enabled, magnitude: Signal, factor: Signal, name: str) -> Product:
    """Return the product of two fp32 words without signs, two cycles later, as the sum of 24 x 17 and 24 x 7 bits."""
    (a, a_field), (b, b_field) = _parts(magnitude), _parts(factor)
    lower = clock.register(a * b[:17], f"product_low_{name}")
    upper = clock.register(a * b[17:], f"product_high_{name}")
    exponents = clock.register(a_field + b_field, f"exponents_{name}")
    half_of_least = clock.register(150 - exponents, f"half_of_least_{name}")
    significand = clock.register((lower + (upper << 17))[:48], f"significand_{name}")
    return Product(significand, clock.register(exponents, f"exponents_late_{name}"), half_of_least)


def _parts(word: Value) -> tuple[Value, Value]:
    """Return significand (24 bits) and exponent field, which counts as 1 for subnormal numbers."""
    normal = word[23:31].any()
    return Cat(word[:23], normal), Cat(word[23] | ~normal, word[24:31])


def compare(clock: Enabled, product: Product, draw: Signal, name: str) -> Signal:
    """Return whether ``draw`` (two cycles after the product) is below the product rounded to fp32, four after the product.

    Holds for products whose larger factor is normal and whose value is below 1 where the other one is subnormal.
    """
    m, exact = clock.m, product.significand
    tall = exact[47]
    kept = clock.register(Mux(tall, exact[24:48], exact[23:47]), f"kept_{name}")
    guard = Mux(tall, exact[23], exact[22])
    sticky = exact[:22].any() | (tall & exact[22])
    even = Mux(tall, exact[24], exact[23])
    up = clock.register(guard & (sticky | even), f"up_{name}")
    shift = clock.register(277 - product.exponents - tall, f"shift_{name}")
    least = product.half_of_least
    over = Signal(48, name=f"over_{name}")
    at = Signal(48, name=f"at_{name}")
    for bit in range(48):
        m.d.comb += [over[bit].eq(least < bit), at[bit].eq(least == bit)]
    beyond = clock.register((exact & over).any(), f"beyond_{name}")
    tie = clock.register(Cat((exact & at).any(), (exact & ~(over | at)).any()).all(), f"tie_{name}")

    below = clock.register((kept + up - 1)[:24], f"below_{name}")
    far = clock.register(shift >= 24, f"far_{name}")
    large = clock.register(shift < 0, f"large_{name}", cycles=2)
    amount = clock.register(shift[:5], f"amount_{name}")
    positive = clock.register(beyond | tie, f"positive_{name}", cycles=2)

    limit = clock.register(Mux(far, 0, below >> amount), f"limit_{name}")
    late = clock.register(draw, f"draw_late_{name}")
    return clock.register(positive & (large | (late <= limit)), f"nonzero_{name}")
