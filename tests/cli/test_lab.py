"""``paceline lab`` from the shell's side, on loopback: no privileges are needed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline import lab
from paceline.cli import main
from paceline.errors import UserError
from paceline.lab import journal, kernel


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime directory of the test's own."""
    monkeypatch.setenv(journal.DIRECTORY, str(tmp_path / "runtime"))


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["lab", *words])
    out, err = capfd.readouterr()
    return code, out, err


def test_a_lab_on_loopback_from_up_to_down(capfd: pytest.CaptureFixture[str]) -> None:
    up = ("up", "--hosts", "2", "--loopback")
    assert run(capfd, *up) == (0, "lab: 2 hosts, loopback; up; all on 127.0.0.1, unshaped\n", "")
    code, out, err = run(capfd, *up)
    assert (code, err) == (0, "")
    assert " ".join(out.split()) == "lab: 2 hosts, loopback; was up already, left as it is; all on 127.0.0.1, unshaped"
    code, out, err = run(capfd, "exec", "--", "sh", "-c", "echo {rank} of {hosts} at {address} --json")
    assert code == 0 and "lab: 2 ranks ended with code 0" in err
    assert sorted(out.splitlines()) == [f"host {n} | {n} of 2 at 127.0.0.1 --json" for n in (0, 1)]
    code, out, _ = run(capfd, "status")
    assert code == 0 and out.startswith("lab: 2 hosts, loopback; complete\nup since ")
    data = json.loads(run(capfd, "status", "--json")[1])["labs"][0]
    assert (data["loopback"], data["complete"], data["link_bytes_per_s"], len(data["hosts"])) == (True, True, None, 2)
    assert run(capfd, "down") == (0, "lab: down\n", "")
    assert run(capfd, "down") == (0, "lab: there is none, nothing to do\n", "")
    assert json.loads(run(capfd, "down", "--json")[1]) == {"name": "lab", "removed": False, "notes": []}
    assert run(capfd, "status")[1] == "no lab is up; paceline lab up --hosts 4 --link 1Gb/s\n"


def test_exec_has_the_exit_code_of_the_first_host_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    lab.up(3, None)
    fails = ("--", "sh", "-c", "[ {rank} != 1 ] || { echo why >&2; exit 9; }; sleep 1000")
    code, out, err = run(capfd, "exec", *fails)
    assert (code, out) == (9, "")
    assert err.splitlines() == ["host 1 | why", "paceline: host 1 (127.0.0.1, rank 1) ended with code 9: why"]
    code, out, err = run(capfd, "exec", "--json", *fails)
    data = json.loads(out)
    assert (code, data["exit_code"], err) == (9, 9, "")
    assert [rank["ended"] for rank in data["ranks"]] == [True, False, True]
    assert run(capfd, "exec", "--timeout", "0.3", "--", "sleep", "1000")[0] == 124


def test_everything_behind_the_dashes_is_the_commands(capfd: pytest.CaptureFixture[str]) -> None:
    lab.up(1, None)
    words = ["--name", "x", "--", "--per-host", "3", "--jsn"]
    code, out, _ = run(capfd, "exec", "--per-host", "2", "--json", "--", "printf", "%s\n", *words)
    assert code == 0
    ranks = json.loads(out)["ranks"]
    assert len(ranks) == 2 and ranks[1]["stdout"].splitlines() == words


def test_a_reader_that_leaves_ends_the_hosts() -> None:
    """As in ``paceline lab exec -- yes | head -1``."""
    lab.up(2, None)
    environment = {**os.environ, "PYTHONPATH": str(Path(lab.__file__).parents[2])}
    command = [sys.executable, "-m", "paceline", "lab", "exec", "--", "yes"]
    runner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert runner.stdout and runner.stderr
        assert runner.stdout.readline() in ("host 0 | y\n", "host 1 | y\n")
        runner.stdout.close()
        assert (runner.stderr.read(), runner.wait(timeout=100)) == ("", 0)
    finally:
        runner.kill()
        runner.wait()


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        ("up --link 1Gb/s", "required: --hosts", "paceline lab up --help"),
        ("up --hosts 4", "--link is missing", "--loopback"),
        ("up --hosts 4 --link 1Gb/s --loopback", "--loopback has no --link", "leave one"),
        ("up --hosts 4 --loopback --latency 1ms", "loopback has no latency", "--latency"),
        ("up --hosts four --link 1Gb/s", "'four' is not a whole number", "--hosts"),
        ("up --hosts 4 --link 1Gbs", "'1Gbs' is not a bandwidth", "10Gb/s"),
        ("up --hosts 4 --lnk 1Gb/s", "unknown option '--lnk'", "--link"),
        ("up --hosts 300 --loopback", "300 hosts", "1 to 250"),
        ("up --hosts 2 --loopback --name a/b", "'a/b' is not a lab's name", "a to z"),
        ("up --hosts 3 --loopback", "lab 'lab' is up with 2 hosts, not 3", "paceline lab down --name lab"),
        ("stats", "unknown command 'stats'", "status"),
        ("exec", "required: COMMAND", "paceline lab exec --help"),
        ("exec --per-host two -- ls --color", "'two' is not a whole number", "--per-host"),
        ("exec --per-hots 2 -- ls", "unknown option '--per-hots'", "--per-host"),
        ("exec ls -l", "unknown option '-l'", "after --"),
        ("exec -- no-such-program", "no program 'no-such-program'", "give one that runs on this machine"),
        ("exec --name lba -- ls", "unknown lab 'lba'", "did you mean lab?"),
        ("status --name lba", "unknown lab 'lba'", "did you mean lab?"),
    ],
)
def test_a_mistake_is_one_line(words: str, what: str, fix: str, capfd: pytest.CaptureFixture[str]) -> None:
    lab.up(2, None)
    code, out, err = run(capfd, *words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("paceline: ") and what in err and fix in err


def test_down_of_another_name_says_what_is_up(capfd: pytest.CaptureFixture[str]) -> None:
    lab.up(2, None)
    assert run(capfd, "down", "--name", "lba")[:2] == (0, "lba: there is none, nothing to do; up: lab\n")


def test_without_the_privileges(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(kernel, "lost_capabilities", lambda: ["CAP_NET_ADMIN"])
    code, out, err = run(capfd, "up", "--hosts", "4", "--link", "1Gb/s")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "root (CAP_NET_ADMIN)" in err and "paceline lab up --hosts 4 --loopback" in err


def test_loopback_has_no_cable_to_pull() -> None:
    with lab.up(2, None) as made:
        for use in (made.counters, lambda: made.cut(0), lambda: made.mend(0)):
            with pytest.raises(UserError, match="loopback"):
                use()
    assert lab.labs() == []
