"""Reader and writer of words of 1 to 8 bytes per cycle in a stream of beats."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from paceline.nic.engine.stream import Beat, signature

WORD = 8
_BITS = 8 * WORD


class WordReader(wiring.Component):
    """Reader of a frame's bytes as words of ``size`` bytes. After the frame's end all bytes are zero.

    Ports:
        beats_in: a stream of beats.
        begin, skip, empty: strobe, when idle: a frame begins; its beats to drop first; it is known to have no more beats.
        size, word, available: bytes of the next word, 1 to 8; the word; and whether it is there.
        take, short, exact: strobe, when available: on to the next word; with it: bytes are missing; the frame ends just here.
        finish: strobe: the rest of the frame is dropped.
        idle: ready for another ``begin``.
    """

    def __init__(self) -> None:
        inputs = {"begin": 1, "skip": 4, "empty": 1, "size": 4, "take": 1, "finish": 1}
        outputs = {"word": _BITS, "available": 1, "short": 1, "exact": 1, "idle": 1}
        ports = {k: In(v) for k, v in inputs.items()} | {k: Out(v) for k, v in outputs.items()}
        super().__init__({"beats_in": In(signature()), **ports})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat = self.beats_in.payload
        rest, held = Signal(_BITS - 8), Signal(3)  # bytes of the word before that were not taken, and how many
        quarter, ended, skipped = Signal(2), Signal(), Signal(4)
        fetches = (held < self.size) & ~ended
        before = Cat(Const(0, 3), quarter)
        ends = beat.last & (beat.bytes <= before + WORD)
        fresh = Signal(4)  # bytes of the beat's next word
        m.d.comb += fresh.eq(Mux(beat.bytes >= before + WORD, WORD, Mux(beat.bytes > before, beat.bytes - before, 0)))
        mask = Cat((fresh > byte).replicate(8) for byte in range(WORD))
        window, have = Signal(2 * _BITS - 8), Signal(5)
        word = Mux(fetches, beat.data.word_select(quarter, _BITS) & mask, 0)
        m.d.comb += [
            window.eq(rest | (word << Cat(Const(0, 3), held))),
            have.eq(held + Mux(fetches, fresh, 0)),
            self.word.eq(window[:_BITS] & Cat((self.size > byte).replicate(8) for byte in range(WORD))),
            self.short.eq(have < self.size),
            self.exact.eq((ended | (fetches & ends)) & (have == self.size)),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.idle.eq(1)
                m.d.sync += [quarter.eq(0), rest.eq(0), held.eq(0), ended.eq(self.empty), skipped.eq(self.skip)]
                with m.If(self.begin):
                    m.next = "WORDS"
                    with m.If(self.skip != 0):
                        m.next = "SKIP"
            with m.State("SKIP"):
                m.d.comb += self.beats_in.ready.eq(1)
                with m.If(self.beats_in.valid):
                    m.d.sync += skipped.eq(skipped - 1)
                    with m.If((skipped == 1) | beat.last):
                        m.d.sync += ended.eq(beat.last)
                        m.next = "WORDS"
            with m.State("WORDS"):
                m.d.comb += self.available.eq(~fetches | self.beats_in.valid)
                m.d.comb += self.beats_in.ready.eq(self.take & fetches & (ends | (quarter == 3)))
                with m.If(self.take):
                    m.d.sync += [rest.eq(window >> Cat(Const(0, 3), self.size)), held.eq(Mux(self.short, 0, have - self.size))]
                    with m.If(fetches):
                        m.d.sync += [quarter.eq(Mux(ends, 0, quarter + 1)), ended.eq(ends)]
                with m.If(self.finish):
                    m.next = "DROP"
                    with m.If(ended | (self.take & fetches & ends)):
                        m.next = "IDLE"
            with m.State("DROP"):
                m.d.comb += self.beats_in.ready.eq(1)
                with m.If(self.beats_in.valid & beat.last):
                    m.next = "IDLE"
        return m


class WordWriter(wiring.Component):
    """Writer that packs words of ``size`` bytes into the beats of a frame's payload.

    Ports:
        beats_out: a stream of beats without ``first``.
        word, size, last: the next word, 1 to 8 bytes, zero above them; whether it is the frame's last.
        write, ready: strobe, when ready.
        beat, passes: a header beat; strobe, when ready: it passes unchanged.
    """

    def __init__(self) -> None:
        inputs = {"word": _BITS, "size": 4, "last": 1, "write": 1, "beat": Beat, "passes": 1}
        ports = {**{k: In(v) for k, v in inputs.items()}, "ready": Out(1)}
        super().__init__({"beats_out": Out(signature()), **ports})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        out = self.beats_out
        rest, held, quarter, flushes = Signal(_BITS - 8), Signal(3), Signal(2), Signal()
        free = ~out.valid | out.ready
        window, have = Signal(2 * _BITS - 8), Signal(5)
        m.d.comb += [
            self.ready.eq(free & ~flushes),
            window.eq(rest | (Mux(flushes, 0, self.word) << Cat(Const(0, 3), held))),
            have.eq(held + Mux(flushes, 0, self.size)),
        ]
        full = have >= WORD
        ends = flushes | (self.last & (have <= WORD))
        with m.If(out.ready):
            m.d.sync += out.valid.eq(0)
        with m.If(free & (self.write | flushes)):
            with m.If(quarter == 0):
                m.d.sync += out.payload.data.eq(window[:_BITS])
            with m.Else():
                m.d.sync += out.payload.data.word_select(quarter, _BITS).eq(window[:_BITS])
            m.d.sync += [
                out.valid.eq(ends | (full & (quarter == 3))),
                out.payload.last.eq(ends),
                out.payload.bytes.eq(Cat(Const(0, 3), quarter) + Mux(full, WORD, have)),
                rest.eq(Mux(ends, 0, Mux(full, window[_BITS:], window[: _BITS - 8]))),
                held.eq(Mux(ends, 0, have[:3])),
                quarter.eq(Mux(ends, 0, quarter + full)),
                flushes.eq(~flushes & self.last & ~ends),
            ]
            m.d.sync += out.payload.first.eq(0)
        with m.If(self.passes):
            m.d.sync += [out.valid.eq(1), out.payload.eq(self.beat)]
        return m
