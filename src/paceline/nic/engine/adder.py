"""Adder of two ternary bodies inside the card: the exact sum of n1 + n2 workers, one plane of 64 elements per cycle.

An element of ``ternary-sum`` is ``sum + n`` (docs/wire-format.md). So the elements of two bodies add as unsigned integers, and
their offsets add by themselves. The planes come lowest bit first: 64 full adders and 64 carries do it bit by bit. 64 workers
take 8 planes, so 64 elements take at most 8 cycles: never slower than the encoder's 8 values a cycle.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from paceline.nic.engine.frame_position import FramePosition
from paceline.nic.engine.stream import signature
from paceline.nic.engine.words import WordReader, WordWriter

BLOCK = 64


class TernaryAdder(wiring.Component):
    """Adder of two frames into a frame of the sum, after the first frame's header. Frames come in pairs. A first frame without
    the mark passes unchanged, and no second one is taken. The result always has its full length: missing bytes count as zero
    bits, surplus bytes are dropped.

    Ports:
        beats_1, beats_2: streams of beats; registers are sampled with the first beat of ``beats_1``.
        beats_out: a stream of beats.
        head: header beats of both frames, 1 to 15.
        values: elements of each body.
        workers_1, workers_2: whose sum each body is, 1 to 63, together at most 64.
        ternary_1, ternary_2: the body is one worker's ``ternary``; else it is a ``ternary-sum``.
        error: with a marked frame's last beat: a body has another length, or holds a code that no encoder writes. The second
            frame's length is not checked where ``values`` is 0.
    """

    def __init__(self) -> None:
        registers = {"head": 4, "values": 16, "workers_1": 7, "workers_2": 7, "ternary_1": 1, "ternary_2": 1}
        streams = {"beats_1": In(signature()), "beats_2": In(signature()), "beats_out": Out(signature())}
        super().__init__({**streams, **{k: In(v) for k, v in registers.items()}, "error": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.reader_1 = reader_1 = WordReader()
        m.submodules.reader_2 = reader_2 = WordReader()
        m.submodules.writer = writer = WordWriter()
        wiring.connect(m, reader_2.beats_in, wiring.flipped(self.beats_2))
        wiring.connect(m, writer.beats_out, wiring.flipped(self.beats_out))
        beat = self.beats_1.payload
        position = FramePosition(m, self.beats_1, self.head)
        values = position.sampled(self.values).now
        limits = [
            Cat(Const(0, 1), position.sampled(w).kept) for w in (self.workers_1, self.workers_2)
        ]  # the largest codes, 2 n
        ternaries = [position.sampled(t).kept for t in (self.ternary_1, self.ternary_2)]
        left, size, plane, bad, failed = Signal(16), Signal(4), Signal(3), Signal(), Signal()
        m.d.comb += [
            reader_1.beats_in.payload.eq(beat),
            reader_1.beats_in.valid.eq(self.beats_1.valid),
            reader_1.empty.eq(beat.last),
            reader_2.skip.eq(position.sampled(self.head).now),
            writer.beat.eq(beat),
            self.error.eq(failed & self.beats_out.valid & self.beats_out.payload.last),
        ]
        for reader in (reader_1, reader_2):
            m.d.comb += reader.size.eq(size)
        m.d.comb += writer.size.eq(size)
        final = left <= BLOCK
        live = Cat(~final | (left[:7] > k) for k in range(BLOCK))

        with m.FSM():
            with m.State("PASS"):
                m.d.comb += [self.beats_1.ready.eq(writer.ready), writer.passes.eq(position.accepted)]
                with m.If(position.accepted):
                    m.d.sync += [left.eq(values), size.eq(plane_bytes(values)), plane.eq(0), bad.eq(0), failed.eq(0)]
                    with m.If(position.marked & (position.ends_header | beat.last)):
                        m.d.comb += [reader_1.begin.eq(1), reader_2.begin.eq(1)]
                        m.next = "END"
                        with m.If(position.ends_header & (beat.bytes == 32)):
                            m.d.comb += writer.beat.last.eq(values == 0)
                            with m.If(values != 0):
                                m.next = "ADD"
                            with m.Else():
                                m.d.sync += failed.eq(~beat.last)
                        with m.Else():
                            m.d.sync += failed.eq(values != 0)
            with m.State("ADD"):
                m.d.comb += self.beats_1.ready.eq(reader_1.beats_in.ready)
                steps = Signal()
                codes, wrong, waits = [], [], []
                for k, (reader, limit, ternary) in enumerate(zip((reader_1, reader_2), limits, ternaries, strict=True)):
                    needed = (limit >> plane).any()
                    ends = ~(limit >> plane)[1:].any()
                    code, illegal = _Addend(m, reader.word, plane, limit, ternary, steps, k).checked()
                    m.d.comb += reader.take.eq(steps & needed)
                    codes.append(code & needed.replicate(BLOCK))
                    wrong.append(needed & (reader.short | (ends & (((illegal & live) != 0) | (final & ~reader.exact)))))
                    waits.append(needed & ~reader.available)
                sums, carry = Signal(BLOCK), Signal(BLOCK)
                a, b = codes
                total = (limits[0] + limits[1])[:8]
                top = ~(total >> plane)[1:].any()
                m.d.comb += [
                    sums.eq(a ^ b ^ carry),
                    steps.eq(writer.ready & ~waits[0] & ~waits[1]),
                    writer.write.eq(steps),
                    writer.word.eq(sums & live),
                    writer.last.eq(final & top),
                ]
                with m.If(steps):
                    m.d.sync += [plane.eq(plane + 1), carry.eq((a & b) | (carry & (a | b))), bad.eq(bad | wrong[0] | wrong[1])]
                    with m.If(top):
                        following = (left - BLOCK)[:16]
                        m.d.sync += [plane.eq(0), carry.eq(0), left.eq(following), size.eq(plane_bytes(following))]
                        with m.If(final):
                            m.d.sync += failed.eq(bad | wrong[0] | wrong[1])
                            m.next = "END"
            with m.State("END"):
                m.d.comb += [self.beats_1.ready.eq(reader_1.beats_in.ready), reader_1.finish.eq(1), reader_2.finish.eq(1)]
                with m.If(reader_1.idle & reader_2.idle):
                    m.next = "PASS"
        return m


class _Addend:
    """Converter of one addend's planes to those of ``ternary-sum``, which finds elements with a code that no encoder writes."""

    def __init__(self, m: Module, word: Value, plane: Signal, limit: Value, ternary: Value, steps: Signal, number: int) -> None:
        self._before = before = Signal(
            BLOCK, name=f"before_{number}"
        )  # ternary: plane 0; else: the code so far is above the limit
        bit = (limit >> plane)[0].replicate(BLOCK)
        above = (word & ~bit) | (before & ~(word ^ bit))
        self._code = Mux(ternary, Mux(plane == 0, ~word, before & ~word), word)
        self._illegal = Mux(ternary, word & ~before, above)
        with m.If(steps):
            m.d.sync += before.eq(Mux(plane == 0, word, above))

    def checked(self) -> tuple[Value, Value]:
        """Return the plane, and the illegal elements, which are known at the addend's last plane."""
        return self._code, self._illegal


def plane_bytes(left: Value) -> Value:
    """Return the bytes of a plane of the next block if ``left`` elements remain."""
    return Mux(left >= BLOCK, 8, (left[:6] + 7)[3:])
