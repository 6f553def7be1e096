"""What is kept of a job, how its end is read, and the script that writes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from live_jobs import script, training
from paceline.errors import UserError
from paceline.scheduling.executors.records import CommandEnd, JobRecord, Records, body, ended, read_progress, words_of_training


def test_a_record_is_what_its_file_says(tmp_path: Path) -> None:
    records = Records(tmp_path / "jobs")
    record = JobRecord(training(tmp_path), {"h0": 2}, 5.0, "7").stopping(3.0, {"h1": 1})
    records.save(record)
    assert records.known("job") == record and list(records.all()) == [record]
    assert record.stop_by is not None and record.stop_since is not None and record.stop_by - record.stop_since == 3.0
    again = record.stopping(100.0)
    assert again.stop_by == record.stop_by and again.target is None  # told once, and no longer to go on elsewhere
    with pytest.raises(UserError, match="job other was never submitted"):
        records.known("other")
    records.path("job", "json").write_text("{")
    with pytest.raises(UserError, match=r"job.json cannot be read"):
        records.known("job")


@pytest.mark.parametrize(
    ("paceline", "end", "told", "progress", "phase"),
    [
        (True, CommandEnd(0, False, 9.0), False, {}, "done"),
        (True, CommandEnd(0, True, 9.0), True, {}, "done"),  # its last epoch and the signal came together
        (True, CommandEnd(143, True, 9.0), True, {"epoch": 3}, "stopped"),
        (True, CommandEnd(137, True, 9.0), True, {"epoch": 6}, "done"),  # all it lacks is its record
        (True, CommandEnd(1, False, 9.0), False, {"epoch": 3}, "failed"),
        (True, None, True, {}, "stopped"),
        (True, None, False, {}, "failed"),
        (False, CommandEnd(0, False, 9.0), False, {}, "done"),
        (False, CommandEnd(0, True, 9.0), True, {}, "stopped"),  # it has saved, as it was told to
        (False, CommandEnd(3, False, 9.0), False, {"epoch": 99}, "failed"),
    ],
)
def test_how_a_job_has_ended(
    paceline: bool, end: CommandEnd | None, told: bool, progress: dict[str, int], phase: str, tmp_path: Path
) -> None:
    job = training(tmp_path) if paceline else script(tmp_path, "true")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "progress.json").write_text(json.dumps(progress))
    record = JobRecord(job, {"h0": 1}, 5.0)
    seen = ended(record.stopping(1.0) if told else record, end)
    assert seen.phase == phase and (seen.reason != "") == (phase == "failed")
    assert seen.since == (9.0 if end else 5.0)


def test_a_report_from_before_the_first_start_is_none_of_this_job(tmp_path: Path) -> None:
    records, job, report = Records(tmp_path / "jobs"), training(tmp_path), tmp_path / "job" / "progress.json"
    report.parent.mkdir()
    report.write_text('{"epoch": 6, "step": 60}')
    os.utime(report, ns=(5, 10**18))
    record = records.start(job, {"h0": 1})
    assert record.progress == {} and ended(record, CommandEnd(1, False, 9.0)).phase == "failed"
    assert ended(record, CommandEnd(0, False, 9.0)).phase == "done"
    records.save(record)
    os.utime(report, ns=(5, 10**18 - 1))  # written since, by a file system whose clock goes wrong
    again = records.start(job, {"h0": 2})
    assert again.progress == {"epoch": 6, "step": 60} and ended(again, CommandEnd(137, False, 9.0)).phase == "done"
    records.save(again)
    assert records.start(replace(job, grace_s=1.0), {"h0": 1}).progress == {}, "another job of that name"


@pytest.mark.parametrize(
    ("content", "numbers"),
    [
        (b'{"step": 3, "samples_per_s": 2.5, "note": "x", "lost": NaN}', {"step": 3.0, "samples_per_s": 2.5}),
        (b'{"step": 3, "epoch": 1' + b"0" * 400 + b"}", {"step": 3.0}),
        (b'{"step": 1' + b"0" * 9000 + b"}", {}),
        (b'{"step": 1e999, "loss": -Infinity, "epoch": 2}', {"epoch": 2.0}),
        (b'{"step": "3", "epoch": [1], "loss": {"a": 1}, "accuracy": null, "lost": true}', {}),
        (b"[1]", {}),
        (b"7", {}),
        (b"{", {}),
        (b"", {}),
        (b'{"step": 3, "note": "\xff\xfe"}', {}),
        (b"[" * 200_000, {}),
        (b'{"step": 3, "note": "' + b"x" * 2_000_000 + b'"}', {}),
    ],
    ids=range(12),
)
def test_progress_is_numbers_or_nothing(content: bytes, numbers: dict[str, float], tmp_path: Path) -> None:
    assert read_progress(str(tmp_path)) == {}
    (tmp_path / "progress.json").write_bytes(content)
    assert read_progress(str(tmp_path)) == numbers


def test_what_is_no_file_is_no_progress(tmp_path: Path) -> None:
    (tmp_path / "progress.json").mkdir()
    assert read_progress(str(tmp_path)) == {}
    (tmp_path / "progress.json").rmdir()
    os.mkfifo(tmp_path / "progress.json")  # nobody writes into it: to open it would last for ever
    assert read_progress(str(tmp_path)) == {}


def test_training_goes_on_where_there_is_a_checkpoint(tmp_path: Path) -> None:
    job = training(tmp_path)
    assert words_of_training(job)[-2:] == ["--out", job.checkpoint]
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "checkpoint.pt").touch()
    assert words_of_training(job)[-4:] == ["--out", job.checkpoint, "--resume", job.checkpoint]


def started(tmp_path: Path, command: str, again: str = "false", **more: object) -> subprocess.Popen[bytes]:
    job = replace(script(tmp_path, "true", environment={"GREETING": "a 'b'"}), directory=str(tmp_path), **more)  # type: ignore[arg-type]
    return subprocess.Popen(["bash", "-c", body(job, command, tmp_path / "end", again)], stdout=subprocess.PIPE)


def result(process: subprocess.Popen[bytes], tmp_path: Path) -> tuple[int, str]:
    process.communicate(timeout=100)
    return process.returncode, (tmp_path / "end").read_text().strip()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 100
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_script_writes_how_its_command_ended(tmp_path: Path) -> None:
    (tmp_path / "end").write_text("1 99")
    assert result(
        started(tmp_path, """sh -c 'test "$GREETING" = "a '"'b'"'" && [ ! -f end ] || exit 9; exit 4'"""), tmp_path
    ) == (
        4,
        "0 4",
    )


@pytest.mark.parametrize(("name", "code"), [("USR1", 0), ("TERM", 5)])
def test_the_script_passes_the_signal_on_and_waits(name: str, code: int, tmp_path: Path) -> None:
    command = f"""sh -c 'trap "sleep 0.2; echo saved > saved; exit {code}" {name}; touch ready; while :; do sleep 0.05; done'"""
    process = started(tmp_path, command, signal=name)
    wait_for(tmp_path / "ready")
    os.kill(process.pid, signal.Signals[f"SIG{name}"])
    assert result(process, tmp_path) == (code, f"1 {code}")
    assert (tmp_path / "saved").exists()


def test_the_script_starts_once_more_where_it_shall(tmp_path: Path) -> None:
    command = "sh -c 'echo x >> starts; [ -f more ] && exit 0; touch ready; exec sleep 1000'"
    process = started(tmp_path, command, again="touch more")
    wait_for(tmp_path / "ready")
    os.kill(process.pid, signal.SIGTERM)
    assert result(process, tmp_path) == (0, "0 0")
    assert (tmp_path / "starts").read_text() == "x\nx\n"
