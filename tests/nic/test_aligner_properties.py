"""The aligner's property sees an aligner that loses, doubles, mixes or changes bytes, or forgets a frame's end."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring

from paceline.nic import formal, inceptionn_proofs
from paceline.nic.engine.align import Aligner
from paceline.nic.engine.aligner_properties import Aligned
from paceline.nic.programs import missing

MISSING = missing(*formal.programs("abc"))
needs_tools = pytest.mark.skipif(bool(MISSING), reason=MISSING)


class Faulty(wiring.Component):
    """A narrow aligner with a fault at its output, or before its input."""

    def __init__(self, fault: str) -> None:
        self._fault, self._inner = fault, Aligner(4, 5)
        super().__init__(self._inner.signature)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.inner = inner = self._inner
        wiring.connect(m, wiring.flipped(self.chunks), inner.chunks)
        wiring.connect(m, inner.beats, wiring.flipped(self.beats))
        m.d.comb += self.error.eq(inner.error)
        out, number = self.beats, Signal(2)
        with m.If(inner.beats.valid & inner.beats.ready):
            m.d.sync += number.eq(number + 1)
        beat = inner.beats.payload
        if self._fault == "lost":
            m.d.comb += out.valid.eq(inner.beats.valid & ~((number == 3) & ~beat.last))
        elif self._fault == "doubled":
            again = Signal()
            m.d.sync += again.eq(out.valid & out.ready & (number == 1) & ~again)
            m.d.comb += inner.beats.ready.eq(out.ready & ((number != 1) | again))
        elif self._fault == "swapped":
            m.d.comb += out.payload.data.eq(Mux(number == 2, Cat(beat.data[8:16], beat.data[:8], beat.data[16:]), beat.data))
        elif self._fault == "bit":
            m.d.comb += out.payload.data.eq(beat.data ^ (number == 3))
        elif self._fault == "end":
            m.d.comb += out.payload.last.eq(beat.last & (number != 3))
        elif self._fault == "unstable":
            m.d.comb += out.payload.data.eq(beat.data ^ ~out.ready)
        elif self._fault == "error":
            m.d.comb += self.error.eq(inner.error & (number != 1))
        elif self._fault == "stuck":
            m.d.comb += [inner.chunks.valid.eq(0), self.chunks.ready.eq(0)]
        return m


QUICK = ("lost", "doubled", "swapped", "end")
FAULTS = [*QUICK, *(pytest.param(fault, marks=pytest.mark.full) for fault in ("bit", "unstable", "error", "stuck"))]


def checked(fault: str, depth: int) -> Any:
    return formal.prove(fault, Aligned(lambda: Faulty(fault)), scope="", method="bounded", depth=depth, solver="abc")


@needs_tools
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_aligner_is_refuted(fault: str) -> None:
    assert checked(fault, 16).outcome == "refuted"


@needs_tools
def test_a_right_one_is_not() -> None:
    assert checked("", 8).proved


@pytest.mark.full
@needs_tools
def test_the_narrow_aligner_is_proved_for_streams_without_end() -> None:
    assert inceptionn_proofs.aligner_narrow().proved
