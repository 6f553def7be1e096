"""``paceline diagnose`` on the command line."""

from __future__ import annotations

import json

import pytest

from paceline.cli import main

QUESTION = ("diagnose", "gpt2", "--cluster", "8 A100", "--global-batch", "96", "--precision", "bf16")


def test_the_first_line_is_the_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUESTION, "--measured", "562 ms"]) == 0
    out = capsys.readouterr().out
    assert "times slower than it should be: predicted" in out.splitlines()[0]
    assert "Prove it:" in out and "--also" in out
    assert len(out.splitlines()) <= 40


def test_json_has_every_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUESTION, "--measured", "170 samples/s", "--also", "global-batch=48: 160 samples/s", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["question"] for one in answer["compared"]] == ["", "global-batch=48"]
    assert {"name", "score", "step_time_s", "sign", "proof", "fix", "options"} <= answer["causes"][0].keys()


def test_without_a_speed_it_says_how_to_give_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUESTION]) == 2
    assert "--measured '9,800 tokens/s'" in capsys.readouterr().err
