"""Properties of INCEPTIONN's lane without clock, as modules with assertions (proved by paceline.nic.formal)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed

from paceline.nic.engine.lane import SCALE_BIAS
from paceline.nic.engine.lanes import (
    FrameFormat,
    Halved,
    Restored,
    Shifted,
    coded,
    faithful_tag,
    fp32_word,
    halved,
    lift,
    lost_bits,
    received,
    restored,
    rounded,
    shift_amount,
    shifted,
    top_bit,
)
from paceline.nic.engine.stream import named

Cut = Callable[[Value, Value, Value, Halved], tuple[Value, Value]]
"""``lanes.coded``, or another circuit for it."""


class FaithfulLane(Elaboratable):
    """For every fp32 word, decoding the code gives algorithm 2's value, and coding it again changes nothing.

    The reference clears the low bits of the word: 8 + n for a two-byte payload, 16 + n for one byte, n = 127 - e; if the
        leading one is cleared too, the value is a zero with the word's sign. Such a -0 becomes +0 when it is coded again. The
    decoder calls no such code illegal.

    Args:
        k: the bound is 2^-k.
        choose: the last stage of the encoder.
    """

    def __init__(self, k: int, choose: Cut = coded) -> None:
        self._k, self._choose = k, choose

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word, k, unscaled = AnySeq(32), Const(self._k, 4), Const(0, signed(10))
        once, legal = through(m, word, k, Const(0, 1), unscaled, "once", self._choose)
        twice, legal_again = through(m, once, k, Const(0, 1), unscaled, "twice", self._choose)
        m.d.comb += [
            Assert(legal & legal_again),
            Assert(once == published(word, k)),
            Assert(twice == Mux(once == 1 << 31, 0, once)),
        ]
        return m


class ScaledLane(Elaboratable):
    """For every fp32 word up to the scale 2^e, |decoded - word| <= 2^-k 2^e, and coding the result again changes nothing.

    The magnitudes are compared as integers in units of the scale's 2^-40; lower bits of a word count as one more unit.

    Args:
        k: the bound.
        scale: e of the word's block, from -85 on, so that every code is a different fp32 number.
        choose: the last stage of the encoder.
    """

    def __init__(self, k: int, scale: int, choose: Cut = coded) -> None:
        self._k, self._scale, self._choose = k, scale, choose

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word, k, scale = AnySeq(32), Const(self._k, 4), Const(self._scale, signed(10))
        # Words below the scale, and the scale itself; others become one below it.
        top = 127 + self._scale
        small = Mux((word[:31] >> 23) < top, word[:31], ((top - 1) << 23) | word[:23])
        inside = Signal(32)
        m.d.comb += inside.eq(Cat(small[:31], word[31]))
        once, legal = through(m, inside, k, Const(1, 1), scale, "once", self._choose)
        twice, legal_again = through(m, once, k, Const(1, 1), scale, "twice", self._choose)
        before, after = Signal(42), Signal(42)
        m.d.comb += [before.eq(_units(inside[:31], self._scale)), after.eq(_units(once[:31], self._scale))]
        far = Mux(before > after, before - after, after - before)
        m.d.comb += [
            Assert(legal & legal_again),
            Assert(far <= 1 << (40 - self._k)),
            Assert(twice == once),
            Assert((once[:31] == 0) | (once[31] == inside[31])),
        ]
        return m


class Each(Elaboratable):
    """Several properties as one module."""

    def __init__(self, designs: Sequence[Elaboratable]) -> None:
        self._designs = designs

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules += self._designs
        return m


def _units(magnitude: Value, scale: int) -> Value:
    """Return an fp32 magnitude up to 2^scale in units of 2^(scale - 40), rounded up."""
    field = magnitude[23:31]
    wide: Value = Cat(Const(0, 40), magnitude[:23], field != 0)  # a significand of 24 bits in units of 2^-40 of its last place
    down = (scale + 150) - field  # from the last place's 2^(field - 150), to the scale
    moved = wide >> Mux(field == 0, 63, Mux(down > 63, 63, down[:6]))
    cut = (wide & ((Const(1, 64) << Mux(down > 63, 63, down[:6])) - 1)).any()
    return (moved + cut)[:42]


def through(m: Module, word: Value, k: Value, scaled: Value, scale: Value, name: str, choose: Cut) -> tuple[Signal, Signal]:
    """Return a word after the compressor's and the decompressor's lane, and whether the latter accepts its code."""
    choice = Signal(FrameFormat, name=f"choice_{name}")
    m.d.comb += choice.eq(Cat(k, scaled))

    def held(value: Value, what: str) -> Signal:
        return named(m, value, f"{what}_{name}")

    field = held(word[23:31], "field")
    amount = held(shift_amount(field, held(scale + SCALE_BIAS, "scale")), "amount")
    moved = shifted(m, Cat(word[:23], field != 0), amount)
    moved = Shifted(held(moved.whole, "whole"), held(moved.half, "half"), held(moved.below, "below"))
    cut = halved(k, moved)
    cut = Halved(
        held(cut.large, "large"), held(cut.large_up, "large_up"), held(cut.small, "small"), held(cut.small_up, "small_up")
    )
    code, code_payload = choose(choice.scaled, word, held(faithful_tag(field, k), "published_tag"), cut)
    tag, payload = held(code, "tag"), held(code_payload, "payload")
    sent = held(Mux(tag == 3, payload, Mux(tag == 2, payload[:16], Mux(tag == 1, payload[:8], 0))), "sent")
    got = received(choice, tag, sent)
    magnitude = held(got.magnitude, "magnitude")
    kept = held(rounded(magnitude, held(lost_bits(scale), "lost")), "rounded")
    top = held(top_bit(magnitude), "top")
    parts = restored(kept, top, lift(scale))
    parts = Restored(*(held(getattr(parts, part), part) for part in vars(parts)))
    decoded = held(Mux(tag == 3, sent, fp32_word(parts, held(got.sign, "sign"))), "decoded")
    return decoded, held(~got.illegal, "legal")


def published(word: Value, k: Value) -> Value:
    """Return the result of algorithms 2 and 3 for a word, with zeros as in docs/wire-format.md."""
    field = word[23:31]
    n = (127 - field)[:8]
    half = n <= (k >> 1)  # e >= EB + ceil(k / 2)
    lost = Mux(half, 8, 16) + n
    kept = Mux(lost > 23, 0, ((word[:23] >> lost[:5]) << lost[:5])[:23])
    value = Cat(Mux(lost > 23, 0, Cat(kept, field)), word[31])
    return Mux(field >= 127, word, Mux(n > k, 0, value))
