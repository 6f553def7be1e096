"""How much ``plan`` is to train: a file of runs, epochs or samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import answer, run
from planning_commands import PLAN, SMALL


def test_a_target_of_ones_own_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text("global_batch,samples_to_target\n256,1000000\n512,1100000\n1024,1300000\n")
    data = answer(capsys, f"plan resnet-50 {SMALL} --target {runs} --sharding ddp --compression dense --penalty terngrad=1.1")
    assert 256 <= data["best"]["strategy"]["global_batch_size"] <= 1024
    assert any("from 3 points" in a for a in data["assumptions"])


def test_epochs_and_samples_are_the_same_work(capsys: pytest.CaptureFixture[str]) -> None:
    epochs, samples = (answer(capsys, f"{PLAN} {work}") for work in ("--epochs 2", f"--samples {2 * 1281167}"))
    assert epochs["best"]["time_s"] == pytest.approx(samples["best"]["time_s"])


def test_tokens_are_samples_of_the_sequence_length(capsys: pytest.CaptureFixture[str]) -> None:
    small = f"plan bert-base {SMALL} --seq-len 256 --sharding ddp --compression dense --global-batch 64"
    tokens, samples = (answer(capsys, f"{small} {work}") for work in ("--tokens 2.56M", "--samples 10k"))
    assert tokens["best"]["time_s"] == pytest.approx(samples["best"]["time_s"])
    assert tokens["work"] == "2,560,000 tokens in sequences of 256"
    code, _, err = run(capsys, f"{PLAN} --tokens 1M")
    assert code == 2 and "a sample of resnet-50 is " in err and "give --samples instead" in err
    assert "--samples and --tokens both say" in run(capsys, f"{small} --samples 1k --tokens 1M")[2]
