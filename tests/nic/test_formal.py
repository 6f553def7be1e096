"""Proofs: one holds, a wrong engine does not, and a missing program is named."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")

from paceline.errors import UserError
from paceline.nic import formal
from paceline.nic.programs import missing

MISSING = missing(*formal.programs("abc"))
needs_tools = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@needs_tools
@pytest.mark.parametrize("limit, outcome", [(5, "proved"), (6, "refuted")])
@pytest.mark.parametrize("method", ["bounded", "reachability"])
def test_a_counter_stays_where_it_stays(limit: int, outcome: str, method: formal.Method) -> None:
    from amaranth.hdl import Assert, Module, Signal

    m, count = Module(), Signal(4)
    with m.If(count < limit):
        m.d.sync += count.eq(count + 1)
    m.d.comb += Assert(count <= 5)
    found = formal.prove("counter", m, scope="all", method=method, depth=12, solver="abc", seconds=60)
    assert found.outcome == outcome and found.proved == (outcome == "proved")


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: None)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(UserError, match="yosys is missing; install it: apt-get install yosys"):
        formal.prove("nothing", None, scope="", method="bounded")
