"""``paceline workload show``: the network that the same options name for a prediction."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from command import answer, run
from paceline.exit_codes import ExitCode
from paceline.workload import Workload

NET = """
import torch
def net(hidden=4):
    return torch.nn.Sequential(torch.nn.Linear(12, hidden), torch.nn.Linear(hidden, 2))
"""


def test_it_takes_the_length_and_adapters_of_a_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    shown = answer(capsys, "workload show gpt2 --seq-len 256 --lora r=8")
    own = Workload.named("gpt2", 256, lora="r=8")
    assert (shown["name"], shown["sample"], len(shown["layers"])) == (own.name, own.sample, len(asdict(own)["layers"]))
    title = " ".join(run(capsys, "workload show gpt2 --seq-len 256 --lora r=8")[1].split())
    assert f"{own.num_parameters:,} parameters trained, {own.frozen:,} frozen; one sample: sequence of 256 tokens" in title


def test_it_takes_arguments_and_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(NET)
    out = run(capsys, f"workload show {tmp_path / 'mine.py'}:net --args hidden=8 --input 12")[1]
    assert f"{12 * 8 + 8 + 8 * 2 + 2} parameters" in " ".join(out.split())


def test_a_length_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "workload show lenet5 --seq-len 128")
    assert (code, out) == (2, "") and "no sequence length to choose" in err


@pytest.mark.parametrize(
    "command", ["predict 7b --device A100 --global-batch 1", "ask 7b --on A100 --tokens 1M", "workload show 7b"]
)
def test_every_answer_says_what_was_taken_for_a_size(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, command)
    fits = command.startswith("workload")  # seven billion parameters are too many for one device
    assert code == (ExitCode.DONE if fits else ExitCode.NO) and "7b names no model" in out
