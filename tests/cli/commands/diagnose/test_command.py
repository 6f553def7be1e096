"""``paceline diagnose`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

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
    assert "give --log of the run, or --measured '9,800 tokens/s'" in capsys.readouterr().err


def test_a_log_replaces_the_measured_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "gpt.log"
    log.write_text("".join(f"iter {n}: loss 3.1, time 562.00ms, mfu 20.00%\n" for n in range(9)), encoding="utf-8")
    assert main([*QUESTION, "--log", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compared"][0]["measured_s"] == pytest.approx(0.562)


FROM = ("diagnose", "--from", "docs/files/job.sbatch", "--cluster", "H100, 400Gb/s InfiniBand")
LOGS = "tests/calibration/imports/files/"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--log", f"{LOGS}megatron.log"), 0, "As fast as predicted: predicted"),
        (("--log", f"{LOGS}trainer_log.jsonl"), 0, "The question is probably misstated."),
        (("--log", f"{LOGS}nvidia_smi.txt", "--measured", "1,900 tokens/s per GPU"), 0, "nvidia-smi shows A100 SXM 80GB"),
        (("--log", f"{LOGS}axolotl.log"), 2, "axolotl.log has a global batch of 16, and the question one of 128"),
        (("--measured", "34 s", "--seen", "GPU utilization 40 %"), 0, "Seen: you saw"),
    ],
)
def test_files_of_a_job_and_of_its_run(
    words: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FROM, *words]) == code
    printed = capsys.readouterr()
    assert text in " ".join((printed.out + printed.err).split())
