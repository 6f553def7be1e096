"""Ternary engine, from fp32 frames to bodies of the wire format's ``ternary`` and back.

A frame has ``head`` header beats, which pass unchanged, and the payload. Registers are sampled with its first beat. A frame
without the mark passes beat by beat. The choice is that of ``paceline.codecs.reference.ternary``, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from paceline.nic.engine.frame_position import FramePosition
from paceline.nic.engine.stream import Beat, signature
from paceline.nic.engine.ternary_lanes import DEPTH, LANES, SETTINGS, TernaryLanes

_CARRIED = data.StructLayout({"valid": 1, "body": 1, "lanes": LANES, "illegal": 1, "beat": Beat})


class TernaryEncoder(wiring.Component):
    """Encoder of one beat of eight fp32 words per cycle into one beat per sixteen. Nine cycles from input to output.

    Ports:
        beats_in, beats_out: streams of beats. The last beat of a marked frame's payload holds 4 bytes for each of its words.
        head: header beats, 1 to 15.
        start: number of the frame's first element, modulo 2^32.
        settings: factor, bound and key (``ternary_lanes.SETTINGS``).
        error: with a marked frame's last beat: a word is infinite or no number.

    Args:
        lanes: makes the eight lanes.
    """

    def __init__(self, lanes: Callable[[], Any] = TernaryLanes) -> None:
        self._lanes = lanes
        registers = {"head": In(4), "start": In(32), "settings": In(SETTINGS)}
        super().__init__({"beats_in": In(signature()), "beats_out": Out(signature()), **registers, "error": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.lanes = lanes = self._lanes()
        beat = self.beats_in.payload
        enable = ~self.beats_out.valid | self.beats_out.ready
        m.d.comb += self.beats_in.ready.eq(enable)
        position = FramePosition(m, self.beats_in, self.head)
        settings = position.sampled(self.settings).kept
        index = Signal(33)
        with m.If(position.samples):
            m.d.sync += index.eq(self.start)
        with m.Elif(position.accepted & position.in_body):
            m.d.sync += index.eq(index + LANES)
        entering = Signal(_CARRIED)
        m.d.comb += [
            entering.valid.eq(self.beats_in.valid),
            entering.body.eq(position.in_body),
            entering.lanes.eq(Cat(beat.bytes[2:] > lane for lane in range(LANES))),
            entering.illegal.eq(
                (Cat(beat.data.word_select(lane, 32)[23:31].all() for lane in range(LANES)) & entering.lanes).any()
            ),
            entering.beat.eq(beat),
            lanes.enable.eq(enable),
            lanes.words.eq(beat.data),
            lanes.index.eq(index),
            lanes.after.eq(index[32]),
            lanes.settings.eq(settings),
        ]
        carried = entering
        for stage in range(DEPTH):
            following = Signal(_CARRIED, name=f"carried_{stage + 1}")
            with m.If(enable):
                m.d.sync += following.eq(carried)
            carried = following
        self._pack(m, enable, carried, (lanes.nonzero & carried.lanes, lanes.negative & carried.lanes))
        return m

    def _pack(self, m: Module, enable: Value, carried: Signal, codes: tuple[Value, Value]) -> None:
        """Gather blocks of 64 elements, two per output beat."""
        out, beat = self.beats_out, carried.beat
        byte, second, first_block, bad = Signal(3), Signal(), Signal(128), Signal()
        planes = [Signal(64, name=f"plane_{k}") for k in range(2)]
        filled = [Signal(64, name=f"filled_{k}") for k in range(2)]
        for plane, with_code, code in zip(planes, filled, codes, strict=True):
            m.d.comb += with_code.eq(plane)
            m.d.comb += with_code.word_select(byte, 8).eq(code)
        block = Signal(128)
        with m.Switch(byte):
            for k in range(8):
                with m.Case(k):
                    m.d.comb += block.eq(Cat(filled[0][: 8 * k + 8], filled[1]))
        ends = beat.last | (byte == 7)
        emits = carried.valid & (~carried.body | beat.last | (second & (byte == 7)))
        with m.If(enable):
            m.d.sync += out.valid.eq(emits)
            with m.If(carried.valid & carried.body):
                m.d.sync += [byte.eq(Mux(ends, 0, byte + 1)), bad.eq((bad | carried.illegal) & ~beat.last)]
                for plane, with_code in zip(planes, filled, strict=True):
                    m.d.sync += plane.eq(Mux(ends, 0, with_code))
                with m.If(ends):
                    m.d.sync += [second.eq(~second & ~beat.last), first_block.eq(block)]
            with m.If(emits):
                m.d.sync += [out.payload.eq(beat), self.error.eq(0)]
                with m.If(carried.body):
                    m.d.sync += [
                        self.error.eq((bad | carried.illegal) & beat.last),
                        out.payload.data.eq(Mux(second, Cat(first_block, block), block)),
                        out.payload.bytes.eq((second << 4) + ((byte + 1) << 1)),
                    ]


class TernaryDecoder(wiring.Component):
    """Decoder of a ``ternary`` body into eight words per beat.

    The frame always has its full length: a short body is filled with zeros, surplus bytes are dropped. A marked frame that ends
    inside its header passes unchanged.

    Ports:
        beats_in, beats_out: streams of beats.
        head: header beats, 1 to 15.
        scale: fp32 word of the scaler.
        values: fp32 words of the frame's payload.
        error: with a marked frame's last beat: the body has another length, or holds the code (0, 1), which decodes to zero.
    """

    def __init__(self) -> None:
        registers = {"head": In(4), "scale": In(32), "values": In(16)}
        super().__init__({"beats_in": In(signature()), "beats_out": Out(signature()), **registers, "error": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat, out = self.beats_in.payload, self.beats_out
        free = ~out.valid | out.ready
        position = FramePosition(m, self.beats_in, self.head)
        values, scale = position.sampled(self.values).now, position.sampled(self.scale).kept
        left, bad = Signal(16), Signal()  # words that are to come out; something was wrong before
        byte, size, second = Signal(3), Signal(4), Signal()  # in each plane; bytes of a plane; the block is its beat's second
        with m.If(out.ready):
            m.d.sync += out.valid.eq(0)
        with m.FSM():
            with m.State("PASS"):
                m.d.comb += self.beats_in.ready.eq(free)
                with m.If(position.accepted):
                    m.d.sync += [out.valid.eq(1), out.payload.eq(beat), self.error.eq(0)]
                    m.d.sync += [left.eq(values), bad.eq(0), byte.eq(0), second.eq(0), size.eq(_plane_bytes(values))]
                    with m.If(position.ends_header & (beat.bytes == 32)):
                        m.d.sync += [out.payload.last.eq(values == 0), self.error.eq((values == 0) & ~beat.last)]
                        with m.If(beat.last):
                            m.next = "PASS"
                            with m.If(values != 0):
                                m.next = "FILL"
                        with m.Else():
                            m.next = "BODY"
                            with m.If(values == 0):
                                m.next = "DROP"
                    with m.Elif(position.marked & beat.last):
                        m.d.sync += self.error.eq(values != 0)
            with m.State("BODY"):
                final, block_ends = left <= LANES, byte + 1 == size
                at, used = (second << 4) + byte, (second << 4) + (size << 1)
                short = beat.bytes < used
                live = Mux(short, 0, _live(left))
                nonzero = beat.data.word_select(at[:5], 8) & live
                negative = beat.data.word_select((at + size)[:5], 8) & live
                wrong = short | (negative & ~nonzero).any()
                inexact = ~beat.last | (beat.bytes != used)
                m.d.comb += self.beats_in.ready.eq(free & block_ends & (second | final))
                with m.If(free & self.beats_in.valid):
                    self._emit(m, nonzero, negative, scale, left)
                    m.d.sync += [bad.eq(bad | wrong), self.error.eq(final & (bad | wrong | inexact)), byte.eq(byte + 1)]
                    with m.If(block_ends):
                        m.d.sync += [byte.eq(0), second.eq(~second), size.eq(_plane_bytes((left - LANES)[:16]))]
                        with m.If(final):
                            m.next = "PASS"
                            with m.If(~beat.last):
                                m.next = "DROP"
                        with m.Elif(second & beat.last):
                            m.next = "FILL"
            with m.State("FILL"), m.If(free):
                self._emit(m, Const(0, LANES), Const(0, LANES), scale, left)
                m.d.sync += self.error.eq(left <= LANES)
                with m.If(left <= LANES):
                    m.next = "PASS"
            with m.State("DROP"):
                m.d.comb += self.beats_in.ready.eq(1)
                with m.If(self.beats_in.valid & beat.last):
                    m.next = "PASS"
        return m

    def _emit(self, m: Module, nonzero: Value, negative: Value, scale: Value, left: Signal) -> None:
        """Emit the next ``LANES`` of ``left`` words: the scaler, negated if ``negative``."""
        beat = self.beats_out.payload
        words = [Mux(nonzero[k], Cat(scale[:31], scale[31] ^ negative[k]), 0) for k in range(LANES)]
        final = left <= LANES
        m.d.sync += [self.beats_out.valid.eq(1), beat.data.eq(Cat(words)), beat.first.eq(0), beat.last.eq(final)]
        m.d.sync += [beat.bytes.eq(Mux(final, left[:4] << 2, 32)), left.eq(left - LANES)]


def _live(left: Value) -> Value:
    """Return a mask of the valid ones among the next ``LANES`` words if ``left`` words remain."""
    return Cat(left > lane for lane in range(LANES))


def _plane_bytes(left: Value) -> Value:
    """Return the bytes of a plane of the next block if ``left`` elements remain."""
    return Mux(left >= 64, 8, (left[:6] + 7)[3:])
