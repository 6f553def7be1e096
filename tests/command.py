"""The command line, called in this process."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from paceline.cli import main


def run(capsys: pytest.CaptureFixture[str], command: str) -> tuple[int, str, str]:
    code = main(shlex.split(command))
    return code, *capsys.readouterr()


def answer(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
    code, out, err = run(capsys, f"{command} --json")
    assert (code, err) == (0, "") and out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found
