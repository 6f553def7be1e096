"""The run directory: merges, never loses a measurement, and says what is wrong with a file."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import samples
from paceline.errors import UserError
from paceline.record import Metrics
from paceline.rundir import RunDir, run_label


def test_what_is_written_is_read(run_dir: RunDir) -> None:
    contents = run_dir.read()
    for label in ("dense", "terngrad"):
        assert contents.predictions[label] == replace(samples.metrics(label), timeline=())
        assert contents.records[label] == replace(samples.record(label), timeline=())
        assert [e.name for e in contents.predicted[label]] == [e.name for e in samples.metrics(label).timeline]
        for a, b in zip(contents.measured[label], samples.record(label).timeline, strict=True):
            assert a.start_s == pytest.approx(b.start_s, abs=1e-9)
    assert contents.labels == ["dense", "terngrad"]


def test_files_are_what_the_issue_names(run_dir: RunDir) -> None:
    names = {p.name for p in run_dir.path.iterdir()}
    assert names == {"prediction.json", "record.jsonl", "predicted.trace.json", "measured.trace.json"}
    data = json.loads(run_dir.prediction_path.read_text())
    assert data["schema"] == 1
    assert list(data["predictions"]) == ["dense", "terngrad"]
    records = map(json.loads, run_dir.record_path.read_text().splitlines())
    assert [record["strategy"]["compression"] for record in records] == [
        "dense",
        "terngrad",
    ]


def test_prediction_is_replaced_and_a_record_is_not(run_dir: RunDir) -> None:
    run_dir.write_prediction("dense", samples.metrics("dense", memory_bytes=5.0))
    assert run_dir.add_record("dense", samples.record("dense", seed=1)) == "dense, sharded"
    assert run_dir.add_record("dense", samples.record("dense", seed=2)) == "dense, sharded 2"
    contents = run_dir.read()
    assert contents.predictions["dense"].memory_bytes == 5.0
    assert list(contents.predictions) == ["dense", "terngrad"]
    assert {k: r.seed for k, r in contents.records.items() if k != "terngrad"} == {
        "dense": 0,
        "dense, sharded": 1,
        "dense, sharded 2": 2,
    }
    assert set(contents.measured) == set(contents.records)


def test_records_appended_without_a_label_get_one(tmp_path: Path) -> None:
    for _ in range(3):
        samples.record("terngrad").append(tmp_path / "record.jsonl")
    assert list(RunDir(tmp_path).read(partial=True).records) == ["terngrad", "terngrad, sharded", "terngrad, sharded 2"]


def test_run_label() -> None:
    assert run_label({"compression": "terngrad"}) == "terngrad"
    assert run_label({"compression": "terngrad"}, ["terngrad"]) == "terngrad 2"
    assert run_label({"compression": "x", "exchange": "ring"}, ["x"]) == "x, ring"
    assert run_label({}) == "run"


def test_missing_files_name_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run directory .*absent.*paceline train"):
        RunDir(tmp_path / "absent").read()
    with pytest.raises(UserError, match=r"no record.jsonl in .*paceline train --out"):
        RunDir(tmp_path).read()
    with pytest.raises(UserError, match=r"no record.jsonl"):
        RunDir(tmp_path).read(partial=True)
    directory = RunDir(tmp_path)
    directory.add_record("dense", samples.record("dense"))
    with pytest.raises(UserError, match=r"no prediction.json in .*paceline predict --out"):
        directory.read()
    assert directory.read(partial=True).predictions == {}
    directory.measured_path.unlink()
    directory.write_prediction("dense", samples.metrics("dense"))
    with pytest.raises(UserError, match=r"no measured.trace.json"):
        directory.read()


def _prediction(**change: Any) -> str:
    return json.dumps({"predictions": {"dense": {**samples.metrics("dense").to_json(), **change}}})


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("prediction.json", "{"),
        ("prediction.json", "[]"),
        ("prediction.json", '{"predictions": {"dense": {}}}'),
        ("prediction.json", _prediction(step_time_s="soon")),
        ("prediction.json", _prediction(strategy=None)),
        ("record.jsonl", "{}\n"),
        ("record.jsonl", '{"schema": 1, "work\n'),
        ("record.jsonl", "7\n"),
        ("predicted.trace.json", "{}"),
        ("measured.trace.json", "\x00"),
    ],
)
def test_broken_file_is_named(run_dir: RunDir, file: str, text: str) -> None:
    (run_dir.path / file).write_text(text)
    with pytest.raises(UserError, match=rf"{file} cannot be read.*move it away"):
        run_dir.read()
    with pytest.raises(UserError, match=rf"{file} cannot be read"):
        run_dir.check_writable()  # before training, not after


def test_check_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunDir(tmp_path / "a" / "b").check_writable()
    assert list((tmp_path / "a" / "b").iterdir()) == []
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UserError, match="is a file, not a directory"):
        RunDir(file).check_writable()
    with pytest.raises(UserError, match="cannot write to"):
        RunDir(file / "below").check_writable()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(UserError, match=r"cannot write to .*Read-only file system; choose another"):
        RunDir(tmp_path / "c").check_writable()


def test_failed_write_leaves_the_old_file(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_dir.prediction_path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match="No space left"):
        run_dir.write_prediction("dense", samples.metrics("terngrad"))
    assert run_dir.prediction_path.read_bytes() == before
    assert not [p for p in run_dir.path.iterdir() if p.name.endswith(".tmp")]


def test_cluster_of_a_prediction_is_kept(tmp_path: Path) -> None:
    class Predicted(Metrics):
        def to_json(self) -> dict[str, Any]:
            return {**super().to_json(), "cluster": {"nodes": 4, "link": {"rate": "1Gb/s"}}}

    base = samples.metrics("dense")
    values = {k: getattr(base, k) for k in Metrics.__dataclass_fields__}
    directory = RunDir(tmp_path)
    directory.write_prediction("dense", Predicted(**values))
    assert directory.read(partial=True).clusters["dense"]["nodes"] == 4


def test_a_lock_keeps_others_out_and_leaves_nothing(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "run")
    with directory.locked():
        owner = rf"run is in use by process {os.getpid()} on .*; wait for its end, or choose"
        with pytest.raises(UserError, match=owner), RunDir(tmp_path / "run").locked():
            pass
        directory.add_record("dense", samples.record("dense"))
    with directory.locked():  # it was given back
        assert list(directory.read(partial=True).records) == ["dense"]
    assert not directory.lock_path.exists()
    with pytest.raises(ZeroDivisionError), RunDir(tmp_path / "other").locked():
        raise ZeroDivisionError
    assert not (tmp_path / "other").exists()


def test_a_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "run")
    if (child := os.fork()) == 0:
        with directory.locked():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert directory.lock_path.exists()
    with directory.locked():
        assert f"process {os.getpid()} " in directory.lock_path.read_text()


def test_a_lock_that_its_last_owner_removed_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner ends between this process's opening of the file and its locking: a lock on no file keeps nobody out."""
    directory = RunDir(tmp_path)
    flock, calls = fcntl.flock, []

    def late(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 1:
            directory.lock_path.unlink()
        flock(*given)

    monkeypatch.setattr(fcntl, "flock", late)
    with directory.locked(), pytest.raises(UserError, match="in use by process"), RunDir(tmp_path).locked():
        pass
    assert len(calls) == 3 and not directory.lock_path.exists()


def test_a_line_without_its_end_is_kept_when_it_is_whole(tmp_path: Path) -> None:
    """As an editor leaves it."""
    directory = RunDir(tmp_path)
    for label in ("dense", "terngrad"):
        directory.record_path.write_text(directory.record_path.read_text().rstrip("\n") if label == "terngrad" else "")
        directory.add_record(label, samples.record(label))
    assert list(directory.read(partial=True).records) == ["dense", "terngrad"]
