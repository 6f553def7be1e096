"""One lane of the compressor alone: what its area is counted of."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from paceline.nic.engine.lanes import Choice, Halved, Shifted, coded, faithful_tag, halved, shift_amount, shifted


class Lane(wiring.Component):
    """A value in, its tag and payload out, four cycles later; as in the compressor, with a register behind every stage.

    Attributes:
        value: fp32. ``choice``: format and bound. ``scale``: e of the value's block, 0 in the published format.
        tag, payload: the code; the payload's upper bytes are not cleared.
    """

    value: In(32)
    choice: In(Choice)
    scale: In(signed(10))
    tag: Out(2)
    payload: Out(32)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        choices = [Signal(Choice, name=f"choice{n}") for n in range(3)]
        m.d.sync += [choices[0].eq(self.choice), choices[1].eq(choices[0]), choices[2].eq(choices[1])]
        values, tags = [Signal(32, name=f"value{n}") for n in range(3)], [Signal(2, name=f"tag{n}") for n in range(3)]
        field, amount = self.value[23:31], Signal(6)
        m.d.sync += [
            values[0].eq(self.value),
            tags[0].eq(faithful_tag(field, self.choice.k)),
            amount.eq(shift_amount(m, field, Mux(self.choice.scaled, self.scale, 0))),
        ]
        moved = shifted(Cat(values[0][:23], values[0][23:31] != 0), amount)
        whole, half, below = Signal(16), Signal(), Signal()
        m.d.sync += [values[1].eq(values[0]), tags[1].eq(tags[0])]
        m.d.sync += [whole.eq(moved.whole), half.eq(moved.half), below.eq(moved.below)]
        cut = halved(choices[1].k, Shifted(whole, half, below))
        large, large_up, small, small_up = Signal(16), Signal(), Signal(16), Signal()
        m.d.sync += [values[2].eq(values[1]), tags[2].eq(tags[1])]
        m.d.sync += [large.eq(cut.large), large_up.eq(cut.large_up), small.eq(cut.small), small_up.eq(cut.small_up)]
        tag, payload = coded(choices[2].scaled, values[2], tags[2], Halved(large, large_up, small, small_up))
        m.d.sync += [self.tag.eq(tag), self.payload.eq(payload)]
        return m
