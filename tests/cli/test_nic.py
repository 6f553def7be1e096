"""``paceline nic``: what is there is checked and measured; what is missing is one line with its Debian package."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.nic.area import Clock

HINT = "needs {0}: apt-get install {0}"
needs_verilator = pytest.mark.skipif(not shutil.which("verilator"), reason=HINT.format("verilator"))
needs_yosys = pytest.mark.skipif(not shutil.which("yosys"), reason=HINT.format("yosys"))


@needs_verilator
def test_the_verilog_agrees_with_the_codec(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nic", "verify", "--values", "2000", "--no-proofs", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["good"] and not data["left_out"] and not data["proofs"]
    both = ["golden vectors", "damaged frames", "random values"]
    ternary = [f"ternary {what}" for what in (*both, "sums")]
    assert {c["what"] for c in data["comparisons"]} == {*both, "tag patterns", *ternary}
    assert all(c["agreed"] and c["cases"] for c in data["comparisons"])


def test_without_tools_nothing_is_compared_and_the_packages_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert main(["nic", "verify", "--values", "10"]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "nothing could be compared" in text and "apt-get install verilator" in text and "apt-get install yosys" in text
    assert main(["nic", "area", "--block", "inceptionn lane", "--no-clock"]) == 2
    assert "yosys is missing; install it: apt-get install yosys" in capsys.readouterr().err


def test_verilog_goes_where_a_directory_can_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert main(["nic", "emit", "--out", str(file)]) == 2
    assert "is no directory to write to" in capsys.readouterr().err


@needs_yosys
def test_the_area_of_a_lane_and_a_clock_beside_the_published(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.nic import area

    clock = Clock("inceptionn lane", "iCE40 HX8K", (90.0, 100.0, 120.0))
    monkeypatch.setattr(area, "clock", lambda block, family, seeds: clock)
    assert main(["nic", "area", "--block", "inceptionn lane", "--family", "ice40"]) == 0
    text = capsys.readouterr().out
    assert "100.0 MHz" in text and "25.6 Gb/s" in text and "2.1 Gb/s reached" in text
    assert main(["nic", "area", "--block", "inceptionn lane", "--family", "ice40", "--no-clock", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert cells["lut"] > 100 and cells["ff"] > 32


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("nic verify --values 0", "0 random values; give a whole number from 1 up"),
        ("nic area --family virtex", "unknown family 'virtex'"),
        ("nic area --block lane", "unknown block 'lane'"),
        ("nic area --seeds 0", "0 placements"),
    ],
)
def test_a_mistake_is_one_line(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_emitted_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.nic import emission

    monkeypatch.setattr(emission, "emit", lambda folder: [folder / "compressor.v"])
    assert main(["nic", "emit", "--out", str(tmp_path)]) == 0
    assert str(tmp_path / "compressor.v") in capsys.readouterr().out.replace("\n", "")
