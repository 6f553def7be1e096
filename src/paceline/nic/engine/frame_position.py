"""Position of an input beat in its frame, and registers sampled with a frame's first beat."""

from __future__ import annotations

from typing import Any, NamedTuple

from amaranth.hdl import Module, Mux, Signal, Value, ValueCastable

from paceline.nic.engine.stream import is_marked


class Sampled(NamedTuple):
    """Register of a frame: ``now`` while a beat of the frame waits, ``kept`` after its first beat."""

    now: Value
    kept: Signal


class FramePosition:
    """Tracker of the position in a stream of beats.

    Args:
        m: the module that takes the stream.
        source: the stream.
        head: header beats of a marked frame, 1 to 15; sampled with the first beat.

    Attributes:
        accepted, samples: a beat is taken; a frame's first beat is taken.
        marked, in_body, ends_header: of the beat that waits: its frame is marked; it is payload; it is the header's last.
    """

    def __init__(self, m: Module, source: Any, head: Value) -> None:
        self._m = m
        beat = source.payload
        self._first = beat.first
        kept_mark, left = Signal(), Signal(4)
        self.accepted, self.samples, self.marked, self.in_body, self.ends_header = (
            Signal(name=name) for name in ("accepted", "samples", "marked", "in_body", "ends_header")
        )
        m.d.comb += [
            self.accepted.eq(source.valid & source.ready),
            self.samples.eq(self.accepted & beat.first),
            self.marked.eq(Mux(beat.first, is_marked(beat.data), kept_mark)),
            self.in_body.eq(kept_mark & ~beat.first & (left == 0)),
            self.ends_header.eq(self.marked & (Mux(beat.first, head, left) == 1)),
        ]
        with m.If(self.samples):
            m.d.sync += [kept_mark.eq(self.marked), left.eq(head - 1)]
        with m.Elif(self.accepted & (left != 0)):
            m.d.sync += left.eq(left - 1)

    def sampled(self, register: Value | ValueCastable) -> Sampled:
        """Return ``register`` as sampled with the frame's first beat."""
        now = Value.cast(register)
        kept = Signal(now.shape(), name=f"{getattr(register, 'name', 'register')}_kept")
        with self._m.If(self.samples):
            self._m.d.sync += kept.eq(now)
        return Sampled(Mux(self._first, now, kept), kept)
