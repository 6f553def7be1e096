"""Chunks of bytes into full beats, without gaps: the alignment unit (Li et al., MICRO 2018, section VI-A)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from paceline.nic.engine.stream import BEAT_BYTES, Pipeline, signature

CHUNK_BYTES = 36
"""Most bytes of a chunk: a block's exponent, a tag vector and eight whole values."""
_HELD = CHUNK_BYTES - 1  # bytes that can be left behind an output beat


class Chunk(data.Struct):
    """Up to 36 bytes; those from ``bytes`` on are zero. Every frame holds at least one byte, also in its last chunk."""

    data: 8 * CHUNK_BYTES
    bytes: 6
    first: 1
    last: 1
    error: 1


class Aligner(wiring.Component):
    """One chunk a cycle in, at most one beat a cycle out. A frame's last beat leaves at once, short where bytes are lacking.

    A chunk that completes two beats takes a second cycle, as does a last one that leaves a rest. Four register stages.

    Attributes:
        chunks: the input.
        beats: the output.
        error: of the beat at the output: its frame had a chunk with ``error``; valid with the last beat.
    """

    chunks: In(stream.Signature(Chunk))
    beats: Out(signature())
    error: Out(1)

    def elaborate(self, platform: object) -> Module:
        """The circuit."""
        m = Module()
        move = Signal()
        m.d.comb += move.eq(~self.beats.valid | self.beats.ready)
        stages = Pipeline(m, move)

        # Where the next chunk goes, and how many beats it completes. ``again``: a second beat of the chunk before.
        chunk, held, again, again_last = self.chunks.payload, Signal(6), Signal(), Signal()
        again_error, frame_error = Signal(), Signal()
        total = Signal(7)
        m.d.comb += total.eq(held + chunk.bytes)
        accept = self.chunks.valid & ~again
        m.d.comb += self.chunks.ready.eq(move & ~again)
        full = total >= BEAT_BYTES
        rest = Signal(6)  # behind the beat that this chunk completes
        m.d.comb += rest.eq(total - BEAT_BYTES)
        ends = chunk.last & (total <= BEAT_BYTES)
        again_ends = again_last & (held <= BEAT_BYTES)
        emits, last, size, error = Signal(), Signal(), Signal(6), Signal()
        m.d.comb += [
            emits.eq(Mux(again, 1, accept & (full | chunk.last))),
            last.eq(Mux(again, again_ends, ends)),
            size.eq(Mux(again, Mux(again_ends, held, BEAT_BYTES), Mux(full, BEAT_BYTES, total[:6]))),
            error.eq(Mux(again, again_error, frame_error | chunk.error)),
        ]
        with m.If(move):
            with m.If(again):
                m.d.sync += [again.eq(again_last & ~again_ends), held.eq(Mux(again_ends, 0, held - BEAT_BYTES))]
            with m.Elif(self.chunks.valid):
                more = full & ((chunk.last & (rest != 0)) | (rest >= BEAT_BYTES))
                m.d.sync += [
                    again.eq(more),
                    again_last.eq(chunk.last),
                    again_error.eq(frame_error | chunk.error),
                    held.eq(Mux(ends, 0, Mux(full, rest, total[:6]))),
                    frame_error.eq((frame_error | chunk.error) & ~chunk.last),
                ]
        # The chunk moves up by ``held`` bytes: by eights, then by ones.
        place = held[:5]
        steps = [
            (Signal(8 * size, name=f"shifted{n}"), Signal(6, name=f"place{n}"))
            for n, size in ((0, CHUNK_BYTES), (1, 60), (2, 67))
        ]
        controls = [
            [
                Signal(name=f"valid{n}"),
                Signal(name=f"emits{n}"),
                Signal(name=f"last{n}"),
                Signal(6, name=f"size{n}"),
                Signal(name=f"error{n}"),
            ]
            for n in range(3)
        ]
        stages.register(
            (steps[0][0], Mux(accept, chunk.data, 0)),
            (steps[0][1], place),
            *zip(controls[0], (accept | again, emits, last, size, error), strict=True),
        )
        by_eights, by_ones = steps[0][1][3:5], steps[1][1][:3]
        stages.register(
            (steps[1][0], Cat(steps[0][0], Const(0, 8 * 24)) << (by_eights << 6)),
            (steps[1][1], steps[0][1]),
            *zip(controls[1], controls[0], strict=True),
        )
        stages.register(
            (steps[2][0], Cat(steps[1][0], Const(0, 8 * 7)) << (by_ones << 3)),
            *zip(controls[2], controls[1], strict=True),
        )
        # Bytes that are held join the chunk; a full beat leaves.
        valid, emits2, last2, size2, error2 = controls[2]
        kept = Signal(8 * _HELD)
        joined = Signal(8 * 67)
        m.d.comb += joined.eq(steps[2][0] | kept)
        beat = self.beats.payload
        starts = Signal(init=1)
        with m.If(move):
            m.d.sync += self.beats.valid.eq(valid & emits2)
            with m.If(valid):
                m.d.sync += kept.eq(Mux(emits2, joined[8 * BEAT_BYTES :], joined[: 8 * _HELD]))
                with m.If(emits2):
                    m.d.sync += [
                        beat.data.eq(joined[: 8 * BEAT_BYTES]),
                        beat.bytes.eq(size2),
                        beat.first.eq(starts),
                        beat.last.eq(last2),
                        self.error.eq(error2),
                        starts.eq(last2),
                    ]
        return m
