"""Alignment unit, which packs chunks of bytes into full beats without gaps (Li et al., MICRO 2018, section VI-A)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from paceline.nic.engine.stream import BEAT_BYTES, Pipeline, beat_layout

CHUNK_BYTES = 36
"""Most bytes of a chunk: a block's exponent, a tag vector and eight whole values."""


def chunk_layout(chunk_bytes: int = CHUNK_BYTES) -> data.StructLayout:
    """Return the layout of a chunk of 1 to ``chunk_bytes`` bytes of a frame; those from ``bytes`` on are zero."""
    return data.StructLayout({"data": 8 * chunk_bytes, "bytes": chunk_bytes.bit_length(), "last": 1, "error": 1})


class Aligner(wiring.Component):
    """Aligner that takes one chunk per cycle and returns at most one beat per cycle. A frame's last beat leaves at once and may
    be short. Bytes of a chunk beyond a beat wait. The next chunk is taken while less than two beats wait, so chunks of up to a
    beat on average take a cycle each. A frame's last chunk takes one more cycle for each remaining beat. Four register stages.

    Args:
        beat_bytes: bytes of an output beat, a power of two from 4 on.
        chunk_bytes: most of a chunk, ``beat_bytes`` + 1 or more and below twice ``beat_bytes``.

    Attributes:
        chunks: the input.
        beats: the output.
        error: error of the beat at the output: its frame had a chunk with ``error``; valid with the last beat.
    """

    def __init__(self, beat_bytes: int = BEAT_BYTES, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._beat_bytes, self._chunk_bytes = beat_bytes, chunk_bytes
        chunks, beats = stream.Signature(chunk_layout(chunk_bytes)), stream.Signature(beat_layout(beat_bytes))
        super().__init__({"chunks": In(chunks), "beats": Out(beats), "error": Out(1)})

    def elaborate(self, platform: object) -> Module:
        """Build the circuit."""
        beat_bytes, chunk_bytes = self._beat_bytes, self._chunk_bytes
        bits = beat_bytes.bit_length() - 1
        m = Module()
        move = Signal()
        m.d.comb += move.eq(~self.beats.valid | self.beats.ready)
        stages = Pipeline(m, move)

        # Bytes that wait, and bytes that leave in this cycle. ``flushing``: the frame's last chunk has been taken.
        chunk, held, flushing, failed = self.chunks.payload, Signal(bits + 2), Signal(), Signal()
        free = ~flushing & ~held[bits + 1]
        accept = self.chunks.valid & free
        total, emits, last, size, error = Signal(bits + 2), Signal(), Signal(), Signal(bits + 1), Signal()
        ends, full = flushing | (accept & chunk.last), total[bits:].any()
        m.d.comb += [
            self.chunks.ready.eq(move & free),
            total.eq(held + Mux(accept, chunk.bytes, 0)),
            emits.eq(full | ends),
            last.eq(ends & (total <= beat_bytes)),
            size.eq(Mux(full, beat_bytes, total)),
            error.eq(failed | (accept & chunk.error)),
        ]
        less_a_beat = Cat(total[:bits], total[bits:] - 1)
        stages.register(
            (held, Mux(last, 0, Mux(full, less_a_beat, total))),
            (flushing, ends & ~last),
            (failed, error & ~last),
        )
        # The chunk moves up by what waits, less than two beats: by steps (eight bytes), then by ones.
        low = (bits + 2) // 2  # bits of the place below a step
        step, places = 1 << low, 2 * beat_bytes
        widths = (chunk_bytes, chunk_bytes + places - step, chunk_bytes + places - 1)
        moved = [Signal(8 * width, name=f"moved{n}") for n, width in enumerate(widths)]
        place0, place1 = Signal(bits + 1), Signal(low)
        control = data.StructLayout({"valid": 1, "emits": 1, "last": 1, "size": bits + 1, "error": 1})
        controls = [Signal(control, name=f"control{n}") for n in range(3)]
        now = Cat(accept | emits, emits, last, size, error)
        stages.register(*zip((each.as_value() for each in controls), (now, *controls[:2]), strict=True))
        by_steps = Cat(moved[0], Const(0, 8 * (places - step))) << (place0[low:] << (3 + low))
        by_ones = Cat(moved[1], Const(0, 8 * (step - 1))) << (place1 << 3)
        stages.register((moved[0], Mux(accept, chunk.data, 0)), (moved[1], by_steps), (moved[2], by_ones))
        stages.register((place0, held[: bits + 1]), (place1, place0[:low]))
        # Bytes that wait join the chunk; a beat leaves.
        leaving, beat, starts = controls[2], self.beats.payload, Signal(init=1)
        waiting, joined = Signal(8 * (widths[2] - beat_bytes)), Signal(8 * widths[2])
        m.d.comb += joined.eq(moved[2] | waiting)
        with m.If(move):
            m.d.sync += self.beats.valid.eq(leaving.valid & leaving.emits)
            with m.If(leaving.valid):
                m.d.sync += waiting.eq(Mux(leaving.emits, joined[8 * beat_bytes :], joined[: len(waiting)]))
                with m.If(leaving.emits):
                    m.d.sync += [
                        beat.data.eq(joined[: 8 * beat_bytes]),
                        beat.bytes.eq(leaving.size),
                        beat.first.eq(starts),
                        beat.last.eq(leaving.last),
                        self.error.eq(leaving.error),
                        starts.eq(leaving.last),
                    ]
        return m
