"""Jobs as processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from live_jobs import script, stand_in, training, until
from paceline.errors import UserError
from paceline.scheduling.executors.local import NODE, LocalExecutor, _marked

if sys.platform != "linux":
    pytest.skip("needs Linux, where the local executor finds its jobs in /proc", allow_module_level=True)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[LocalExecutor]:
    yield LocalExecutor(tmp_path / "jobs", {"a": 2, "b": 2}, stand_in(tmp_path))
    for pid, path in _marked():
        if path.parent == tmp_path / "jobs":
            os.kill(pid, signal.SIGKILL)


def processes(tmp_path: Path) -> list[int]:
    return [pid for pid, path in _marked() if path.parent == tmp_path / "jobs"]


def test_a_job_runs_to_its_end(executor: LocalExecutor, tmp_path: Path) -> None:
    assert executor.nodes() == (("a", 2), ("b", 2)) and executor.poll() == {}
    executor.submit(script(tmp_path, "echo $PACELINE_DEVICES; exit 3", min_devices=2, max_devices=2), {"a": 2})
    seen = until(executor, "job", "failed")
    assert (seen.code, seen.reason, seen.placement) == (3, "it ended with code 3", {"a": 2})
    assert (tmp_path / "jobs" / "job.log").read_text() == "2\n" and processes(tmp_path) == []
    executor.submit(script(tmp_path, "exit 0"), {"a": 1})
    assert until(executor, "job", "done").code == 0


def test_a_job_moves_to_another_size_and_loses_no_epoch(executor: LocalExecutor, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "last").write_text("2")
    executor.submit(training(tmp_path), {"a": 1})
    until(executor, "job", lambda seen: seen.progress.get("epoch", 0) == 2)
    executor.resize("job", {"a": 2, "b": 2})
    until(executor, "job", lambda seen: seen.phase == "running" and seen.placement == {"a": 2, "b": 2})
    (tmp_path / "job" / "last").unlink()
    assert until(executor, "job", "done").progress["workers"] == 4
    lines = (tmp_path / "job" / "epochs").read_text().splitlines()
    assert lines == ["1 1", "2 1", "3 4", "4 4", "5 4", "6 4"]


def test_a_report_of_another_run_ends_no_job(executor: LocalExecutor, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "progress.json").write_text('{"epoch": 6, "step": 60, "workers": 1}')
    executor.submit(training(tmp_path, directory=str(tmp_path / "gone")), {"a": 1})
    seen = until(executor, "job", lambda seen: not seen.holds_devices)
    assert (seen.phase, seen.progress) == ("failed", {})
    (tmp_path / "job" / "checkpoint.pt").write_text("6")  # with the checkpoint it belongs to, the program ends at once
    executor.submit(training(tmp_path), {"a": 1})
    assert until(executor, "job", lambda seen: not seen.holds_devices).phase == "done"


def test_a_job_that_saves_on_its_own_signal_goes_on(executor: LocalExecutor, tmp_path: Path) -> None:
    text = 'cd "$0"; [ -f saved ] && exit 0; trap "touch saved; exit 0" USR1; touch ready; while :; do sleep 0.02; done'
    job = script(tmp_path, text, signal="USR1")
    (tmp_path / "job").mkdir()
    job = replace(job, command=(*job.command, job.checkpoint))
    executor.submit(job, {"a": 1})
    until(executor, "job", lambda seen: (tmp_path / "job" / "ready").exists())
    executor.stop("job", 60.0)
    assert until(executor, "job", "stopped").code == 0
    executor.submit(job, {"b": 1})
    assert until(executor, "job", "done").placement == {"b": 1}


def test_a_job_that_does_not_listen_is_killed_with_all_it_started(
    executor: LocalExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = time.time() + 5000.0
    text = "trap '' TERM; setsid sleep 1000 & touch ready; while :; do sleep 0.02; done"
    executor.submit(script(tmp_path, text, directory=str(tmp_path)), {"a": 1})
    until(executor, "job", lambda seen: (tmp_path / "ready").exists())
    executor.stop("job", 1000.0)
    assert executor.poll()["job"].phase == "stopping" and len(processes(tmp_path)) >= 3
    monkeypatch.setattr(time, "time", lambda: later)
    assert until(executor, "job", "stopped").code is None
    assert processes(tmp_path) == []


def test_another_executor_of_the_directory_finds_the_job_and_starts_no_second(executor: LocalExecutor, tmp_path: Path) -> None:
    """As after a crash of the first, also of one that died before it could write what it had started."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path; from live_jobs import script;"
        "from paceline.scheduling.executors import local; from paceline.scheduling.executors.records import Records\n"
        "save = Records.save\n"
        "def dies(self, record):\n    record.handle and os._exit(9)\n    save(self, record)\n"
        "Records.save = dies\n"
        "base = Path(sys.argv[1]); job = script(base, 'echo x >> starts; sleep 1000', directory=str(base))\n"
        "local.LocalExecutor(base / 'jobs', {'a': 2, 'b': 2}).submit(job, {'a': 1})"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    words = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parents[2])]
    done = subprocess.run(words, env=environment, timeout=200)
    assert done.returncode == 9
    assert executor.poll()["job"].phase == "running"
    executor.submit(script(tmp_path, "echo x >> starts", directory=str(tmp_path)), {"a": 1})
    until(executor, "job", lambda seen: (tmp_path / "starts").exists())
    assert (tmp_path / "starts").read_text() == "x\n"
    executor.stop("job", 60.0)
    assert until(executor, "job", "stopped").code == 143


def test_more_than_is_free_is_refused(executor: LocalExecutor, tmp_path: Path) -> None:
    executor.submit(script(tmp_path, "sleep 1000", "first", min_devices=2, max_devices=2), {"a": 2})
    with pytest.raises(UserError, match="job second: 1 slots of a; 0 are free"):
        executor.submit(script(tmp_path, "true", "second"), {"a": 1})
    assert "second" not in executor.poll()
    with pytest.raises(UserError, match="0 slots"):
        LocalExecutor(tmp_path / "other", 0)
    assert LocalExecutor(tmp_path / "other", 3).nodes() == ((NODE, 3),)


def test_a_move_waits_for_devices_that_another_still_holds(executor: LocalExecutor, tmp_path: Path) -> None:
    executor.submit(script(tmp_path, "sleep 1000", "first", min_devices=2, max_devices=2), {"b": 2})
    executor.submit(training(tmp_path, epochs=1000), {"a": 1})
    until(executor, "job", lambda seen: seen.progress.get("epoch", 0) >= 1)
    executor.resize("job", {"a": 2, "b": 2})
    assert until(executor, "job", "waiting").placement == {"a": 2, "b": 2}
    time.sleep(0.1)
    assert executor.poll()["job"].phase == "waiting"
    executor.stop("first", 60.0)
    until(executor, "job", lambda seen: seen.phase == "running" and seen.placement == {"a": 2, "b": 2})
