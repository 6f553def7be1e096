"""What ``paceline schedule live`` predicts before jobs run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.hardware import Cluster

JOBS = """
[[job]]
name = "a"
command = ["sh", "-c", "echo '{{\\"step\\": 99, \\"samples_per_s\\": 64000}}' > '{base}/a/progress.json'; sleep 0.2"]
model = "lenet5"
batch = 64
samples = 6400

[[job]]
name = "b"
command = "sleep 0.1"
duration = "30s"
deadline = "10min"
arrival = "0.1s"
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "a").mkdir()
    (tmp_path / "jobs.toml").write_text(JOBS.format(base=tmp_path))
    file, state = str(tmp_path / "jobs.toml"), str(tmp_path / "state")
    return ["schedule", "live", file, "--executor", "local", "--slots", "1", "--round", "50ms", "--state", state]


def test_jobs_are_predicted_before_they_run_and_shown_beside_what_they_reach(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*words, "--device", "T4", "--restart", "10s", "--report"]
    assert main([*given, "--policy", "fifo"]) == 0
    out, err = capsys.readouterr()
    # Each start costs 10 s; LeNet-5's hundred steps take well under one, b its 30 s.
    assert "predicted: the last job ends after 50." in err
    first, second = (line.split() for line in out.splitlines() if line.startswith(("a ", "b ")))
    assert first[1] == second[1] == "done"
    assert "Predicted: before a job ran" in out
    page = (tmp_path / "state" / "report.html").read_text()
    assert "Simulated before these jobs ran" in page and "ran for real" in page
    assert main([*given, "--policy", "fifo", "--json"]) == 0
    data = {job["name"]: job for job in json.loads(capsys.readouterr().out)["jobs"]}
    assert 10.0 < data["a"]["expected_jct_s"] < 11.0 and 50.0 < data["b"]["expected_jct_s"] < 51.0


@pytest.mark.long
def test_a_machine_is_measured_once_and_only_for_what_can_be_predicted(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def probe(workers: int) -> Cluster:
        asked.append(workers)
        return Cluster.named("2 T4")

    monkeypatch.setattr("paceline.training.runs.launcher.probe", probe)
    jobs = tmp_path / "jobs.toml"
    plain = jobs.read_text()
    jobs.write_text("[[job]]\nname = 'plain'\ncommand = 'true'\n")
    assert main([*words, "--policy", "las"]) == 0 and not asked
    jobs.write_text(plain)
    assert main([*words, "--policy", "las"]) == 0
    assert asked == [1] and "measures this machine" in capsys.readouterr().err
    (tmp_path / "c").mkdir()
    jobs.write_text(plain.replace('"a"', '"c"'))
    assert main([*words, "--policy", "las"]) == 0 and asked == [1]


def test_what_is_not_predicted_is_said(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(jobs.read_text().replace("sleep 0.2", "sleep 5"))  # a busy machine too reads the report before the end
    assert main([*words, "--policy", "las", "--device", "none"]) == 0
    out, err = capsys.readouterr()
    assert (
        "completions are predicted once jobs report: job a: the device of its nodes is unknown" in err and "Predicted:" in out
    )


def test_what_a_job_may_state_is_named(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.toml").write_text("[[job]]\nname = 'plain'\ncommand = 'true'\n")
    assert main([*words, "--policy", "las", "--device", "T4"]) == 0
    assert "job plain: its network is unknown; state its model and samples, or its duration" in capsys.readouterr().err
