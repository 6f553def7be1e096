"""Properties of INCEPTIONN's lane, as modules with assertions (paceline.nic.formal proves them)."""

from __future__ import annotations

from amaranth.asserts import AnyConst
from amaranth.hdl import Assert, Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed

from paceline.nic.engine.lanes import (
    Choice,
    coded,
    faithful_tag,
    halved,
    normalised,
    received,
    shift_amount,
    shifted,
    top_bit,
)


class FaithfulLane(Elaboratable):
    """For every fp32 word: decoding what is coded gives algorithm 2's value, and coding that again changes nothing.

    The reference clears the low bits of the word: 8 + n for a two-byte payload, 16 + n for one byte, n = 127 - e; where nothing
    is left of the leading one too, the value is a zero with the word's sign. Such a -0 becomes +0 when it is coded again.
    """

    def __init__(self, k: int) -> None:
        self._k = k

    def elaborate(self, platform: object) -> Module:
        """See ``Elaboratable``."""
        m = Module()
        x, k = Signal(32), Const(self._k, 4)
        m.d.comb += x.eq(AnyConst(32))
        once = through(m, x, k, "once")
        twice = through(m, once, k, "twice")
        m.d.comb += [Assert(once == published(x, k)), Assert(twice == Mux(once == 1 << 31, 0, once))]
        return m


def through(m: Module, word: Value, k: Value, name: str) -> Signal:
    """A word through the lane of the compressor and that of the decompressor."""
    choice, scale = Signal(Choice, name=f"choice_{name}"), Const(0, signed(10))
    m.d.comb += choice.eq(Cat(k, Const(0)))
    field = word[23:31]
    amount = shift_amount(m, field, scale)
    cut = halved(k, shifted(Cat(word[:23], field != 0), amount))
    tag, payload = coded(choice.scaled, word, faithful_tag(field, k), cut)
    sent = Signal(32, name=f"sent_{name}")
    m.d.comb += sent.eq(Mux(tag == 3, payload, Mux(tag == 2, payload[:16], Mux(tag == 1, payload[:8], 0))))
    got = received(choice, tag, sent)
    magnitude, restored = Signal(16, name=f"magnitude_{name}"), Signal(32, name=f"restored_{name}")
    m.d.comb += magnitude.eq(got.magnitude)
    m.d.comb += restored.eq(Mux(tag == 3, sent, normalised(m, magnitude, top_bit(magnitude), got.sign, scale)))
    m.d.comb += Assert(~got.illegal)
    return restored


def published(word: Value, k: Value) -> Value:
    """What algorithms 2 and 3 make of a word, zeros decided as in docs/wire-format.md."""
    field = word[23:31]
    n = (127 - field)[:8]
    half = n <= (k >> 1)  # e >= EB + ceil(k / 2)
    lost = Mux(half, 8, 16) + n
    kept = Mux(lost > 23, 0, ((word[:23] >> lost[:5]) << lost[:5])[:23])
    vanished = lost > 23
    value = Cat(Mux(vanished, 0, Cat(kept, field)), word[31])
    return Mux(field >= 127, word, Mux(n > k, 0, value))
