"""Chunks of bytes into full beats, without gaps: the alignment unit (Li et al., MICRO 2018, section VI-A)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from paceline.nic.engine.stream import BEAT_BYTES, Pipeline, signature

CHUNK_BYTES = 36
"""Most bytes of a chunk: a block's exponent, a tag vector and eight whole values."""
_PLACES = 64  # where a chunk may begin: behind so many bytes, less one, that have not left


class Chunk(data.Struct):
    """Up to 36 bytes; those from ``bytes`` on are zero. Every frame holds at least one byte, also in its last chunk."""

    data: 8 * CHUNK_BYTES
    bytes: 6
    last: 1
    error: 1


class Aligner(wiring.Component):
    """One chunk a cycle in, at most one beat a cycle out. A frame's last beat leaves at once, short where bytes are lacking.

    What a chunk has beyond a beat waits. The next chunk is taken while fewer than 64 bytes wait, so chunks of up to 32 bytes on
    average take a cycle each. A frame's last chunk takes a cycle more for each beat that is left. Four register stages.

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

        # How many bytes wait, and what leaves in this cycle. ``flushing``: the frame's last chunk has been taken.
        chunk, held, flushing, failed = self.chunks.payload, Signal(7), Signal(), Signal()
        free = ~flushing & ~held[6]
        accept = self.chunks.valid & free
        total, emits, last, size, error = Signal(7), Signal(), Signal(), Signal(6), Signal()
        ends, full = flushing | (accept & chunk.last), total[5:].any()
        m.d.comb += [
            self.chunks.ready.eq(move & free),
            total.eq(held + Mux(accept, chunk.bytes, 0)),
            emits.eq(full | ends),
            last.eq(ends & (total <= BEAT_BYTES)),
            size.eq(Mux(full, BEAT_BYTES, total)),
            error.eq(failed | (accept & chunk.error)),
        ]
        less_a_beat = Cat(total[:5], total[5:] - 1)
        stages.register(
            (held, Mux(last, 0, Mux(full, less_a_beat, total))),
            (flushing, ends & ~last),
            (failed, error & ~last),
        )
        # The chunk moves up by what waits: by eights, then by ones.
        widths = (CHUNK_BYTES, CHUNK_BYTES + _PLACES - 8, CHUNK_BYTES + _PLACES - 1)
        moved = [Signal(8 * width, name=f"moved{n}") for n, width in enumerate(widths)]
        places = [Signal(6, name="place0"), Signal(3, name="place1")]
        control = data.StructLayout({"valid": 1, "emits": 1, "last": 1, "size": 6, "error": 1})
        controls = [Signal(control, name=f"control{n}") for n in range(3)]
        now = Cat(accept | emits, emits, last, size, error)
        stages.register(*zip((each.as_value() for each in controls), (now, *controls[:2]), strict=True))
        stages.register((moved[0], Mux(accept, chunk.data, 0)), (places[0], held[:6]))
        stages.register(
            (moved[1], Cat(moved[0], Const(0, 8 * (_PLACES - 8))) << (places[0][3:] << 6)), (places[1], places[0][:3])
        )
        stages.register((moved[2], Cat(moved[1], Const(0, 8 * 7)) << (places[1] << 3)))
        # Bytes that wait join the chunk; a beat leaves.
        leaving, beat, starts = controls[2], self.beats.payload, Signal(init=1)
        waiting, joined = Signal(8 * (widths[2] - BEAT_BYTES)), Signal(8 * widths[2])
        m.d.comb += joined.eq(moved[2] | waiting)
        with m.If(move):
            m.d.sync += self.beats.valid.eq(leaving.valid & leaving.emits)
            with m.If(leaving.valid):
                m.d.sync += waiting.eq(Mux(leaving.emits, joined[8 * BEAT_BYTES :], joined[: len(waiting)]))
                with m.If(leaving.emits):
                    m.d.sync += [
                        beat.data.eq(joined[: 8 * BEAT_BYTES]),
                        beat.bytes.eq(leaving.size),
                        beat.first.eq(starts),
                        beat.last.eq(leaving.last),
                        self.error.eq(leaving.error),
                        starts.eq(leaving.last),
                    ]
        return m
