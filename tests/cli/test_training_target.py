"""How much ``plan`` is to train: a file of runs, epochs or samples."""

from __future__ import annotations

from pathlib import Path

import pytest

import paceline
from command import answer, run
from paceline.planning import TrainingTarget
from paceline.prediction.learning.convergence import mlperf
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


EIGHT = "--device A100 --devices-per-node 8 --max-nodes 1 --sharding ddp --sharding zero1 --precision bf16"


@pytest.mark.long
def test_mlperf_s_bert_is_priced_at_its_own_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    """Tuned submissions of MLPerf v1.0 and v1.1 take 19 to 22 minutes on eight A100: ordinary software is not faster."""
    batch = "--target mlperf --global-batch 448 --goal fastest"
    data = answer(capsys, f"plan bert-large {EIGHT} {batch}")
    assert data["best"]["cluster"]["devices_per_node"] == 8 and 19 * 60 < data["best"]["time_s"] < 2 * 22 * 60
    assert data["work"].startswith("to 0.72 masked-LM accuracy (MLPerf), from MLPerf's checkpoint; a sample is one sequence of")
    assert "512 tokens, 256 of them padding that is not computed" in data["work"]
    same = answer(capsys, f"plan bert-large {EIGHT} {batch} --seq-len 256")
    assert same["best"]["time_s"] == data["best"]["time_s"] and "--seq-len 256 computes 256 of each" in same["work"]
    short = answer(capsys, f"plan bert-large {EIGHT} {batch} --seq-len 128")
    assert short["best"]["time_s"] < 0.7 * data["best"]["time_s"]


def test_a_target_says_where_it_starts_and_what_a_sample_is(capsys: pytest.CaptureFixture[str]) -> None:
    for name, meaning in (
        ("resnet-50", "75.9 % top-1 on ImageNet (MLPerf), from random weights; a sample is one image 3x224x224"),
        ("ssd-resnet34", "0.23 mAP on COCO (MLPerf), from a ResNet-34 trained on ImageNet; a sample is one image 3x300x300"),
    ):
        assert meaning in answer(capsys, f"plan {name} {EIGHT} --target mlperf --compression dense")["work"]


def test_emitted_options_have_the_padded_length(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, f"plan bert-large {EIGHT} --optimizer adam --target mlperf --global-batch 448 --emit megatron")
    assert "--seq-length 512" in data["options"]["text"]


def test_the_library_takes_the_target_s_length_too() -> None:
    target = TrainingTarget.reaching(mlperf("bert-large"))
    by_name = paceline.plan("bert-large", "8 A100", "fastest", target, batches=(448,), precisions=("bf16",), shardings=("ddp",))
    assert by_name.best.time_s > 19 * 60
    assert (
        by_name.target
        == "to 0.72 masked-LM accuracy (MLPerf), from MLPerf's checkpoint; a sample is one sequence of 512 "
        + ("tokens, 256 of them padding that is not computed")
    )
