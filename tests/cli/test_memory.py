"""``paceline memory`` in a terminal, as JSON and as files."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from command import answer, run
from paceline.exit_codes import ExitCode

GPT = "memory gpt2 --cluster '4 A100' --global-batch 32"
PIPELINE = "memory gpt2 --cluster '4 A100' --global-batch 32 --pipeline 2 --micro-batches 4"


def test_the_peak_is_the_predicted_memory(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, GPT)
    predicted = answer(capsys, GPT.replace("memory", "predict", 1))
    assert data["shown"]["peak_bytes"] == pytest.approx(data["memory_bytes"]) == predicted["memory_bytes"]
    assert sum(data["shown"]["at_peak"].values()) == pytest.approx(data["memory_bytes"])
    assert len(data["shown"]["times_s"]) == 200 and data["would_fit"] == []
    assert {"sharding", "recomputation"} <= {change for found in data["smaller"] for change in found["changes"]}
    assert all(found["memory_bytes"] < 0.99 * data["memory_bytes"] for found in data["smaller"])
    assert "--recompute full" in {found["options"] for found in data["smaller"]}


def test_a_rank_of_each_stage_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    first, last = (answer(capsys, f"{PIPELINE} --rank {rank}")["shown"] for rank in (1, 3))
    assert (first["ranks"], last["ranks"], last["stage"]) == ([0, 1], [2, 3], 1)
    assert len(answer(capsys, PIPELINE)["timelines"]) == 2
    code, _, err = run(capsys, f"{PIPELINE} --rank 4")
    assert code == 2 and err == "paceline: rank 4 of a job with 4 ranks; give a number from 0 to 3\n"


def test_a_snapshot_has_a_device_for_each_stage_or_for_one_rank(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "memory.pickle"
    for options, devices in (("", 2), ("--rank 0", 1)):
        code, out, _ = run(capsys, f"{PIPELINE} {options} --snapshot {file}")
        assert code == 0 and f"snapshot: {file} (open it at https://pytorch.org/memory_viz)" in out
        assert len(pickle.loads(file.read_bytes())["device_traces"]) == devices
    code, _, err = run(capsys, f"{PIPELINE} --picture {tmp_path}/m.pdf")
    assert code == 2 and "end its name in .svg or .png" in err


@pytest.mark.long
def test_a_picture_and_a_page_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, f"{PIPELINE} --picture {tmp_path}/m.svg --report {tmp_path}/page")
    assert code == 0 and f"picture: {tmp_path}/m.svg" in out and f"report: {tmp_path}/page/report.html" in out
    assert (tmp_path / "m.svg").read_text().count("stage ") >= 2
    assert "<svg" in (tmp_path / "page" / "report.html").read_text()


def test_a_job_that_does_not_fit_is_shown_with_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "memory gpt2-xl --cluster '4 V100' --global-batch 16 --precision fp16")
    assert (
        code == ExitCode.NO and out.startswith("DOES NOT FIT") and "What would fit, the nearest first:" in " ".join(out.split())
    )
    assert "Changes that lower it" not in out and "paceline memory gpt2-xl" in out
