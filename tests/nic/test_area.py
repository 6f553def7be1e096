"""Cells and clocks of a small block whose size is known."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")

from amaranth.hdl import Module
from amaranth.lib import wiring

from paceline.errors import UserError
from paceline.nic import area


class Pairs(wiring.Component):
    """Eight registers, each behind the exclusive-or of four bits."""

    def __init__(self) -> None:
        super().__init__({"bits": wiring.In(32), "odd": wiring.Out(8)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += [self.odd[k].eq(self.bits[4 * k : 4 * k + 4].xor()) for k in range(8)]
        return m


@pytest.fixture(autouse=True)
def only_this_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(area, "blocks", lambda: {"pairs": Pairs})


@pytest.mark.skipif(not shutil.which("yosys"), reason="needs yosys: apt-get install yosys")
@pytest.mark.parametrize("family", ["ecp5", "ice40"])
def test_cells_are_counted(family: str) -> None:
    assert area.cells("pairs", family) == area.Cells("pairs", family, 8, 8, 0, 0, 0)


@pytest.mark.skipif(not shutil.which("nextpnr-ice40"), reason="needs nextpnr-ice40: apt-get install nextpnr-ice40")
def test_a_clock_a_seed() -> None:
    found = area.clock("pairs", "ice40", seeds=(1, 2))
    assert len(found.megahertz) == 2 and found.device == "iCE40 HX8K" and not found.verdict
    assert found.gbps == pytest.approx(sum(found.megahertz) / 2 * 0.256)


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(UserError, match="nextpnr-ice40 is missing; install it: apt-get install nextpnr-ice40"):
        area.clock("pairs", "ice40")


def test_an_unknown_block_is_named() -> None:
    with pytest.raises(UserError, match="block"):
        area.cells("nonsense", "ecp5")


def test_the_harness_has_two_pins() -> None:
    def names(block: Any) -> set[str]:
        return set(area.harness(block).signature.members)

    assert names(Pairs()) == {"seed", "folded"}
