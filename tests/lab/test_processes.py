"""A command on every host, on loopback: the environment, the output, and the end of all when one fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline import lab
from paceline.errors import UserError
from paceline.lab import kernel


def test_every_rank_runs_and_says_its_own() -> None:
    code = "import os, sys, json; print(json.dumps(dict(os.environ))); print('rank', sys.argv[1], file=sys.stderr)"
    results = lab.loopback(2).run([sys.executable, "-c", code, "{rank}"], per_host=2, env={"MINE": "yes"}, timeout=200)
    assert [(r.host, r.rank, r.local_rank, r.code, r.ended) for r in results] == [
        (0, 0, 0, 0, False),
        (0, 1, 1, 0, False),
        (1, 2, 0, 0, False),
        (1, 3, 1, 0, False),
    ]
    for result in results:
        seen = json.loads(result.stdout)
        assert (seen["RANK"], seen["MINE"], seen["MASTER_ADDR"]) == (str(result.rank), "yes", "127.0.0.1")
        assert result.stderr == f"rank {result.rank}\n" and result.seconds > 0


def test_lines_are_streamed_behind_their_host(capfd: pytest.CaptureFixture[str]) -> None:
    lab.loopback(2).run(["sh", "-c", "echo one; echo two >&2; printf three"], stream=True, timeout=100)
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["host 0 | one", "host 0 | three", "host 1 | one", "host 1 | three"]
    assert sorted(err.splitlines()) == ["host 0 | two", "host 1 | two"]
    lab.loopback(1).run(["echo", "x"], stream=True, per_host=2, timeout=100)
    assert sorted(capfd.readouterr().out.splitlines()) == ["host 0.0 | x", "host 0.1 | x"]


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    until = time.monotonic() + 100
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def test_when_one_host_fails_it_is_named_and_the_others_end_with_their_children(tmp_path: Path) -> None:
    script = (
        f"if [ {{rank}} = 2 ]; then while [ $(ls {tmp_path} | wc -l) -lt 3 ]; do sleep 0.05; done; echo broken >&2; exit 7; fi;"
        f"sleep 1000 & echo $! > {tmp_path}/.{{rank}}; mv {tmp_path}/.{{rank}} {tmp_path}/{{rank}}; wait"
    )
    with pytest.raises(lab.HostFailed) as caught:
        lab.loopback(4).run(["sh", "-c", script], timeout=200)
    assert str(caught.value) == "host 2 (127.0.0.1, rank 2) ended with code 7: broken"
    assert (caught.value.code, caught.value.host) == (7, 2)
    assert [r.ended for r in caught.value.results] == [True, True, False, True]
    wait_until_gone([int((tmp_path / str(rank)).read_text()) for rank in (0, 1, 3)])


def test_a_host_that_does_not_listen_is_ended_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.lab.processes.GRACE_S", 0.3)
    deaf = tmp_path / "deaf"
    dies = f"while [ ! -e {deaf} ]; do sleep 0.05; done; kill -9 $$"
    script = f"trap '' TERM; if [ {{rank}} = 1 ]; then {dies}; fi; touch {deaf}; while :; do sleep 0.1; done"
    with pytest.raises(lab.HostFailed) as caught:
        lab.loopback(2).run(["sh", "-c", script], timeout=200)
    assert "host 1" in str(caught.value) and "was killed by SIGKILL" in str(caught.value)
    assert caught.value.code == 137 and caught.value.results[0].code == 137


def test_what_takes_too_long_is_ended() -> None:
    with pytest.raises(lab.HostFailed, match=r"hosts 1, 2 still ran after 7 s") as caught:
        lab.loopback(3).run(["sh", "-c", "[ {rank} = 0 ] || sleep 1000"], timeout=7.0)  # the first one ends within it
    assert caught.value.code == 124 and [r.ended for r in caught.value.results] == [False, True, True]


def test_what_was_left_in_the_background_is_ended(tmp_path: Path) -> None:
    lab.loopback(1).run(["sh", "-c", f"sleep 1000 & echo $! > {tmp_path}/pid"], timeout=200)
    wait_until_gone([int((tmp_path / "pid").read_text())])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_runner_that_is_told_to_end_takes_its_hosts_along(number: int, tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/.{{rank}}; mv {tmp_path}/.{{rank}} {tmp_path}/{{rank}}; sleep 1000"
    # Whoever runs the tests may ignore signals, as nohup does, and a child inherits that.
    usual = "default_int_handler" if number == signal.SIGINT else "SIG_DFL"
    code = f"import signal; signal.signal({number:d}, signal.{usual})\n"
    code += f"from paceline import lab; lab.loopback(2).run(['sh', '-c', {script!r}])"
    environment = {**os.environ, "PYTHONPATH": str(Path(lab.__file__).parents[2])}
    runner = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 100
        while not all((tmp_path / rank).exists() for rank in "01") and time.monotonic() < until:
            time.sleep(0.05)
        runner.send_signal(number)
        assert runner.wait(timeout=100) in (128 + number, -number)
        wait_until_gone([int((tmp_path / rank).read_text()) for rank in "01"])
    finally:
        runner.kill()
        runner.wait()


@pytest.mark.parametrize(
    ("command", "more", "what"),
    [
        ([], {}, "no command"),
        (["no-such-program"], {}, "no program 'no-such-program'"),
        (["true"], {"per_host": 0}, "0 processes on a host"),
        (["true"], {"timeout": 0.0}, "a timeout of 0.0 s"),
        (["true"], {"timeout": float("nan")}, "a timeout of nan s"),
    ],
)
def test_what_cannot_be_started(command: list[str], more: dict[str, object], what: str) -> None:
    with pytest.raises(UserError, match=what):
        lab.loopback(2).run(command, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_runner_that_is_told_to_end_while_it_starts_a_host_leaves_nobody(number: int, tmp_path: Path) -> None:
    usual = "default_int_handler" if number == signal.SIGINT else "SIG_DFL"
    code = f"""
import os, signal, subprocess
signal.signal({number:d}, signal.{usual})
from paceline import lab

class Popen(subprocess.Popen):
    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        with open({str(tmp_path / "pids")!r}, "a") as pids:
            print(self.pid, file=pids)
        os.kill(os.getpid(), {number:d})

subprocess.Popen = Popen
lab.loopback(2).run(["sleep", "1000"])
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(lab.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL, timeout=200, check=False)
    assert done.returncode in (128 + number, -number)
    wait_until_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])


def test_who_was_ended_has_let_go_of_its_files_and_others_are_left_alone(tmp_path: Path) -> None:
    """A process whose memory is gone may still hold what it has open: 400 MB take a while to free."""
    held = "import sys, time; kept = bytearray(b'x') * 400_000_000; print('ready', flush=True); time.sleep(600)"
    mine, other = (
        subprocess.Popen([sys.executable, "-c", held], env={**os.environ, kernel.MARK: name}, stdout=subprocess.PIPE)
        for name in ("mine", "other")
    )
    try:
        for process in (mine, other):
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert kernel.end([mine.pid, other.pid], "mine", at_once=True) == [mine.pid]
        assert os.waitid(os.P_PID, mine.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        assert other.poll() is None
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()
