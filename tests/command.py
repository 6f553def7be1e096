"""The command line, called in this process."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from paceline.cli import main
from paceline.exit_codes import ExitCode


def run(capsys: pytest.CaptureFixture[str], command: str) -> tuple[int, str, str]:
    code = main(shlex.split(command))
    return code, *capsys.readouterr()


def answer(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
    """Return the JSON of a command that answers, also if the answer is that the job does not fit."""
    code, out, err = run(capsys, f"{command} --json")
    assert code in (ExitCode.DONE, ExitCode.NO) and not err
    (data,) = objects(out)
    return data


def objects(out: str) -> list[dict[str, Any]]:
    """One strict JSON object a line."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    assert out.endswith("\n")
    data = [json.loads(line, parse_constant=refuse) for line in out.splitlines()]
    assert all(isinstance(line, dict) for line in data)
    return data
