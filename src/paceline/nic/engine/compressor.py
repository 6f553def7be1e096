"""Compressor from eight values per beat to packed bursts. Unmarked frames pass unchanged.

    beats -> frames -> queue -> groups -> lanes (4 stages) -> join (3 levels) -> chunk -> aligner -> beats

A frame's registers are sampled with its first beat and accompany it. ``inceptionn-scaled`` waits in the queue for the end of a
block, whose largest magnitude gives the scale; everything else passes the queue at once.
"""

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, fifo, wiring
from amaranth.lib.wiring import In, Out

from paceline.nic.engine.align import CHUNK_BYTES, Aligner
from paceline.nic.engine.compact import joined, registers
from paceline.nic.engine.lane import SCALE_BIAS, Lane
from paceline.nic.engine.lanes import EMPTY, FrameFormat, payload_bytes
from paceline.nic.engine.stream import BEAT_BYTES, HEADS, LANES, Pipeline, is_marked, signature

BLOCK_BEATS = 128
"""Beats of a block of ``inceptionn-scaled``: 1,024 values."""
MOST_PENDING = 3
"""Scales that may be under way or wait in their FIFO, which holds four."""
QUEUE_BEATS = 256
"""Beats that wait: one block is filled while the one before leaves."""


class _Queued(data.Struct):
    """Beat in the queue. ``values``: True if it holds values to be coded, else it passes. ``ends``: True for the last beat of a
    block."""

    data: 8 * BEAT_BYTES
    bytes: 6
    last: 1
    values: 1
    ends: 1
    choice: FrameFormat


class _Scale(data.Struct):
    """Scale of a block: e, whether all values are zero, and whether a value is infinite or NaN (``illegal``)."""

    exponent: signed(10)
    empty: 1
    illegal: 1


class Compressor(wiring.Component):
    """Compressor of marked frames.

    Args:
        block_beats: beats of a block of ``inceptionn-scaled``; the codec knows blocks of 128.
        queue_beats: capacity of the queue in beats, ``block_beats`` or more.
        make_aligner: makes the aligner.

    Attributes:
        head, k, scaled: header beats that pass (1 to 15), the bound 2^-k, the format; taken with a frame's first beat.
        beats_in, beats_out: the stream.
        error: with a frame's last beat; ``inceptionn-scaled`` cannot represent a value of the frame.
        queue, scales: the FIFOs of beats, and of the scales of their blocks.
    """

    head: In(HEADS)
    k: In(4)
    scaled: In(1)
    beats_in: In(signature())
    beats_out: Out(signature())
    error: Out(1)

    def __init__(
        self,
        block_beats: int = BLOCK_BEATS,
        queue_beats: int = QUEUE_BEATS,
        make_aligner: Callable[[], Any] = Aligner,
    ) -> None:
        super().__init__()
        self._block_beats, self._make_aligner = block_beats, make_aligner
        self.queue = fifo.SyncFIFOBuffered(width=_Queued.as_shape().size, depth=queue_beats)
        self.scales = fifo.SyncFIFO(width=_Scale.as_shape().size, depth=4)

    def elaborate(self, platform: object) -> Module:
        """Build the circuit."""
        m = Module()
        m.submodules.queue, m.submodules.scales = self.queue, self.scales
        m.submodules.aligner = aligner = self._make_aligner()
        self._fill(m, self.queue, self.scales)
        self._code(m, self.queue, self.scales, aligner)
        wiring.connect(m, aligner.beats, wiring.flipped(self.beats_out))
        m.d.comb += self.error.eq(aligner.error)
        return m

    def _fill(self, m: Module, queue: fifo.SyncFIFOBuffered, scales: fifo.SyncFIFO) -> None:
        """Write beats into the queue, and the scale of each block after it."""
        beat = self.beats_in.payload
        marked, choice, left = Signal(), Signal(FrameFormat), Signal(HEADS)
        now_marked = Mux(beat.first, is_marked(beat.data), marked)
        now_choice = Signal(FrameFormat)
        m.d.comb += now_choice.eq(Mux(beat.first, Cat(self.k, self.scaled), choice))
        heads = Mux(beat.first, self.head, left)  # header beats from this one on
        values = now_marked & (heads == 0)
        count = Signal(range(self._block_beats))
        ends = values & ((count == self._block_beats - 1) | beat.last)
        # Two stages behind the queue's input: fields of the beat, then of the block.
        room = Signal()
        pending = Signal(range(8))  # scales under way and stored
        m.d.comb += [
            room.eq(queue.w_rdy & (pending < MOST_PENDING)),
            self.beats_in.ready.eq(room),
            queue.w_en.eq(self.beats_in.valid & room),
            queue.w_data.eq(Cat(beat.data, beat.bytes, beat.last, values, ends, now_choice)),
        ]
        taken = queue.w_en
        with m.If(taken):
            m.d.sync += [marked.eq(now_marked), choice.eq(now_choice), left.eq(Mux(heads == 0, 0, heads - 1))]
            with m.If(values):
                m.d.sync += count.eq(Mux(ends, 0, count + 1))
        lanes = [beat.data[32 * i : 32 * i + 32] for i in range(LANES)]
        exists = [4 * i < beat.bytes for i in range(LANES)]
        fields = [Mux(here, lane[23:31], 0) for lane, here in zip(lanes, exists, strict=True)]
        fractions = [Mux(here, lane[:23], 0) for lane, here in zip(lanes, exists, strict=True)]
        pairs = [Signal(8, name=f"field{i}") for i in range(4)]
        fraction, ended, came = Signal(23), Signal(), Signal()
        m.d.sync += [
            came.eq(taken & values & now_choice.scaled),
            ended.eq(ends),
            fraction.eq(_either(fractions)),
            *(pair.eq(_larger(a, b)) for pair, a, b in zip(pairs, fields[::2], fields[1::2], strict=True)),
        ]
        field, bits, done = Signal(8), Signal(23), Signal()
        fresh = Signal(init=1)
        beat_field = _larger(_larger(pairs[0], pairs[1]), _larger(pairs[2], pairs[3]))
        m.d.sync += done.eq(came & ended)
        with m.If(came):
            m.d.sync += [
                field.eq(Mux(fresh, beat_field, _larger(field, beat_field))),
                bits.eq(Mux(fresh, fraction, bits | fraction)),
                fresh.eq(ended),
            ]
        scale = Signal(_Scale)
        top = Signal(range(24))
        for bit in range(23):
            with m.If(bits[bit]):
                m.d.comb += top.eq(bit + 1)
        m.d.comb += [
            scale.exponent.eq(Mux(field == 0, top - 149, Mux(field == 255, 128, field - 126))),
            scale.empty.eq((field == 0) & (bits == 0)),
            scale.illegal.eq(field == 255),
            scales.w_en.eq(done),
            scales.w_data.eq(scale),
        ]
        begun = taken & ends & now_choice.scaled
        m.d.sync += pending.eq(pending + begun - scales.r_en)

    def _code(self, m: Module, queue: fifo.SyncFIFOBuffered, scales: fifo.SyncFIFO, aligner: Aligner) -> None:
        """Build the path from the queue through lanes and joins to chunks."""
        entry, scale = Signal(_Queued), Signal(_Scale)
        m.d.comb += [entry.eq(queue.r_data), scale.eq(scales.r_data)]
        needs_scale = entry.values & entry.choice.scaled
        move = Signal()
        go = queue.r_rdy & (~needs_scale | scales.r_rdy)
        begins = Signal(init=1)  # the next beat of values begins a block
        skips = needs_scale & scale.empty  # such a block is its exponent alone
        present = go & ~(skips & ~entry.ends)
        m.d.comb += [queue.r_en.eq(move & go), scales.r_en.eq(move & go & needs_scale & entry.ends)]
        with m.If(move & go & entry.values):
            m.d.sync += begins.eq(entry.ends)

        stages = Pipeline(m, move)
        control = data.StructLayout(
            {
                "valid": 1,
                "last": 1,
                "error": 1,
                "values": 1,
                "prefix": 1,
                "empty": 1,
                "bytes": 6,
                "exponent": 16,
                "choice": FrameFormat,
            }
        )
        controls = [Signal(control, name=f"control{n}") for n in range(8)]
        stored = Mux(scale.empty, Const(EMPTY, signed(16)), scale.exponent)
        exponent16 = Signal(signed(16))
        m.d.comb += exponent16.eq(stored)
        prefix = needs_scale & (begins | skips)
        error = needs_scale & scale.illegal
        now = Cat(present, entry.last, error, entry.values, prefix, skips, entry.bytes, exponent16, entry.choice)
        # The lanes take four stages; their inputs are registers.
        base, present_lanes = Signal(9), Signal(LANES)
        stages.register((base, Mux(needs_scale, scale.exponent, 0) + SCALE_BIAS))
        stages.register((present_lanes, Cat((4 * i < entry.bytes) & ~skips for i in range(LANES))))
        values = [Signal(32, name=f"value{i}") for i in range(LANES)]
        stages.register(*((values[i], entry.data[32 * i : 32 * i + 32]) for i in range(LANES)))
        stages.register((controls[0].as_value(), now))
        lanes = [Lane() for _ in range(LANES)]
        for i, lane in enumerate(lanes):
            m.submodules[f"lane{i}"] = lane
            m.d.comb += [
                lane.enable.eq(move),
                lane.value.eq(values[i]),
                lane.exists.eq(present_lanes[i]),
                lane.passes.eq(~controls[0].values),
                lane.choice.eq(controls[0].choice),
                lane.scale.eq(base),
            ]
        for n in range(1, 5):
            stages.register((controls[n].as_value(), controls[n - 1].as_value()))
        # Joins, each level behind registers.
        parts, sizes = [lane.payload for lane in lanes], [payload_bytes(lane.tag) for lane in lanes]
        tags = Cat(lane.tag for lane in lanes)
        for level in range(3):
            wider, counts = joined(parts, sizes)
            parts, sizes = registers(wider, f"joined{level}_"), registers(counts, f"size{level}_")
            vector = Signal(16, name=f"tags{level}")
            stages.register(*zip(parts, wider, strict=True), *zip(sizes, counts, strict=True), (vector, tags))
            stages.register((controls[5 + level].as_value(), controls[4 + level].as_value()))
            tags = vector
        # A chunk: exponent, tags, payloads, each where it is sent.
        last = controls[7]
        burst = Cat(tags, parts[0])
        chunk = Signal(8 * CHUNK_BYTES)
        with m.If(~last.values):
            m.d.comb += chunk.eq(parts[0])
        with m.Elif(last.empty):
            m.d.comb += chunk.eq(last.exponent)
        with m.Elif(last.prefix):
            m.d.comb += chunk.eq(Cat(last.exponent, burst))
        with m.Else():
            m.d.comb += chunk.eq(burst)
        size = Mux(~last.values, last.bytes, Mux(last.empty, 2, Mux(last.prefix, sizes[0] + 4, sizes[0] + 2)))
        out = aligner.chunks
        stages.register(
            (out.payload.data, chunk),
            (out.payload.bytes, size),
            (out.payload.last, last.last),
            (out.payload.error, last.error),
        )
        with m.If(move):
            m.d.sync += out.valid.eq(last.valid)
        m.d.comb += move.eq(~out.valid | out.ready)


def _larger(a: object, b: object) -> object:
    return Mux(a > b, a, b)  # type: ignore[operator]


def _either(values: list) -> object:  # type: ignore[type-arg]
    result = values[0]
    for value in values[1:]:
        result = result | value
    return result
