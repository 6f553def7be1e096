"""The driver of simulations sees engines that stop or break the rules of the stream."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

import engine_simulation as simulation
from engine_simulation import Frame, Stuck, simulate
from paceline.nic.engine.stream import signature


class Wire(wiring.Component):
    """Passes beats, or does not: ``fault`` says how."""

    def __init__(self, fault=""):
        self.fault = fault
        super().__init__({"beats_in": In(signature()), "beats_out": Out(signature()), "error": Out(1)})

    def elaborate(self, platform):
        m, beats, out = Module(), self.beats_in, self.beats_out
        m.d.comb += [out.valid.eq(beats.valid), beats.ready.eq(out.ready), out.payload.eq(beats.payload)]
        count = Signal(8)
        m.d.sync += count.eq(count + 1)
        if self.fault == "stops":
            m.d.comb += out.valid.eq(0)
        elif self.fault == "first":
            m.d.comb += out.payload.first.eq(1)
        elif self.fault == "changes":
            m.d.comb += out.payload.data.eq(count)
        elif self.fault == "short":
            m.d.comb += out.payload.bytes.eq(31)
        return m


FRAMES = [Frame(bytes(range(70))), Frame(b"x"), Frame(bytes(96))]


@pytest.mark.parametrize(("gaps", "pauses"), [((), ()), ((1, 0, 2), (0, 3, 1, 1))])
def test_what_passes_is_what_was_sent(gaps, pauses):
    got = simulate(Wire(), FRAMES, gaps, pauses)
    assert got.frames == tuple(frame.content for frame in FRAMES)
    assert len(got.beats) == 7 and got.errors == (False,) * 3
    assert got.cycles == (7 if not gaps else got.beats[-1] + 1)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("stops", "0 of 3 frames came out"),
        ("first", "first is 1 behind 32 bytes"),
        ("changes", "changed while it waited"),
        ("short", "31 bytes"),
    ],
)
def test_a_broken_stream_is_seen(fault, words, monkeypatch):
    monkeypatch.setattr(simulation, "PATIENCE", 50)
    with pytest.raises(Stuck, match=words):
        simulate(Wire(fault), FRAMES, pauses=(3,) * 9)
