"""Properties of whole engines at their streams, as modules with assertions (proved by paceline.nic.formal).

Inputs and registers are free in every cycle. The input only keeps the rules of the stream: a beat waits unchanged until it is
taken, ``first`` follows ``last``, and every beat of a frame but the last has 32 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Cat, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from paceline.nic.engine.align import chunk_layout
from paceline.nic.engine.stream import BEAT_BYTES, HEADS, LANES, Beat, is_marked, signature
from paceline.nic.engine.ternary_lanes import ternary_ports

_COUNT = 3  # bits of the counters of frames and of beats


@dataclass
class _Side:
    """Counters of the frames and beats that have passed one side of an engine."""

    passes: Value
    frames: Signal
    beats: Signal
    inside: Signal


class _Bench(Elaboratable):
    """Engine with free inputs.

    Args:
        make: makes the engine.
        most_values: limit of its register ``values``, if it has one.
    """

    def __init__(self, make: Callable[[], Any], most_values: int = 16) -> None:
        self._make, self._most_values = make, most_values

    def _engine(self, m: Module) -> Any:
        engine = self._make()
        m.submodules.engine = engine
        for name, member in engine.signature.members.items():
            if member.is_port and member.flow == wiring.In:
                port = Value.cast(getattr(engine, name))
                m.d.comb += port.eq(AnySeq(port.shape()))
                if name in ("head", "k"):
                    m.d.comb += Assume(port != 0)
                if name == "values":
                    m.d.comb += Assume(port <= self._most_values)
        return engine

    def _input(self, m: Module, stream: Any) -> _Side:
        """Drive a stream and count the beats taken."""
        valid, beat = AnySeq(1), Beat(AnySeq(Beat.as_shape().size))
        m.d.comb += [stream.valid.eq(valid), stream.payload.as_value().eq(beat.as_value())]
        side = _counted(m, stream)
        waited, before = Signal(), Signal.like(stream.payload.as_value())
        m.d.sync += [waited.eq(valid & ~stream.ready), before.eq(beat.as_value())]
        m.d.comb += [
            Assume(~waited | (valid & (before == beat.as_value()))),
            Assume(beat.first == ~side.inside),
            Assume((beat.bytes != 0) & (beat.bytes <= BEAT_BYTES) & (beat.last | (beat.bytes == BEAT_BYTES))),
        ]
        return side

    def _inputs(self, m: Module, engine: Any) -> _Side:
        """Drive all inputs and return the counters of the first one."""
        streams = [getattr(engine, name) for name in ("beats_in", "beats_1", "beats_2") if hasattr(engine, name)]
        first, *_ = [self._input(m, stream) for stream in streams]
        return first


class Stable(_Bench):
    """A beat at the output, with its ``error``, waits unchanged until it is taken."""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        engine = self._engine(m)
        self._inputs(m, engine)
        out = engine.beats_out
        m.d.comb += out.ready.eq(AnySeq(1))
        waited, before, error = Signal(), Signal.like(out.payload.as_value()), Signal()
        m.d.sync += [waited.eq(out.valid & ~out.ready), before.eq(out.payload.as_value()), error.eq(engine.error)]
        with m.If(waited):
            m.d.comb += [Assert(out.valid), Assert(out.payload.as_value() == before), Assert(engine.error == error)]
        return m


class NeverOverfull(_Bench):
    """No FIFO of the compressor is written when it is full, or read when it is empty."""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        engine = self._engine(m)
        self._inputs(m, engine)
        m.d.comb += engine.beats_out.ready.eq(AnySeq(1))
        for queue in (engine.queue, engine.scales):
            m.d.comb += [Assert(~queue.w_en | queue.w_rdy), Assert(~queue.r_en | queue.r_rdy)]
        return m


class Untouched(_Bench):
    """Any beat of any unmarked frame leaves unchanged and at its position, after any earlier frames."""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        engine = self._engine(m)
        source, out = self._inputs(m, engine), engine.beats_out
        m.d.comb += out.ready.eq(AnySeq(1))
        entry = engine.beats_in if hasattr(engine, "beats_in") else engine.beats_1
        drain = _counted(m, out)
        frame, beat = AnyConst(2), AnyConst(2)
        here = (source.frames == frame) & (source.beats == beat)
        octets = [entry.payload.data[8 * k : 8 * k + 8] for k in range(16)]
        ipv4 = (octets[12] == 0x08) & (octets[13] == 0x00) & ((octets[15] & 0xFC) == 0x28)
        ipv6 = (octets[12] == 0x86) & (octets[13] == 0xDD) & (octets[14][:4] == 0x2) & ((octets[15][4:] & 0xC) == 0x8)
        m.d.comb += Assume(~(source.passes & entry.payload.first & (source.frames == frame) & (ipv4 | ipv6)))
        witness, seen = Signal.like(out.payload.as_value()), Signal()
        with m.If(source.passes & here):
            m.d.sync += [witness.eq(entry.payload.as_value()), seen.eq(1)]
        with m.If(drain.passes & (drain.frames == frame) & (drain.beats == beat)):
            m.d.comb += [Assert(seen), Assert(out.payload.as_value() == witness), Assert(~engine.error)]
        return m


class Passed(_Bench):
    """Unmarked frames leave unchanged and in order: no beat is lost, doubled, added or changed.

    Two beats that follow one another are watched, any two, or the first one alone. They carry a colour, one bit of data that
    all others leave clear (Wolper, POPL 1986: a circuit that moves data without reading it preserves the order of all beats if
    it preserves that of every pair). At the output the first colour is followed by the second, each comes once and as its beat
    came in, and without ``error``. ``Delivered`` proves that the last beats leave.

    Args:
        bits: bits of the data that are compared, besides both colours, bits 0 and 1; others do not reach the assertions.
    """

    def __init__(self, make: Callable[[], Any], bits: Sequence[int]) -> None:
        super().__init__(make)
        self._bits = bits

    def elaborate(self, platform: object) -> Module:
        m = Module()
        engine = self._engine(m)
        entry, out = engine.beats_in, engine.beats_out
        comes, goes = entry.valid & entry.ready, out.valid & out.ready
        # Any beat of any frame without the mark, which waits unchanged until it is taken.
        within, waited, before = Signal(), Signal(), Signal.like(entry.payload.as_value())
        free, size, ends = AnySeq(8 * BEAT_BYTES), AnySeq(range(BEAT_BYTES)), AnySeq(1)
        chosen, followed = Signal(), Signal()  # the first is in; the second is in
        alone = AnyConst(1)  # the second is the stream's first beat, and there is no first
        begun = Signal()
        is_first = ~alone & ~chosen & AnySeq(1)
        is_second = Mux(alone, ~begun, chosen & ~followed)
        unmarked = Cat(is_first, is_second, free[2:96], Mux(~within & is_marked(free), 0, free[96:104]), free[104:])
        fresh = Cat(unmarked, Mux(ends, size + 1, BEAT_BYTES)[:6], ~within, ends)
        m.d.comb += [
            entry.valid.eq(waited | AnySeq(1)),
            entry.payload.as_value().eq(Mux(waited, before, fresh)),
            out.ready.eq(AnySeq(1)),
        ]
        m.d.sync += [waited.eq(entry.valid & ~entry.ready), before.eq(entry.payload.as_value())]
        first, second = entry.payload.data[0], entry.payload.data[1]
        witnesses = [Signal(len(self._bits) + 8, name=f"witness{n}") for n in range(2)]
        with m.If(comes):
            m.d.sync += [within.eq(~entry.payload.last), begun.eq(1), chosen.eq(chosen | first), followed.eq(followed | second)]
            for colour, witness in zip((first, second), witnesses, strict=True):
                with m.If(colour):
                    m.d.sync += witness.eq(self._watched(entry.payload))
        left, ended, started = Signal(), Signal(), Signal()  # the first has left; the second has left; any has left
        with m.If(out.valid):
            m.d.comb += [
                Assert(out.payload.data[1] == Mux(alone, ~started, left & ~ended)),
                Assert(~(out.payload.data[0] & left)),
                Assert(~engine.error),
            ]
            for bit, witness in enumerate(witnesses):
                with m.If(out.payload.data[bit]):
                    m.d.comb += Assert(self._watched(out.payload) == witness)
        with m.If(goes):
            m.d.sync += [
                started.eq(1),
                left.eq(left | out.payload.data[0]),
                ended.eq(ended | out.payload.data[1]),
            ]
        return m

    def _watched(self, beat: Any) -> Value:
        return Cat(*(beat.data[bit] for bit in self._bits), beat.bytes, beat.first, beat.last)


class Delivered(_Bench):
    """After up to ``cycles`` cycles of input, each frame leaves within ``patience`` more cycles, and no other frame.

    With a register ``values`` a marked frame with its whole header leaves as header beats and one beat per eight values, the
    last with the remaining bytes. Any other frame keeps its number of beats.
    """

    def __init__(self, make: Callable[[], Any], cycles: int, patience: int, most_values: int = 16) -> None:
        super().__init__(make, most_values)
        self._cycles, self._end = cycles, cycles + patience

    def elaborate(self, platform: object) -> Module:
        m = Module()
        engine = self._engine(m)
        source, out = self._inputs(m, engine), engine.beats_out
        entry = engine.beats_in
        m.d.comb += out.ready.eq(1)
        drain = _counted(m, out)
        cycle = Signal(range(self._end + 1))
        m.d.sync += cycle.eq(cycle + (cycle != self._end))
        with m.If(cycle >= self._cycles):
            m.d.comb += Assume(~entry.valid & ~source.inside)
        with m.If(out.valid):
            m.d.comb += Assert(out.payload.first == ~drain.inside)
        with m.If(cycle == self._end):
            m.d.comb += [Assert(source.frames == drain.frames), Assert(~drain.inside)]
        if hasattr(engine, "values"):
            self._measure(m, engine, source, drain)
        return m

    def _measure(self, m: Module, engine: Any, source: _Side, drain: _Side) -> None:
        entry, out = engine.beats_in.payload, engine.beats_out.payload
        frame, marked, head, values = AnyConst(2), Signal(), Signal(HEADS), Signal(16)
        beats, size = Signal(_COUNT + 1), Signal(6)  # that came in; bytes of the last
        with m.If(source.passes & (source.frames == frame)):
            m.d.sync += [beats.eq(source.beats + 1), size.eq(entry.bytes)]
            with m.If(entry.first):
                m.d.sync += [marked.eq(is_marked(entry.data)), head.eq(engine.head), values.eq(engine.values)]
        body = marked & (beats >= head)
        rest = values[:3]
        with m.If(drain.passes & ~out.last & (drain.frames == frame)):
            m.d.comb += Assert(out.bytes == BEAT_BYTES)
        with m.If(drain.passes & out.last & (drain.frames == frame)):
            with m.If(body):
                m.d.comb += Assert(drain.beats + 1 == head + ((values + 7) >> 3))
                with m.If(values != 0):
                    m.d.comb += Assert(out.bytes == Mux(rest == 0, BEAT_BYTES, rest << 2))
            with m.Else():
                m.d.comb += [Assert(drain.beats + 1 == beats), Assert(out.bytes == size)]


def _counted(m: Module, stream: Any) -> _Side:
    frames, beats, inside = Signal(_COUNT), Signal(_COUNT), Signal()
    passes = stream.valid & stream.ready
    last, top = stream.payload.last, (1 << _COUNT) - 1
    with m.If(passes):
        m.d.sync += [
            inside.eq(~last),
            beats.eq(Mux(last, 0, Mux(beats == top, top, beats + 1))),
            frames.eq(Mux(last & (frames != top), frames + 1, frames)),
        ]
    return _Side(passes, frames, beats, inside)


class FreeLanes(wiring.Component):
    """Ternary lanes that are free choices in every cycle. A property proved with them holds for every circuit of the lanes."""

    def __init__(self) -> None:
        super().__init__(ternary_ports())

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += [self.nonzero.eq(AnySeq(LANES)), self.negative.eq(AnySeq(LANES))]
        return m


class WholeBeats(wiring.Component):
    """Replacement of the aligner for chunks of one full beat each, which leave unchanged."""

    def __init__(self) -> None:
        super().__init__({"chunks": In(stream.Signature(chunk_layout())), "beats": Out(signature()), "error": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        chunk, out = self.chunks.payload, self.beats
        beat, starts = out.payload, Signal(init=1)
        m.d.comb += self.chunks.ready.eq(~out.valid | out.ready)
        with m.If(self.chunks.valid):
            m.d.comb += Assert((chunk.bytes == BEAT_BYTES) | (chunk.last & (chunk.bytes != 0) & (chunk.bytes < BEAT_BYTES)))
        with m.If(self.chunks.ready):
            m.d.sync += out.valid.eq(self.chunks.valid)
            with m.If(self.chunks.valid):
                m.d.sync += [
                    beat.data.eq(chunk.data[: 8 * BEAT_BYTES]),
                    beat.bytes.eq(chunk.bytes),
                    beat.first.eq(starts),
                    beat.last.eq(chunk.last),
                    self.error.eq(chunk.error),
                    starts.eq(chunk.last),
                ]
        return m
