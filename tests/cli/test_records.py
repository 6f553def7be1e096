"""``paceline records import``: from a log to a better answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import answer, run
from paceline import hardware
from paceline.hardware.saved_clusters import SavedCluster, save_cluster

LOG = "".join(
    f" iteration {n} | elapsed time per iteration (ms): {ms} | global batch size: 256 |\n"
    for n, ms in enumerate((900, 210, 200, 190))
)
JOB = "--workload resnet-50 --precision fp16"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    place = tmp_path / "train.log"
    place.write_text(LOG)
    return place


def test_what_was_measured_corrects_the_next_answer(capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    data = answer(capsys, f"records import {log} {JOB} --cluster 8xV100 --out {table}")
    assert (data["step_s"], data["steps"], data["rows"], data["table"]) == (0.2, 3, 1, str(table))
    asked = "predict resnet-50 --device V100 --devices-per-node 8 --global-batch 256 --precision fp16"
    before, after = answer(capsys, asked), answer(capsys, f"{asked} --records {table}")
    assert abs(after["step_time_s"] - 0.2) < 0.02 < abs(before["step_time_s"] - 0.2)
    code, out, _ = run(capsys, f"records import {log} {JOB} --cluster 4xV100 --set grad_accum=2 --warmup 0 --out {table}")
    assert code == 0 and "step 205 ms (Megatron-LM log; half of 4 steps between 197.5 and 382.5 ms)" in out
    assert f"{table} has 2 rows" in out and "resnet-50 on 4 V100" in out


def test_without_a_place_the_row_is_printed(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    code, out, err = run(capsys, f"records import {log} {JOB} --cluster '2x8 V100' --network 10Gb/s")
    header, row = out.splitlines()
    assert (code, err) == (0, "") and header.startswith("workload,device,global_batch,step_s")
    assert row.startswith("resnet-50,V100 SXM2 16GB,256,0.2,8,2,10Gb/s,fp16,Megatron-LM log,3,")


@pytest.mark.parametrize("cluster", ["2x8 V100, 400Gb/s RoCE", "16 V100, 400Gb/s RoCE", "lab"])
def test_the_network_may_be_the_clusters_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, log: Path, tmp_path: Path, cluster: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    save_cluster(SavedCluster("lab", "2x8 V100, 400Gb/s RoCE"))
    row = answer(capsys, f"records import {log} {JOB} --cluster '{cluster}'")["row"]
    assert (row["devices_per_node"], row["nodes"]) == ("8", "2")
    assert hardware.network(row["network"]) == hardware.network("400Gb/s RoCE")


def test_the_network_of_an_instance_is_in_the_row(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    row = answer(capsys, f"records import {log} {JOB} --cluster '2x p5.48xlarge'")["row"]
    assert hardware.network(row["network"]).bandwidth.value == 400e9


def test_a_job_that_its_devices_would_not_hold_is_doubted(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    table = tmp_path / "jobs.csv"
    told = f"records import {log} --workload llama-3-8b --precision bf16 --cluster '8 A100' --set sharding=zero3 --out {table}"
    code, out, _ = run(capsys, told)
    assert code == 0 and "As described it would need " in out and "of 80.0 GiB a device" in out
    code, out, _ = run(capsys, f"{told} --set grad_accum=32 --set recompute=full")
    assert code == 0 and "As described" not in out


def test_the_tokens_of_a_step_give_the_batch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = tmp_path / "nanogpt.log"
    lines = "".join(f"iter {n}: loss 5.1, time {ms}ms, mfu 50%\n" for n, ms in enumerate((4100, 586, 588, 587)))
    place.write_text("tokens per iteration will be: 491,520\n" + lines)
    told = f"records import {place} --workload gpt2 --cluster '8 A100' --precision bf16"
    code, _, err = run(capsys, told)
    assert code == 2 and "give --global-batch, or --seq-len for the batch, as a step has 491,520 tokens" in err
    data = answer(capsys, f"{told} --seq-len 1024")
    assert (data["row"]["global_batch"], data["step_s"], data["kind"]) == ("480", 0.587, "nanoGPT log")
    assert data["took"].startswith("nanogpt.log is read as nanoGPT log; 3 step times") and "not stated" not in data["took"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", "Megatron-LM log does not say workload, device and precision; give --workload, --cluster, --precision"),
        ("", "(train.log is read as Megatron-LM log; 3 step times (1 at the start left out), median 200 ms"),
        (f"{JOB} --cluster 8xV100 --global-batch 128", "states global_batch 256 (its lines of steps), and 128 was given"),
        (f"{JOB} --cluster 8xV100 --warmup 3", "4 steps, 1 after the warm-up"),
        (f"{JOB} --cluster 8xV100 --warmup -1", "--warmup -1; give a whole number"),
        (f"{JOB} --cluster 8xV100 --set precision=bf16", "--set precision and --precision say one thing"),
        (f"{JOB} --cluster 8xV100 --set sharding", "--set sharding; give NAME=VALUE"),
        (f"{JOB} --cluster 8xV100 --set sharding=zero9", "unknown sharding 'zero9'"),
        (f"{JOB} --cluster 8xV100 --column step=a --column step=b", "--column step is given twice"),
        (f"{JOB} --cluster 8xV100 --unit ms", "train.log has no columns"),
        (f"{JOB} --cluster 8xV100 --out jobs.txt", "a table of jobs is a .csv file"),
        (f"{JOB} --cluster '2x8 V100'", "network"),
        (
            "--workload llama-3-8b --precision bf16 --cluster '8 A100'",
            "a device; say how it was divided: --set sharding=zero3",
        ),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], log: Path, more: str, said: str) -> None:
    code, out, err = run(capsys, f"records import {log} {more}")
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1
