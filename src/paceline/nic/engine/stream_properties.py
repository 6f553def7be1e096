"""Properties of whole engines at their streams, as modules with assertions (paceline.nic.formal proves them).

Inputs and registers are free in every cycle. The input only keeps the rules of the stream: a beat waits unchanged until it is
taken, ``first`` is behind ``last``, and every beat of a frame but the last has 32 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring

from paceline.nic.engine.stream import BEAT_BYTES, LANES, Beat
from paceline.nic.engine.ternary_lanes import TernaryLanes

_COUNT = 3  # bits of the counters of frames and of beats


@dataclass
class _Side:
    """Frames and beats that have passed one side of an engine."""

    passes: Value
    frames: Signal
    beats: Signal
    inside: Signal


class _Bench(Elaboratable):
    """An engine with free inputs.

    Args:
        make: makes the engine.
        most_values: limit of its register ``values``, where it has one.
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
        """Drives a stream and counts what is taken."""
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
        """All inputs; the first one's counters."""
        streams = [getattr(engine, name) for name in ("beats_in", "beats_1", "beats_2") if hasattr(engine, name)]
        first, *_ = [self._input(m, stream) for stream in streams]
        return first


class Stable(_Bench):
    """A beat at the output, with ``error``, waits unchanged until it is taken."""

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


class Untouched(_Bench):
    """Any beat of any frame without the mark comes out as it went in, at its place, whatever the frames before it were."""

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
    """In place of the ternary lanes: any choice in any cycle. What holds with them holds with every circuit for the lanes."""

    def __init__(self) -> None:
        super().__init__(TernaryLanes().signature)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += [self.nonzero.eq(AnySeq(LANES)), self.negative.eq(AnySeq(LANES))]
        return m
