"""Chunks of bytes into full beats, without gaps: the alignment unit (Li et al., MICRO 2018, section VI-A)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from paceline.nic.engine.stream import BEAT_BYTES, Pipeline, beat_layout

CHUNK_BYTES = 36
"""Most bytes of a chunk: a block's exponent, a tag vector and eight whole values."""


def chunk_layout(chunk_bytes: int = CHUNK_BYTES) -> data.StructLayout:
    """Up to ``chunk_bytes`` bytes; those from ``bytes`` on are zero. Every chunk of a frame holds at least one byte."""
    return data.StructLayout({"data": 8 * chunk_bytes, "bytes": chunk_bytes.bit_length(), "first": 1, "last": 1, "error": 1})


class Aligner(wiring.Component):
    """One chunk a cycle in, at most one beat a cycle out. A frame's last beat leaves at once, short where bytes are lacking.

    A chunk that completes two beats takes a second cycle, as does a last one that leaves a rest. Four register stages.

    Args:
        beat_bytes: of an output beat, a power of two from 4 on.
        chunk_bytes: most of a chunk, ``beat_bytes`` + 1 or more and below twice ``beat_bytes``.

    Attributes:
        chunks: the input.
        beats: the output.
        error: of the beat at the output: its frame had a chunk with ``error``; valid with the last beat.
    """

    def __init__(self, beat_bytes: int = BEAT_BYTES, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._beat_bytes, self._chunk_bytes = beat_bytes, chunk_bytes
        chunks, beats = stream.Signature(chunk_layout(chunk_bytes)), stream.Signature(beat_layout(beat_bytes))
        super().__init__({"chunks": In(chunks), "beats": Out(beats), "error": Out(1)})

    def elaborate(self, platform: object) -> Module:
        """The circuit."""
        beat_bytes, chunk_bytes = self._beat_bytes, self._chunk_bytes
        most_held = chunk_bytes - 1  # bytes that can be left behind an output beat
        most_joined = chunk_bytes + beat_bytes - 1
        count = len(self.chunks.payload.bytes)
        m = Module()
        move = Signal()
        m.d.comb += move.eq(~self.beats.valid | self.beats.ready)
        stages = Pipeline(m, move)

        # Where the next chunk goes, and how many beats it completes. ``again``: a second beat of the chunk before.
        chunk, held, again, again_last = self.chunks.payload, Signal(count), Signal(), Signal()
        again_error, frame_error = Signal(), Signal()
        total = Signal(range(most_joined + 1))
        m.d.comb += total.eq(held + chunk.bytes)
        accept = self.chunks.valid & ~again
        m.d.comb += self.chunks.ready.eq(move & ~again)
        full = total >= beat_bytes
        rest = Signal(count)  # behind the beat that this chunk completes
        m.d.comb += rest.eq(total - beat_bytes)
        ends = chunk.last & (total <= beat_bytes)
        again_ends = again_last & (held <= beat_bytes)
        emits, last, size, error = Signal(), Signal(), Signal(count), Signal()
        m.d.comb += [
            emits.eq(Mux(again, 1, accept & (full | chunk.last))),
            last.eq(Mux(again, again_ends, ends)),
            size.eq(Mux(again, Mux(again_ends, held, beat_bytes), Mux(full, beat_bytes, total[:count]))),
            error.eq(Mux(again, again_error, frame_error | chunk.error)),
        ]
        with m.If(move):
            with m.If(again):
                m.d.sync += [again.eq(again_last & ~again_ends), held.eq(Mux(again_ends, 0, held - beat_bytes))]
            with m.Elif(self.chunks.valid):
                more = full & ((chunk.last & (rest != 0)) | (rest >= beat_bytes))
                m.d.sync += [
                    again.eq(more),
                    again_last.eq(chunk.last),
                    again_error.eq(frame_error | chunk.error),
                    held.eq(Mux(ends, 0, Mux(full, rest, total[:count]))),
                    frame_error.eq((frame_error | chunk.error) & ~chunk.last),
                ]
        # The chunk moves up by ``held`` bytes: by whole steps (eight bytes), then by ones.
        bits = beat_bytes.bit_length() - 1
        low = bits - bits // 2  # bits of the place below a step
        place, step = held[:bits], 1 << low
        steps = [
            (Signal(8 * size, name=f"shifted{n}"), Signal(count, name=f"place{n}"))
            for n, size in ((0, chunk_bytes), (1, most_joined - step + 1), (2, most_joined))
        ]
        controls = [
            [
                Signal(name=f"valid{n}"),
                Signal(name=f"emits{n}"),
                Signal(name=f"last{n}"),
                Signal(count, name=f"size{n}"),
                Signal(name=f"error{n}"),
            ]
            for n in range(3)
        ]
        stages.register(
            (steps[0][0], Mux(accept, chunk.data, 0)),
            (steps[0][1], place),
            *zip(controls[0], (accept | again, emits, last, size, error), strict=True),
        )
        by_steps, by_ones = steps[0][1][low:bits], steps[1][1][:low]
        stages.register(
            (steps[1][0], Cat(steps[0][0], Const(0, 8 * (beat_bytes - step))) << (by_steps << (3 + low))),
            (steps[1][1], steps[0][1]),
            *zip(controls[1], controls[0], strict=True),
        )
        stages.register(
            (steps[2][0], Cat(steps[1][0], Const(0, 8 * (step - 1))) << (by_ones << 3)),
            *zip(controls[2], controls[1], strict=True),
        )
        # Bytes that are held join the chunk; a full beat leaves.
        valid, emits2, last2, size2, error2 = controls[2]
        kept = Signal(8 * most_held)
        joined = Signal(8 * most_joined)
        m.d.comb += joined.eq(steps[2][0] | kept)
        beat = self.beats.payload
        starts = Signal(init=1)
        with m.If(move):
            m.d.sync += self.beats.valid.eq(valid & emits2)
            with m.If(valid):
                m.d.sync += kept.eq(Mux(emits2, joined[8 * beat_bytes :], joined[: 8 * most_held]))
                with m.If(emits2):
                    m.d.sync += [
                        beat.data.eq(joined[: 8 * beat_bytes]),
                        beat.bytes.eq(size2),
                        beat.first.eq(starts),
                        beat.last.eq(last2),
                        self.error.eq(error2),
                        starts.eq(last2),
                    ]
        return m
