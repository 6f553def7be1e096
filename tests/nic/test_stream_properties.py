"""The streams' properties see an engine that loses, doubles or changes a beat."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from paceline.nic import formal
from paceline.nic.engine.stream import signature
from paceline.nic.engine.stream_properties import Passed
from paceline.nic.programs import missing

MISSING = missing(*formal.programs("abc"))
needs_tools = pytest.mark.skipif(bool(MISSING), reason=MISSING)


class Register(wiring.Component):
    """One register for beats, with a fault in its third beat."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        super().__init__({"beats_in": In(signature()), "beats_out": Out(signature()), "error": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        out, number, again = self.beats_out, Signal(2), Signal()
        third = number == 2
        free = ~out.valid | out.ready
        m.d.comb += self.beats_in.ready.eq(free & ~again)
        with m.If(free & ~again):
            m.d.sync += [out.valid.eq(self.beats_in.valid), out.payload.eq(self.beats_in.payload)]
            with m.If(self.beats_in.valid):
                m.d.sync += number.eq(number + 1)
                with m.If(third):
                    if self._fault == "lost":
                        m.d.sync += out.valid.eq(0)
                    elif self._fault == "doubled":
                        m.d.sync += again.eq(1)
                    elif self._fault == "changed":
                        m.d.sync += out.payload.data[100].eq(0)
                    elif self._fault == "error":
                        m.d.sync += self.error.eq(1)
        with m.If(free & again):
            m.d.sync += again.eq(0)
        return m


@needs_tools
@pytest.mark.parametrize("fault, outcome", [("", "proved"), *((f, "refuted") for f in ("lost", "doubled", "changed", "error"))])
def test_a_register_passes_beats_and_a_faulty_one_does_not(fault: str, outcome: str) -> None:
    design = Passed(lambda: Register(fault), (100,))
    found = formal.prove(fault, design, scope="", method="reachability", solver="abc", seconds=60)
    assert found.outcome == outcome
