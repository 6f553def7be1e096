"""Decompressor from packed bursts to eight values per beat. Unmarked frames pass unchanged.

    beats -> window of three beats -> bursts (one a cycle) -> tags -> part (3 levels) -> lanes (4 stages) -> beats

The begin of a burst is known only from the burst before it. So the end of a burst is computed in advance for every place of a
beat, and the loop from one burst to the next selects among 32 ends.
"""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from paceline.nic.engine.compact import lower_sizes, parted, registers, total_bytes
from paceline.nic.engine.lanes import (
    EMPTY,
    LEAST_EXPONENT,
    MOST_EXPONENT,
    FrameFormat,
    Lift,
    Restored,
    fp32_word,
    lift,
    lost_bits,
    received,
    restored,
    rounded,
    top_bit,
)
from paceline.nic.engine.stream import BEAT_BYTES, HEADS, LANES, Beat, Pipeline, Skid, is_marked, signature

BURST_BYTES = 34
COUNT_BITS = 16
_BLOCK_GROUPS = 128


class _BeatEntry(data.Struct):
    """Beat with the registers sampled on its arrival."""

    beat: Beat
    choice: FrameFormat
    values: COUNT_BITS
    head: HEADS


class Decompressor(wiring.Component):
    """Decompressor of marked frames.

    A frame always leaves with ``values`` values. ``error``, with its last beat: bytes are missing or surplus, or a code is
    illegal; the values are then unusable.

    Attributes:
        head, k, scaled: header beats that pass (1 to 15), the bound 2^-k, the format; taken with a frame's first beat.
        values: fp32 values of the frame, taken with its first beat.
        beats_in, beats_out: the stream.
    """

    head: In(HEADS)
    k: In(4)
    scaled: In(1)
    values: In(COUNT_BITS)
    beats_in: In(signature())
    beats_out: Out(signature())
    error: Out(1)

    def elaborate(self, platform: object) -> Module:
        """Build the circuit."""
        m = Module()
        move = Signal()
        stages = Pipeline(m, move)
        op = self._window(m, move)
        self._restore(m, stages, move, op)
        return m

    def _window(self, m: Module, move: Signal) -> "_Operation":
        """Build the window of three beats, the position in the first beat, and the output to the pipeline in this cycle."""
        m.submodules.entry = entry = Skid(_BeatEntry)
        m.d.comb += [
            entry.taken.valid.eq(self.beats_in.valid),
            entry.taken.payload.eq(Cat(self.beats_in.payload, self.k, self.scaled, self.values, self.head)),
            self.beats_in.ready.eq(entry.taken.ready),
        ]
        entries = [*(Signal(_BeatEntry, name=f"window{n}") for n in range(2)), entry.given.payload]
        here = [*(Signal(name=f"here{n}") for n in range(2)), entry.given.valid]
        window = [each.beat for each in entries]
        ends = Array(Signal(7, name=f"end{place}") for place in range(BEAT_BYTES))

        # A beat moves up to a place that is empty or left. The first place needs the ends of its bursts, and the last of them
        # the byte behind the beat: so a beat waits for the next one, unless it is its frame's last.
        advance = Signal()
        up0 = (~here[0] | advance) & here[1] & (window[1].last | here[2])
        up1 = (~here[1] | up0) & here[2]
        m.d.comb += entry.given.ready.eq(up1)
        with m.If(up0):
            m.d.sync += entries[0].eq(entries[1])
            octets = Cat(window[1].data, Mux(window[1].last, 0, window[2].data[:8]))
            for place in range(BEAT_BYTES):
                m.d.sync += ends[place].eq(total_bytes(octets[8 * place : 8 * place + 16]) + (place + 2))
        with m.If(up1):
            m.d.sync += entries[1].eq(entries[2])
        m.d.sync += [here[0].eq(up0 | (here[0] & ~advance)), here[1].eq(up1 | (here[1] & ~up0))]

        beat = window[0]
        place = Signal(7)
        second, third = here[1] & ~beat.last, here[2] & ~beat.last & ~window[1].last
        available, complete = Signal(7), Signal()  # bytes of the frame in the window; its last beat is in the window
        m.d.comb += [
            available.eq(beat.bytes + Mux(second, window[1].bytes, 0) + Mux(third, window[2].bytes, 0)),
            complete.eq(beat.last | (second & window[1].last) | (third & window[2].last)),
        ]
        marked, heads, groups, rest = Signal(), Signal(HEADS), Signal(14), Signal(3)
        body, short, dropping = Signal(), Signal(), Signal()  # short: the input has ended too early
        block, empty, bad, exponent = Signal(range(_BLOCK_GROUPS)), Signal(), Signal(), Signal(signed(16))
        choice, last_group = Signal(FrameFormat), Signal()
        # Late: how far the burst before reaches, and whether its bytes are there or it ends the frame. Off the loop.
        reach, room, reaches, ends_frame = Signal(7), Signal(7), Signal(), Signal()
        read_exponent = Signal()
        wrong_exponent = (exponent != EMPTY) & ((exponent < LEAST_EXPONENT) | (exponent > MOST_EXPONENT))
        now_bad = bad | (read_exponent & wrong_exponent)
        op = _Operation()
        m.d.comb += [
            op.octets.eq(Cat(beat.data, window[1].data, window[2].data)),
            op.place.eq(place[:5]),
            op.choice.eq(choice),
            op.scale.eq(Mux(choice.scaled, exponent[:10].as_signed(), 0)),
            op.rest.eq(Mux(last_group, rest, 0)),
            op.late_error.eq(ends_frame & (reach != room)),
        ]
        end = Signal(7)
        m.d.comb += end.eq(ends[place[:5]])
        # The two bytes at ``place``: a block's exponent.
        pairs = Array(Cat(beat.data, window[1].data)[8 * n : 8 * n + 16] for n in range(BEAT_BYTES))
        stored = Signal(signed(16))
        m.d.comb += stored.eq(pairs[place[:5]])
        has_exponent = Signal()  # of the block that is under way
        wants_exponent = choice.scaled & ~has_exponent

        with m.If(move):
            m.d.sync += [reaches.eq(0), ends_frame.eq(0), room.eq(available), read_exponent.eq(0), bad.eq(now_bad)]
            with m.If(reaches & ~short & (reach > room)):
                m.d.sync += [short.eq(1), dropping.eq(1)]
        with m.If(dropping & here[0]):
            m.d.comb += advance.eq(1)
            with m.If(beat.last):
                m.d.sync += dropping.eq(0)

        with m.If(move & ~body & ~dropping & here[0]):
            # Header beats, and whole frames that are not marked.
            now_marked = Mux(beat.first, is_marked(beat.data), marked)
            now_heads = Mux(beat.first, entries[0].head, heads)
            now_groups = Mux(beat.first, (entries[0].values + (LANES - 1)) >> 3, groups)
            ends_head = now_marked & (now_heads <= 1)
            nothing = now_groups == 0
            m.d.comb += [
                advance.eq(1),
                op.valid.eq(1),
                op.raw.eq(1),
                op.first.eq(beat.first),
                op.bytes.eq(Mux(ends_head & ~nothing, BEAT_BYTES, beat.bytes)),
                op.last.eq(Mux(ends_head, nothing, beat.last)),
                op.error.eq(Mux(ends_head, nothing & ~beat.last, now_marked & beat.last & ~nothing)),
            ]
            m.d.sync += [marked.eq(now_marked), heads.eq(now_heads - 1)]
            with m.If(beat.first):
                m.d.sync += [
                    groups.eq(now_groups),
                    last_group.eq(now_groups == 1),
                    rest.eq(entries[0].values[:3]),
                    choice.eq(entries[0].choice),
                ]
            with m.If(ends_head):
                m.d.sync += [
                    body.eq(~nothing),
                    dropping.eq(nothing & ~beat.last),
                    short.eq(beat.last),
                    place.eq(0),
                    block.eq(0),
                    empty.eq(0),
                    bad.eq(0),
                    has_exponent.eq(0),
                ]

        bursts = body & ~short
        zeros = choice.scaled & has_exponent & empty
        # A burst leaves when all bytes that it can need have arrived. Missing bytes are detected later: a burst refused by that
        # check has left as part of a frame with an error, and so has one burst after it.
        known = complete | third
        with m.If(move & bursts & here[0] & known):
            with m.If(place[5:].any() & ~beat.last):
                m.d.comb += advance.eq(1)
                m.d.sync += place.eq(_less_a_beat(place))
            with m.Elif(wants_exponent):
                behind = place + 2
                m.d.sync += [exponent.eq(stored), empty.eq(stored == EMPTY), read_exponent.eq(1), has_exponent.eq(1)]
                m.d.sync += [place.eq(behind), reach.eq(behind), reaches.eq(1)]
            with m.Else():
                reached = Mux(zeros, place, end)
                m.d.comb += [op.valid.eq(1), op.zero.eq(zeros)]
                m.d.sync += reach.eq(reached)
                with m.If(last_group):
                    m.d.comb += [advance.eq(1), op.error.eq(now_bad | ~complete)]
                    m.d.sync += [ends_frame.eq(1), dropping.eq(~beat.last)]
                with m.Else():
                    over = reached[5:].any() & ~beat.last
                    m.d.comb += advance.eq(over)
                    m.d.sync += [place.eq(Mux(over, _less_a_beat(reached), reached)), reaches.eq(1)]
        with m.If(move & body & short):
            m.d.comb += [op.valid.eq(1), op.zero.eq(1), op.error.eq(1)]
        with m.If(body & op.valid):
            ends_block = choice.scaled & (block == _BLOCK_GROUPS - 1)
            m.d.comb += [
                op.begins.eq(block == 0),
                op.ends.eq(ends_block | last_group),
                op.last.eq(last_group),
                op.bytes.eq(Mux(last_group & (rest != 0), Cat(Const(0, 2), rest), BEAT_BYTES)),
            ]
            m.d.sync += [groups.eq(groups - 1), last_group.eq(groups == 2), block.eq(block + 1), body.eq(~last_group)]
            with m.If(ends_block):
                m.d.sync += has_exponent.eq(0)
        return op

    def _restore(self, m: Module, stages: Pipeline, move: Signal, op: "_Operation") -> None:
        """Build the path from the window through shifts, parts and lanes to beats."""
        names = ("valid", "raw", "zero", "first", "last", "bytes", "error", "begins", "ends", "choice", "scale", "rest")
        control = data.StructLayout({name: getattr(op, name).shape() for name in names})
        controls = [Signal(control, name=f"control{n}") for n in range(9)]
        shared = Lift(Signal(signed(11)), Signal(), Signal(5))  # of controls[7]
        lifted = lift(controls[6].scale)
        stages.register((shared.exponent, lifted.exponent), (shared.down, lifted.down), (shared.amount, lifted.amount))
        stages.register((controls[0].as_value(), Cat(*(getattr(op, name) for name in names))))
        for n in range(1, 9):
            stages.register((controls[n].as_value(), controls[n - 1].as_value()))
        stages.register((controls[1].error, controls[0].error | op.late_error))
        # The burst moves down by its place: by eights, then by ones.
        by_eights, ones = Signal(8 * (BURST_BYTES + 7)), Signal(3)
        coarse = [op.octets[64 * n : 64 * n + 8 * (BURST_BYTES + 7)] for n in range(4)]
        place = Mux(op.raw, 0, op.place)
        stages.register((by_eights, Array(coarse)[place[3:5]]), (ones, place[:3]))
        burst = Signal(8 * BURST_BYTES)
        fine = [by_eights[8 * n : 8 * n + 8 * BURST_BYTES] for n in range(8)]
        stages.register((burst, Array(fine)[ones]))
        # Tags; a raw beat is eight whole words. The cut of a part is computed one stage earlier.
        passes = controls[1].raw
        tags, whole = Mux(passes, 0xFFFF, burst[:16]), Mux(passes, burst[: 8 * BEAT_BYTES], burst[16:])
        vector, parts = Signal(2 * LANES, name="tags"), [Signal(8 * BEAT_BYTES, name="part")]
        sizes = registers(lower_sizes(tags, 0), "size0_")
        stages.register((vector, tags), (parts[0], whole), *zip(sizes, lower_sizes(tags, 0), strict=True))
        for level, most in enumerate((16, 8, 4)):
            pieces = [piece for part, size in zip(parts, sizes, strict=True) for piece in parted(part, size, most)]
            parts, following = registers(pieces, f"part{level}_"), Signal(16, name=f"tags{level}")
            stages.register(*zip(parts, pieces, strict=True), (following, vector))
            if level < 2:
                found = lower_sizes(vector, level + 1)
                sizes = registers(found, f"size{level + 1}_")
                stages.register(*zip(sizes, found, strict=True))
            vector = following
        # Lanes: magnitude; its highest bit, and without what fp32 has no place for; as normal and subnormal number; the value.
        at = controls[5]
        lost = Signal(16)
        stages.register((lost, lost_bits(at.scale)))
        rows, errors, large = [], [], []
        for i, payload in enumerate(parts):
            tag = Mux(at.zero, 0, vector[2 * i : 2 * i + 2])
            got = received(at.choice, tag, payload)
            behind = (at.rest != 0) & (at.rest <= i) & (tag != 0)
            magnitude, sign, word, raw = Signal(16), Signal(), Signal(32), Signal()
            stages.register((magnitude, got.magnitude), (sign, got.sign), (word, payload), (raw, tag == 3))
            errors.append((got.illegal | behind) & ~at.raw & ~at.zero)
            magnitude2, sign2, word2, raw2, top = Signal(16), Signal(), Signal(32), Signal(), Signal(4)
            stages.register(
                (magnitude2, rounded(magnitude, lost)), (sign2, sign), (word2, word), (raw2, raw), (top, top_bit(magnitude))
            )
            large.append(magnitude2[14:16].any())
            made = restored(magnitude2, top, shared)
            both = Restored(Signal(signed(11)), Signal(23), Signal(23), Signal())
            sign3, word3, raw3 = Signal(), Signal(32), Signal()
            stages.register((sign3, sign2), (word3, word2), (raw3, raw2))
            stages.register(*((getattr(both, name), getattr(made, name)) for name in vars(both)))
            rows.append(Mux(raw3, word3, fp32_word(both, sign3)))
        illegal = [Signal(name=f"illegal{n}") for n in range(3)]
        stages.register(*zip(illegal, (Cat(*errors).any(), *illegal[:2]), strict=True))
        reaches = Signal()
        stages.register((reaches, Cat(*large).any()))
        # Any error in a frame shows with its last beat; a block's largest value is at least half its scale.
        now = controls[8]
        reached, wrong = Signal(), Signal()
        reaches_now = Mux(now.begins, 0, reached) | reaches
        too_small = now.choice.scaled & now.ends & ~now.raw & ~now.zero & ~reaches_now
        wrong_now = Mux(now.first, 0, wrong) | now.error | illegal[2] | too_small
        out = self.beats_out.payload
        with m.If(move):
            m.d.sync += self.beats_out.valid.eq(now.valid)
            with m.If(now.valid):
                m.d.sync += [
                    reached.eq(reaches_now),
                    wrong.eq(wrong_now),
                    out.data.eq(Cat(*rows)),
                    out.bytes.eq(now.bytes),
                    out.first.eq(now.first),
                    out.last.eq(now.last),
                    self.error.eq(wrong_now & now.last),
                ]
        m.d.comb += move.eq(~self.beats_out.valid | self.beats_out.ready)


def _less_a_beat(place: Value) -> Value:
    """Subtract 32 from a position of 32 to 65, without a borrow."""
    return Cat(place[:5], place[6])


class _Operation:
    """Output of the window in a cycle: a beat that passes (raw), a burst, or eight zeros."""

    def __init__(self) -> None:
        self.valid, self.raw, self.zero = Signal(name="op_valid"), Signal(name="op_raw"), Signal(name="op_zero")
        self.first, self.last, self.bytes = Signal(name="op_first"), Signal(name="op_last"), Signal(6, name="op_bytes")
        self.late_error = Signal(name="op_late_error")  # of what left the window the last time the stages moved
        self.error, self.begins, self.ends = Signal(name="op_error"), Signal(name="op_begins"), Signal(name="op_ends")
        self.choice, self.scale = Signal(FrameFormat, name="op_choice"), Signal(signed(10), name="op_scale")
        self.rest, self.place = Signal(3, name="op_rest"), Signal(5, name="op_place")
        self.octets = Signal(8 * 3 * BEAT_BYTES, name="op_octets")
