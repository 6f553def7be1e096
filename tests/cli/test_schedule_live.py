"""``paceline schedule live``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from live_journal import written
from paceline.cli import main
from paceline.scheduling.live.journal import Journal

FILE = """
[[job]]
name = "first"
command = ["sh", "-c", "echo '{{\\"step\\": 7}}' > '{base}/first/progress.json'"]

[[job]]
name = "second"
command = ["false"]
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "first").mkdir()
    (tmp_path / "jobs.toml").write_text(FILE.format(base=tmp_path))
    file, state = str(tmp_path / "jobs.toml"), str(tmp_path / "state")
    return ["schedule", "live", file, "--executor", "local", "--slots", "2", "--round", "50ms", "--state", state]


def test_jobs_run_here_and_the_same_command_knows_that_they_have(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--policy", "las", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    first, second = data["jobs"]
    assert data["exit_code"] == 1
    assert (first["phase"], first["progress"], first["starts"]) == ("done", {"step": 7.0}, 1)
    assert (second["phase"], second["reason"], second["starts"]) == ("failed", "it ended with code 1", 3)
    assert main([*words, "--policy", "even", "--brief", "--report"]) == 1
    out, err = capsys.readouterr()
    log = tmp_path / "state" / "jobs" / "second.log"
    assert out == f"1 of 2 jobs are done; second: it ended with code 1 ({log})\n" and err == "" and log.exists()
    assert "ran for real" in (tmp_path / "state" / "report.html").read_text()
    assert main(["schedule", "why", str(tmp_path / "state"), "first"]) == 0


def test_settings_of_the_scheduler_decide(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = "".join(f"[[job]]\nname = '{name}'\ncommand = 'sleep 0.3'\nqos = 'one'\n" for name in ("a", "b"))
    (tmp_path / "jobs.toml").write_text(jobs)
    (tmp_path / "slurm.txt").write_text("Name|Priority|GrpJobs|GrpWall\none|1|1|9\n")
    given = [*words, "--queues", str(tmp_path / "slurm.txt")]
    assert main([*given, "--policy", "slurm", "--brief"]) == 0
    assert "ignored: GrpWall of QOS one." in capsys.readouterr().err
    ran = []
    for name in ("a", "b"):
        assert main(["schedule", "why", str(tmp_path / "state"), name, "--json"]) == 0
        ran.append(json.loads(capsys.readouterr().out)["job"])
    first, second = sorted(ran, key=lambda job: job["start_s"])
    assert second["start_s"] >= first["end_s"], "the QOS may run one job, and there are two slots"
    assert [main([*given, "--policy", name]) for name in ("las", "even")] == [2, 2]
    assert "the policy even takes no --queues" in capsys.readouterr().err


def test_why_reads_the_journal_of_a_schedule_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, time.time())
    with Journal(path):  # as a runner has it
        assert main(["schedule", "why", str(tmp_path), "grows"]) == 0
    out = capsys.readouterr().out
    assert "(h1 x2, h2 x2)" in out and "has not ended yet" in out and "More room." in out
    assert main(["schedule", "why", str(tmp_path), "waits"]) == 0  # the runner was killed
    assert "It still waits." in capsys.readouterr().out
    assert main(["schedule", "why", str(tmp_path), "growz"]) == 2
    assert "did you mean grows" in capsys.readouterr().err


def test_a_job_that_learns_no_more_is_ended_and_is_no_failure(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = """i=$((i+1)); echo "{\\"step\\": $i, \\"loss\\": 1}" > new; mv new flat/progress.json; sleep 0.1"""
    (tmp_path / "flat").mkdir()
    (tmp_path / "learn.sh").write_text(f"i=0; while true; do {report}; done")
    (tmp_path / "jobs.toml").write_text("[[job]]\nname = 'flat'\ngrace = '1s'\ncommand = 'sh learn.sh'\n")
    assert main([*words, "--policy", "fifo", "--stop-early", "2", "--json"]) == 0
    (flat,) = json.loads(capsys.readouterr().out)["jobs"]
    assert flat["removed"] and "it no longer learned: its last 2 reports added less than 1 %" in flat["reason"]


def test_the_exit_code_is_0_where_every_job_is_done(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").write_text("[[job]]\nname = 'only'\ncommand = 'true'\n")
    assert main([*words, "--policy", "las"]) == 0


def test_the_second_runner_is_refused(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(tmp_path / "state" / "state.sqlite"):
        assert main([*words, "--policy", "las"]) == 2
    assert "state.sqlite is in use by process " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--policy", "lass"], "did you mean las?"),
        (["--policy", "las", "--executor", "slurms"], "unknown executor 'slurms'"),
        (["--policy", "las", "--executor", "kubernetes"], "--slots belongs to local, not to kubernetes"),
        (["--policy", "las", "--executor", "slurm"], "--slots belongs to local, not to slurm"),
        (["--policy", "las", "--lab", "x"], "--lab belongs to slurm, not to local"),
        (["--policy", "las", "--gpus"], "--gpus belongs to slurm, ray and kubernetes"),
        (["--policy", "las", "--image", "i"], "--image belongs to kubernetes, not to local"),
        (["--policy", "las", "--slots", "0"], "0 slots"),
        (
            ["--policy", "even", "--stop-early", "5"],
            "the policy even reads no reports, so it cannot stop early; use one of fifo",
        ),
        (["--policy", "las", "--stop-early", "x"], "write REPORTS or REPORTS:SHARE"),
        (["--policy", "las", "--device", "T5"], "unknown device 'T5'; nearest: "),
        (["--policy", "las", "--network", "1Gb/s"], "no device is named; give --device too"),
        (["--policy", "srtf"], "job 'first'"),
        (["--policy", "deadline"], "job 'first'"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(more: list[str], reason: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, *more]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and reason in err


def test_slots_are_asked_for(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    at = words.index("--slots")
    assert main([*words[:at], *words[at + 2 :], "--policy", "las"]) == 2
    assert "--slots is missing" in capsys.readouterr().err


def test_a_job_that_was_changed_is_another(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--policy", "las"]) == 1
    file = Path(words[2])
    file.write_text(file.read_text().replace('"false"', '"true"'))
    capsys.readouterr()
    assert main([*words, "--policy", "las"]) == 2
    assert "already has another job named second" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("device_types = ['A100']", "job third asks for 1 device of A100 SXM 80GB; the executor has 2 of unknown devices"),
        ("model = 'resnet-51'\nbatch = 8", "job third: unknown workload"),
        ("devices = 99", "job third asks for 99 devices; the executor has 2"),
        ("directory = 'none'", "job third: no directory "),
    ],
)
def test_a_job_that_can_never_start_leaves_no_trace(
    key: str, reason: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jobs.toml"
    plain = file.read_text()
    file.write_text(f"{plain}\n[[job]]\nname = 'third'\ncommand = 'true'\n{key}\n")
    assert main([*words, "--policy", "las"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and reason in err
    with Journal(tmp_path / "state" / "state.sqlite") as journal:
        assert not journal.rows()


def test_a_slurm_that_does_not_answer_is_a_mistake_at_the_start(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    at = words.index("--slots")
    on_slurm = ["slurm" if word == "local" else word for word in (*words[:at], *words[at + 2 :])]
    assert main([*on_slurm, "--policy", "las"]) == 2
    out, err = capsys.readouterr()
    reason = "the executor does not answer: sinfo: Unable to contact slurm controller"
    assert out == "" and err.count("\n") == 1 and reason in err
