"""Requests that a worker stops: kept while it trains, an end before; a second Ctrl-C is an end too."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from paceline.errors import LostRank
from paceline.training.__main__ import main
from paceline.training.runs import worker
from paceline.training.runs.stop_requests import STOP_FILE, WORKER, StopRequests


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_is_a_request_while_training_and_what_it_was_after(number: signal.Signals) -> None:
    before, stops = signal.getsignal(number), StopRequests()
    with stops.while_training():
        signal.raise_signal(number)
        assert stops.number == number
        if number == signal.SIGTERM:  # Slurm sends it twice
            signal.raise_signal(number)
    assert signal.getsignal(number) == before


def ends(stops: StopRequests, *sends: signal.Signals) -> int:
    """The exit code of a copy of this process that gets these signals."""
    if (child := os.fork()) == 0:
        with stops.while_training():
            for number in sends:
                signal.raise_signal(number)
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_ctrl_c_twice_ends_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert ends(StopRequests(), signal.SIGINT) == 0
    assert ends(StopRequests(), signal.SIGTERM, signal.SIGTERM) == 0
    assert ends(StopRequests(), signal.SIGINT, signal.SIGINT) == 130
    assert capfd.readouterr().err == "paceline: rank 0: interrupted twice, ended at once\n"


def test_the_word_of_the_launcher_ends_a_worker_that_does_not_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stop"
    monkeypatch.setenv(STOP_FILE, str(path))
    if (child := os.fork()) == 0:
        StopRequests()
        time.sleep(100)
        os._exit(0)
    path.write_text(str(int(signal.SIGTERM)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 143
    path.unlink()
    stops = StopRequests()
    with stops.while_training():
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler  # the launcher has Ctrl-C
        path.write_text("2")
        while not stops.number:
            time.sleep(0.01)
    assert stops.number == 2


def test_the_launcher_may_end_a_worker_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ready = tmp_path / "stop", tmp_path / "ready"
    monkeypatch.setenv(STOP_FILE, str(path))
    if (child := os.fork()) == 0:
        with StopRequests().while_training():
            ready.touch()
            time.sleep(100)
        os._exit(0)
    while not ready.exists():
        time.sleep(0.01)
    path.write_text("2")
    time.sleep(0.5)
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "it goes on to the end of a step"
    path.write_text("2 now")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130


def test_a_sigterm_beside_the_launcher_is_a_request_unless_a_worker_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system sends it to all processes; the launcher sends it to workers that are left when one was lost."""
    monkeypatch.setenv(STOP_FILE, str(tmp_path / "stop"))
    other = subprocess.Popen(["sleep", "100"])
    (tmp_path / f"{other.pid}{WORKER}").touch()
    stops = StopRequests()
    with stops.while_training():
        signal.raise_signal(signal.SIGTERM)
        assert stops.number == signal.SIGTERM
        stops.number = signal.SIGINT
        signal.raise_signal(signal.SIGTERM)
        assert stops.number == signal.SIGINT, "what was first"
    other.kill()
    other.wait()
    stops.number = 0
    assert ends(stops, signal.SIGTERM) == -signal.SIGTERM
    stops.elastic = True
    assert ends(stops, signal.SIGTERM) == 0, "it waits for the exchange to fail, and leaves the last step behind"


@pytest.mark.parametrize(("asked", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1), (0, 1)])
def test_a_rank_whose_peer_ended_first_was_interrupted_too(
    asked: int, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def lost(run: object, device: object, stops: StopRequests) -> None:
        stops.number = asked
        raise LostRank("rank 0 is lost")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(worker, "joined", lambda options, held: (None, None))
    monkeypatch.setattr(worker, "train", lost)
    assert main(["--model", "mlp", "--data", "digits"]) == code
    assert capfd.readouterr().err == "paceline: rank 1: rank 0 is lost\n"
