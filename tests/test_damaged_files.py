"""Files and sizes as nobody means them: one line each, and what can be read of a run directory is read."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import samples
from distributed import ENVIRONMENT, TESTS
from paceline.cli import main
from paceline.errors import UserError
from paceline.rundir import RunDir

OLD = TESTS / "data" / "old_runs" / "terngrad_lars"
DEEP = "[" * 100_000 + "]" * 100_000
HUGE = "1" + "0" * 400
JSON_FILES = ("record.jsonl", "prediction.json", "predicted.trace.json", "measured.trace.json")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copytree(OLD, tmp_path / "run")
    return tmp_path / "run"


def one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("paceline: ") and said.count("\n") == 1 and len(said) < 400
    return said


@pytest.mark.parametrize("file", JSON_FILES)
def test_nested_json_is_one_line(directory, capsys, file):
    (directory / file).write_text(DEEP + "\n")
    assert f"{directory / file} cannot be read" in one_line(["report", str(directory)], capsys)


@pytest.mark.parametrize("file", [*JSON_FILES, "trust.csv"])
def test_a_pipe_is_one_line(directory, capsys, file):
    (directory / file).unlink()
    os.mkfifo(directory / file)
    writer = threading.Thread(target=lambda: (directory / file).open("w").close())  # so that a reader would see an end
    writer.start()
    try:
        assert f"{directory / file} cannot be read: it is no file" in one_line(["report", str(directory)], capsys)
    finally:
        reader = os.open(directory / file, os.O_RDONLY | os.O_NONBLOCK)
        writer.join()
        os.close(reader)


@pytest.mark.parametrize("name", ["step_time_s", "wire_bytes_per_device", "accuracy", "steps", "epochs", "curve"])
def test_a_number_of_400_digits_is_one_line(directory, capsys, name):
    data = json.loads((directory / "record.jsonl").read_text())
    data[name] = [{"epoch": "HUGE", "loss": 1.0, "accuracy": 0.5, "seconds": 1.0}] if name == "curve" else "HUGE"
    (directory / "record.jsonl").write_text(json.dumps(data).replace('"HUGE"', HUGE) + "\n")
    said = one_line(["report", str(directory)], capsys)
    assert f"{directory}/record.jsonl cannot be read: line 1: a number of 401 digits" in said


def test_a_record_without_a_strategy_teaches_nothing_and_says_so(directory, capsys):
    data = json.loads((directory / "record.jsonl").read_text())
    (directory / "record.jsonl").write_text(json.dumps({**data, "workload": "lenet5", "strategy": {}}) + "\n")
    words = ["explain", "lenet5", "--device", "A100", "--global-batch", "64", "--records", str(directory)]
    assert "strategy" in one_line(words, capsys)


def test_a_torn_last_line_is_read_past(directory, logged):
    path = directory / "record.jsonl"
    whole = path.read_text()
    path.write_text(whole + whole[: len(whole) // 2])
    assert list(RunDir(directory).read().records) == ["terngrad"]
    (said,) = logged
    assert "record.jsonl: line 2 is torn" in said
    assert RunDir(directory).add_record("dense", samples.record("dense")) == "dense"
    assert list(RunDir(directory).read().records) == ["terngrad", "dense"]
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 2


def test_a_broken_line_elsewhere_is_an_error(directory):
    path = directory / "record.jsonl"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2] + "\n" + whole)
    with pytest.raises(UserError, match=r"record\.jsonl cannot be read: line 1"):
        RunDir(directory).read()


def test_a_full_disk_leaves_the_records_of_before(directory):
    path = directory / "record.jsonl"
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 500, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*record\.jsonl: File too large; make room"):
            RunDir(directory).add_record("dense", samples.record("dense"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    with pytest.raises(OSError):
        samples.record("dense").append(directory)  # and what is no file stays what it is


def test_the_command_without_torch_says_what_to_install():
    """``tests/test_verbs.py`` asks the same of ``paceline.train``."""
    call = "from paceline.cli import main; sys.exit(main(['train', '--model', 'lenet5', '--data', 'digits']))"
    script = f"import sys; sys.modules['torch'] = None; {call}"
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (2, "paceline: this needs torch; pip install 'paceline[train]'\n")
