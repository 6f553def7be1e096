"""Properties of the alignment unit at its ports, as modules with assertions (proved by paceline.nic.formal)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amaranth.asserts import AnySeq
from amaranth.hdl import Array, Assert, Cat, Elaboratable, Module, Mux, Signal, Value

from paceline.nic.engine.align import Aligner


class Aligned(Elaboratable):
    """The aligner's output equals its input: no byte is lost, doubled, added or moved, and frames keep their ends.

    The input is any chunks at any time, the output is taken at any time. All beats of a frame but its last are full, so the
    index of a byte in its frame determines its output beat and its place in that beat. One byte is followed, any byte of any
    chunk: the beats in front of it that are still inside are counted down as they leave. Then it must come out with its value,
    as a frame's first or last byte if it was one, and a last one with the frame's ``error``. No beat leaves that has not
    been completed by chunks. The counters are bounded, so the property speaks of streams without end.

    A beat waits unchanged. If the output is taken in every cycle, a chunk waits at most ``patience`` cycles, and a frame leaves
    within as many after its last chunk.

    Args:
        make: makes the aligner.
        bits: bits of every byte, that are followed; the others do not reach the assertions.
        patience: cycles.
        most_inside: beats that may have been completed and not have left.
    """

    def __init__(
        self, make: Callable[[], Aligner] = Aligner, bits: Sequence[int] = (0,), patience: int = 7, most_inside: int = 7
    ) -> None:
        self._make, self._bits, self._patience, self._most_inside = make, bits, patience, most_inside

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.aligner = aligner = self._make()
        chunks, beats = aligner.chunks, aligner.beats
        chunk, beat = chunks.payload, beats.payload
        chunk_bytes, beat_bytes = len(chunk.data) // 8, len(beat.data) // 8

        # Any chunk, which waits unchanged until it is taken.
        waited, before = Signal(), Signal.like(chunk.as_value())
        size, free = AnySeq(len(chunk.bytes)), AnySeq(len(chunk.data))
        legal = Mux(size == 0, 1, Mux(size > chunk_bytes, chunk_bytes, size))
        octets = [Mux(place < legal, free[8 * place : 8 * place + 8], 0) for place in range(chunk_bytes)]
        fresh = Cat(*octets, legal[: len(chunk.bytes)], AnySeq(len(chunk.as_value()) - len(chunk.data) - len(chunk.bytes)))
        m.d.comb += [
            chunks.valid.eq(waited | AnySeq(1)),
            chunk.as_value().eq(Mux(waited, before, fresh)),
            beats.ready.eq(AnySeq(1)),
        ]
        m.d.sync += [waited.eq(chunks.valid & ~chunks.ready), before.eq(chunk.as_value())]

        comes, goes = chunks.valid & chunks.ready, beats.valid & beats.ready
        place = Signal(range(beat_bytes))  # of the next byte in its beat
        end = Signal(range(beat_bytes + chunk_bytes))
        started = end[: len(place)].any()
        completed = (end >> len(place)) + (chunk.last & started)
        inside = Signal(range(self._most_inside + 3))  # beats that are complete
        left = Signal.like(inside)
        m.d.comb += [end.eq(place + chunk.bytes), left.eq(inside - goes)]
        with m.If(comes):
            m.d.sync += place.eq(Mux(chunk.last, 0, end[: len(place)]))
        m.d.sync += inside.eq(left + Mux(comes, completed, 0))
        m.d.comb += [Assert(inside <= self._most_inside), Assert(~beats.valid | (inside != 0))]
        self._follow(m, aligner, place, left, comes, goes)
        self._assert_kept(m, aligner)
        self._assert_prompt(m, aligner, comes, inside)
        return m

    def _follow(self, m: Module, aligner: Aligner, place: Signal, left: Signal, comes: Value, goes: Value) -> None:
        chunk, beat = aligner.chunks.payload, aligner.beats.payload
        chunk_bytes, bits = len(chunk.data) // 8, len(place)
        wrong, within = Signal(), Signal()  # of the frame that comes in: it has an error; it has begun
        wrong_now = wrong | chunk.error
        with m.If(comes):
            m.d.sync += [wrong.eq(wrong_now & ~chunk.last), within.eq(~chunk.last)]
        picked = AnySeq(range(chunk_bytes))
        target = Signal(range(chunk_bytes + (1 << bits)))
        m.d.comb += target.eq(place + picked)
        chosen, follows, ahead, at = Signal(), Signal(), Signal.like(left), Signal(bits)
        value, is_first, is_last, error = Signal(len(self._bits)), Signal(), Signal(), Signal()
        with m.If(comes & ~chosen & AnySeq(1) & (picked < chunk.bytes)):
            m.d.sync += [
                chosen.eq(1),
                follows.eq(1),
                ahead.eq(left + (target >> bits)),
                at.eq(target),
                value.eq(_octet(chunk.data, picked, self._bits)),
                is_first.eq(~within & (picked == 0)),
                is_last.eq(chunk.last & (picked == chunk.bytes - 1)),
                error.eq(wrong_now),
            ]
        with m.If(aligner.beats.valid & follows & (ahead == 0)):
            m.d.comb += [
                Assert(at < beat.bytes),
                Assert(_octet(beat.data, at, self._bits) == value),
                Assert((beat.first & (at == 0)) == is_first),
                Assert((beat.last & (at == beat.bytes - 1)) == is_last),
                Assert(~is_last | (aligner.error == error)),
            ]
        with m.If(goes & follows):
            m.d.sync += [ahead.eq(ahead - 1), follows.eq(ahead != 0)]
        with m.If(aligner.beats.valid):
            m.d.comb += [Assert(beat.bytes != 0), Assert((beat.bytes == 1 << bits) | (beat.last & (beat.bytes < 1 << bits)))]

    def _assert_kept(self, m: Module, aligner: Aligner) -> None:
        beats = aligner.beats
        beat = beats.payload
        watched = Cat(
            beats.valid, beat.bytes, beat.first, beat.last, aligner.error, *(Cat(beat.data[bit::8]) for bit in self._bits)
        )
        waited, before = Signal(), Signal(len(watched))
        m.d.sync += [waited.eq(beats.valid & ~beats.ready), before.eq(watched)]
        m.d.comb += Assert(~waited | (watched == before))

    def _assert_prompt(self, m: Module, aligner: Aligner, comes: Value, inside: Value) -> None:
        chunks, beats = aligner.chunks, aligner.beats
        waits, rests = Signal(range(self._patience + 2)), Signal(range(self._patience + 2))
        at_rest = Signal(init=1)  # the last chunk was its frame's last
        with m.If(comes):
            m.d.sync += at_rest.eq(chunks.payload.last)
        m.d.sync += [
            waits.eq(Mux(beats.ready & chunks.valid & ~chunks.ready, waits + (waits <= self._patience), 0)),
            rests.eq(Mux(beats.ready & at_rest & ~comes, rests + (rests <= self._patience), 0)),
        ]
        m.d.comb += [Assert(waits <= self._patience), Assert((rests <= self._patience) | (inside == 0))]


def _octet(data: Value, place: Value, bits: Sequence[int]) -> Value:
    """Return the bits of the byte at index ``place``."""
    chosen: Value = Array(Cat(*(data[at + bit] for bit in bits)) for at in range(0, len(data), 8))[place]
    return chosen
