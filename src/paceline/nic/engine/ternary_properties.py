"""Properties of the ternary engine, as modules with assertions (proved by paceline.nic.formal)."""

from __future__ import annotations

from collections.abc import Callable

from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Assume, Cat, Const, Elaboratable, Module, Mux, Signal, Value

from paceline.nic.engine.ternary_lanes import LARGEST_FACTOR_FIELD, Enabled, Product, compare

_INFINITY = 0x7F800000


class Comparison(Elaboratable):
    """``compare`` gives the same result for every exact product and draw as a comparison of their fp32 words.

    The reference rounds the product to a word of IEEE 754, with subnormal numbers and infinity, writes the draw as an fp32 word
    too, and compares the words as integers.
    """

    def __init__(self, compare: Callable[[Enabled, Product, Value, str], Signal] = compare) -> None:
        self._compare = compare

    def elaborate(self, platform: object) -> Module:
        m = Module()
        significand, exponents, draw = AnySeq(48), AnySeq(9), AnySeq(24)
        both_normal = significand >= 1 << 46
        m.d.comb += Assume((exponents >= 2) & (both_normal | (exponents <= LARGEST_FACTOR_FIELD + 1)))
        product = Product(Signal(48), Signal(9), Signal.like(150 - exponents))
        m.d.comb += [
            product.significand.eq(significand),
            product.exponents.eq(exponents),
            product.half_of_least.eq(150 - exponents),
        ]
        said = self._compare(Enabled(m, Const(1)), product, draw, "0")
        cycle = Signal(3)
        m.d.sync += cycle.eq(cycle + (cycle != 7))
        product_then, draw_then = Signal(57), Signal(24)
        with m.If(cycle == 0):
            m.d.sync += product_then.eq(Cat(significand, exponents))
        with m.If(cycle == 2):
            m.d.sync += draw_then.eq(draw)
        smaller = draw_word(draw_then) < product_word(m, product_then[:48], product_then[48:])
        with m.If(cycle == 4):
            m.d.comb += Assert(said == smaller)
        return m


def product_word(m: Module, significand: Value, exponents: Value) -> Value:
    """Return ``significand * 2^(exponents - 300)`` as an fp32 word, rounded to nearest even (IEEE 754-2019, 4.3.1)."""
    zeros = _leading_zeros(significand, 48)
    scaled, field = Signal(48), Signal.like(exponents - zeros - 126)
    m.d.comb += [scaled.eq(significand << zeros), field.eq(exponents - zeros - 126)]
    normal = field >= 1
    by = Signal(6)
    m.d.comb += by.eq(Mux(normal, 24, Mux(field < -38, 63, 25 - field)))
    kept, lost, half = scaled >> by, Signal(64), Signal(64)
    m.d.comb += [half.eq(Const(1, 64) << (by - 1)[:6]), lost.eq(scaled & ((half << 1) - 1))]
    rounded = kept + ((lost > half) | ((lost == half) & kept[0]))
    word = Signal(32)
    m.d.comb += word.eq(Mux(normal, ((field - 1) << 23) + rounded, rounded))
    return Mux(significand == 0, 0, Mux(normal & (field >= 255), _INFINITY, word))


def draw_word(draw: Value) -> Value:
    """Return an integer below 2^24 as an fp32 word."""
    zeros = _leading_zeros(draw, 24)
    return Mux(draw == 0, 0, ((150 - zeros) << 23) + (draw << zeros)[:23])


def _leading_zeros(x: Value, width: int) -> Value:
    zeros: Value = Const(width)
    for bit in range(width):
        zeros = Mux(x[bit], width - 1 - bit, zeros)
    return zeros
