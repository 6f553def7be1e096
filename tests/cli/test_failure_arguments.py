"""Options for failures: each is read, and a command that is named carries them on."""

from __future__ import annotations

import json

import pytest

from paceline.cli import main


def test_command_line_states_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["ask", "resnet-50", "--on", "8 A100", "--epochs", "90", "--mtbf", "node=10h", "--checkpoint-time", "10s"]
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["choice"]["failures"]["mean_s"] == 36000.0
    assert "--mtbf node=10h --checkpoint-time 10s" in answer["deeper"]
    assert main(["ask", "resnet-50", "--on", "8 A100", "--mtbf", "rarely"]) == 2
