"""One lane of the compressor, which computes a value's tag and payload in four cycles."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from paceline.nic.engine.lanes import FrameFormat, Halved, Shifted, coded, faithful_tag, halved, shift_amount, shifted
from paceline.nic.engine.stream import Pipeline, named

SCALE_BIAS = 150
"""``scale`` is e + 150, which is never negative."""


class Lane(wiring.Component):
    """Lane with registers after each stage: tag and shift, shifted, cut, coded.

    Attributes:
        enable: all registers take their values.
        value: fp32. ``choice``: format and bound. ``scale``: e + 150, e that of the value's block; 0 in the published format.
        exists: else the tag is 00. ``passes``: the value passes as it is, with tag 11.
        tag, payload: the code; bytes beyond the payload's are zero.
    """

    enable: In(1)
    value: In(32)
    exists: In(1)
    passes: In(1)
    choice: In(FrameFormat)
    scale: In(9)
    tag: Out(2)
    payload: Out(32)

    def elaborate(self, platform: object) -> Module:
        """Build the circuit."""
        m = Module()
        stages = Pipeline(m, self.enable)
        values, tags = [Signal(32, name=f"value{n}") for n in range(3)], [Signal(2, name=f"tag{n}") for n in range(3)]
        choices = [Signal(FrameFormat, name=f"choice{n}") for n in range(3)]
        there, passes = [Signal(name=f"exists{n}") for n in range(3)], [Signal(name=f"passes{n}") for n in range(3)]
        stages.register(*zip(values, (self.value, *values[:2]), strict=True))
        stages.register(*zip((each.as_value() for each in choices), (self.choice, *choices[:2]), strict=True))
        stages.register(*zip(there, (self.exists, *there[:2]), strict=True))
        stages.register(*zip(passes, (self.passes, *passes[:2]), strict=True))

        field, amount = self.value[23:31], Signal(6)
        stages.register((tags[0], faithful_tag(field, self.choice.k)), (amount, shift_amount(field, self.scale)))
        moved = shifted(m, Cat(values[0][:23], values[0][23:31] != 0), amount)
        whole, half, below = Signal(16), Signal(), Signal()
        stages.register((tags[1], tags[0]), (whole, moved.whole), (half, moved.half), (below, moved.below))
        cut = halved(choices[1].k, Shifted(whole, half, below))
        large, large_up, small, small_up = Signal(16), Signal(), Signal(16), Signal()
        stages.register((tags[2], tags[1]), (large, cut.large), (large_up, cut.large_up))
        stages.register((small, cut.small), (small_up, cut.small_up))
        code, payload = coded(choices[2].scaled, values[2], tags[2], Halved(large, large_up, small, small_up))
        tag = named(m, Mux(passes[2], 3, Mux(there[2], named(m, code, "code"), 0)), "tag_kept")
        sent = Mux(passes[2], values[2], payload)
        bytes_kept = Cat(tag.any(), tag[1], tag == 3, tag == 3)
        kept = Cat(sent[8 * n : 8 * n + 8] & bytes_kept[n].replicate(8) for n in range(4))
        stages.register((self.tag, tag), (self.payload, kept))
        return m
