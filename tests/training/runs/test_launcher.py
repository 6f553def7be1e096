"""How runs of real processes end: told to by a signal, orphaned, cut off, in each other's way, or with an error on one rank."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distributed import ENVIRONMENT, TESTS, executable, free_port
from paceline import lab
from paceline.errors import Interrupted, UserError
from paceline.training.runs import launcher
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.launcher import interruptible
from paceline.training.runs.stop_requests import WORKER

FEW = ["--model", "user_module:small_and_idle", "--data", "user_module:few", "--global-batch", "8", "--epochs", "1000000"]
ENDLESS = ["--model", "user_module:plain_and_idle", "--data", "user_module:endless", "--global-batch", "8"]
NO_TORCHRUN = {k: v for k, v in ENVIRONMENT.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}


SAYS_ITS_NUMBER = """
import os, sys
print("process", os.getpid(), file=sys.stderr, flush=True)
from paceline.cli import main
sys.exit(main())
"""
"""``paceline`` in the warm Python, where the process that a test starts only forwards signals to it."""


class Run:
    """A process whose error stream is read as it comes."""

    def __init__(
        self, command: list[str], *, cwd: Path = TESTS, env: dict[str, str] = NO_TORCHRUN, python: str = sys.executable
    ) -> None:
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([python, *command], cwd=cwd, env=env, start_new_session=True, **pipes)
        self.lines: list[str] = []
        self._ended = False
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grown:
                self.lines.append(line.rstrip())
                self._grown.notify_all()
        with self._grown:
            self._ended = True
            self._grown.notify_all()

    def wait_for(self, text: str) -> None:
        with self._grown:
            self._grown.wait_for(lambda: self._ended or any(text in line for line in self.lines), 120)
            assert any(text in line for line in self.lines), self.lines

    def program(self) -> int:
        """The number of the process that runs ``SAYS_ITS_NUMBER``."""
        self.wait_for("process ")
        return int(self.lines[0].split()[1])

    def end(self, timeout: float = 200) -> tuple[int, list[str]]:
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code, self.lines

    def clean_up(self) -> None:
        for pid in [*workers_of(self.process.pid), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def workers_of(pid: int) -> list[int]:
    """Processes that ``pid`` has started and that still run."""
    try:
        started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in started]


def gone(pids: list[int], within_s: float) -> bool:
    """Whether all of these processes, which need not be this one's, end in time."""
    until = time.monotonic() + within_s
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ended = poll.poll(max(0.0, until - time.monotonic()) * 1000)
        os.close(descriptor)
        if not ended:
            return False
    return True


class Ended:
    """Three runs at once, each ended by a signal, after a fourth has been started into the directory of the first."""

    def __init__(self, folder: Path) -> None:
        words = {
            signal.SIGINT: [*FEW, "--workers", "2"],
            signal.SIGTERM: [*ENDLESS, "--workers", "1", "--checkpoint-every", "5"],
            signal.SIGKILL: [*FEW, "--workers", "1"],
        }
        self.out = {number: folder / number.name for number in words}
        train = ["-c", SAYS_ITS_NUMBER, "train"]
        runs = {n: Run([*train, *words[n], "--out", str(self.out[n])], python=executable()) for n in words}
        workers: dict[signal.Signals, list[int]] = {}
        try:
            programs = {number: run.program() for number, run in runs.items()}
            for number, run in runs.items():
                run.wait_for("predicted" if number == signal.SIGTERM else "epoch 1/")
            until = time.monotonic() + 120
            while not (self.out[signal.SIGTERM] / "checkpoint.pt").exists() and time.monotonic() < until:
                time.sleep(0.1)  # the first steps, after the prediction
            self.pid = programs[signal.SIGINT]
            second = [*FEW[:-1], "1", "--workers", "1", "--out", str(self.out[signal.SIGINT])]
            self.second = Run(["-m", "paceline", "train", *second], python=executable()).end()
            workers |= {number: workers_of(program) for number, program in programs.items()}
            for number, program in programs.items():
                os.kill(program, number)
            self.ends = {number: (run.process.wait(150), run.lines) for number, run in runs.items()}
            self.counts = {number: len(pids) for number, pids in workers.items()}
            self.orphaned = {number for number, pids in workers.items() if not gone(pids, 100)}
        finally:
            for run in runs.values():
                run.clean_up()
            for pid in [pid for pids in workers.values() for pid in pids]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return Ended(tmp_path_factory.mktemp("ended"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_ends_a_run_in_order(ended, number):
    code, lines = ended.ends[number]
    assert code == 128 + number
    assert not [line for line in lines if "Traceback" in line or "Error" in line]
    out = ended.out[number]
    where = checkpoint.place(checkpoint.load(out))
    if number == signal.SIGTERM:
        assert re.fullmatch(r"step [1-9]\d* of epoch 1", where)  # an epoch would take hours
    assert lines[-1] == f"paceline: interrupted by {number.name}; the checkpoint of {where} is kept; resume {out} to go on"
    assert sum(line.startswith("paceline:") for line in lines) == 1
    summaries = [line for line in lines if "stopped after" in line]
    assert len(summaries) == 1 and f": stopped after {where}, " in summaries[0] and " a step" in summaries[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("whom", "more"),
    [("all processes", []), ("one worker", []), pytest.param("all processes", ["--elastic"], marks=pytest.mark.full)],
    ids=str,
)
def test_a_sigterm_of_a_batch_system_or_to_a_worker_stops_the_run_in_order(tmp_path: Path, whom: str, more: list[str]) -> None:
    out = tmp_path / "out"
    words = [*FEW, "--workers", "2", "--out", str(out), "--checkpoint-every", "1000000", *more]
    run = Run(["-c", SAYS_ITS_NUMBER, "train", *words], python=executable())
    try:
        run.wait_for("epoch 1/")
        workers = workers_of(run.program())
        for pid in [*workers, run.program()] if whom == "all processes" else workers[1:]:
            os.kill(pid, signal.SIGTERM)
        code, lines = run.end()
        where = checkpoint.place(checkpoint.load(out))
        assert code == 143, lines
        assert lines[-1] == f"paceline: interrupted by SIGTERM; the checkpoint of {where} is kept; resume {out} to go on"
        assert gone(workers, 100)
    finally:
        run.clean_up()


@pytest.mark.full
def test_a_signalled_torchrun_ends_when_its_ranks_have_saved(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = Run(["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "paceline.training", *FEW, "--out", str(out)])
    try:
        run.wait_for("epoch 1/")
        run.process.send_signal(signal.SIGTERM)
        code, lines = run.end()
        where = checkpoint.place(checkpoint.load(out))
        assert f"paceline: interrupted by SIGTERM; the checkpoint of {where} is kept; resume {out} to go on" in lines
        assert code == 1, "torchrun's own, as docs/faults.md says"
    finally:
        run.clean_up()


def test_workers_end_with_their_launcher(ended):
    """However it was ended: nothing can be done about SIGKILL, but workers notice."""
    assert ended.counts == {signal.SIGINT: 2, signal.SIGTERM: 1, signal.SIGKILL: 1}
    assert not ended.orphaned


def test_a_second_run_into_a_directory_is_refused(ended):
    code, lines = ended.second
    assert code == 2 and len(lines) == 1
    out = ended.out[signal.SIGINT]
    assert lines[0].startswith(f"paceline: {out} is in use by process {ended.pid} on ")
    assert "--out" in lines[0]


def test_a_second_signal_ends_what_the_first_asked_to_stop() -> None:
    asked: list[tuple[int, bool]] = []
    with interruptible() as interruption:
        interruption.ask = lambda number, at_once: asked.append((number, at_once))
        signal.raise_signal(signal.SIGINT)
        assert asked == [(signal.SIGINT, False)] and interruption.asked == signal.SIGINT
        with pytest.raises(Interrupted) as second:
            signal.raise_signal(signal.SIGINT)
        assert asked[1:] == [(signal.SIGINT, True)]
        interruption.answered()
    assert second.value.code == 130


def test_workers_that_do_not_stop_in_time_are_ended() -> None:
    interruption = launcher.Interruption(grace_s=0.05)
    interruption.ask = lambda number, at_once: None
    before = signal.signal(signal.SIGTERM, interruption.on_signal)
    try:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted):
            time.sleep(60)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_only_a_suspended_worker_is_killed_and_only_when_another_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "WATCH_S", 0.02)
    monkeypatch.setattr(launcher, "SUSPENDED_S", 0.1)
    ended, children = threading.Event(), [subprocess.Popen(["sleep", "100"]) for _ in range(3)]
    thread = threading.Thread(target=launcher._end_suspended, args=(tmp_path / "stop", ended))
    try:
        for child in children:
            (tmp_path / f"{child.pid}{WORKER}").touch()
        thread.start()
        children[1].send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        assert [child.poll() for child in children] == [None] * 3  # a pause, as long as nobody has ended
        children[0].kill()
        assert children[1].wait(100) == -signal.SIGKILL
        assert children[2].poll() is None
    finally:
        ended.set()
        thread.join(100)
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_every_signal_that_ends_a_run_is_an_interruption(number):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=f"interrupted by {number.name}") as interruption, interruptible():
        signal.raise_signal(number)
    assert interruption.value.code == 128 + number
    assert signal.getsignal(number) == before


def test_a_script_that_handles_a_signal_keeps_its_handler():
    received: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: received.append(number))
    try:
        with interruptible():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert received == [signal.SIGHUP]


def ranks_of(words: list[str], folders: list[Path]) -> list[Run]:
    """``-m paceline.training`` on one rank a folder, each as if alone on its node, as torchrun starts them."""
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(folders))}
    own = {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    runs = []
    for rank, folder in enumerate(folders):
        environment = {**NO_TORCHRUN, **shared, **own, "RANK": str(rank)}
        runs.append(Run(["-m", "paceline.training", *words], cwd=folder, env=environment, python=executable()))
    return runs


def program_in(folder: Path, client: int) -> int:
    """The process in ``folder`` that the warm Python's ``client`` waits for."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            there = (process / "cwd").readlink() == folder
        except OSError:
            continue
        if there and int(process.name) != client:
            return int(process.name)
    raise AssertionError(f"no program in {folder}")


@pytest.fixture
def two_folders(tmp_path: Path) -> Iterator[list[Path]]:
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    return folders


def test_an_error_on_another_rank_is_said_by_every_node(two_folders):
    """The data are on the first node only."""
    (two_folders[0] / "only_here.py").write_text("from user_module import few\n")
    words = ["--model", "user_module:small", "--data", "only_here:few", "--global-batch", "8", "--epochs", "1"]
    runs = ranks_of(words, two_folders)
    try:
        for code, lines in [run.end() for run in runs]:
            assert code == 2
            lines = [line for line in lines if not line.startswith("[Gloo]")]  # said by PyTorch before 2.13
            assert len(lines) == 1 and lines[0].startswith("paceline: rank 1: no module 'only_here'")
    finally:
        for run in runs:
            run.clean_up()


def test_a_rank_that_answers_no_more_ends_the_others_in_time(two_folders):
    runs = ranks_of([*FEW, "--timeout", "10s", "--out", str(two_folders[0] / "out")], two_folders)
    try:
        runs[0].wait_for("epoch 1/")
        os.kill(program_in(two_folders[1], runs[1].process.pid), signal.SIGSTOP)
        code, lines = runs[0].end()
        assert code == 1
        assert lines[-1].startswith(
            ("paceline: rank 0: rank 1 is lost", "paceline: rank 0: another rank has not answered for 10 s")
        )
    finally:
        for run in runs:
            run.clean_up()


@pytest.mark.skipif(bool(lab.missing()), reason=f"needs for an emulated cluster: {'; '.join(lab.missing())}")
def test_a_cut_cable_ends_every_rank_in_time(tmp_path):
    words = [*ENDLESS, "--timeout", "12s", "--out", str(tmp_path / "out")]  # a slow rank attaches within it
    failures: list[Any] = []

    def train() -> None:
        try:
            cluster.run([executable(), "-m", "paceline.training", *words], env=environment, timeout=200)
        except lab.HostFailed as error:
            failures.append(error)

    environment = {**NO_TORCHRUN, "PYTHONPATH": f"{TESTS}:{ENVIRONMENT['PYTHONPATH']}", "GLOO_SOCKET_IFNAME": "pl0"}
    prediction = tmp_path / "out" / "prediction.json"
    with lab.up(2, "1Gb/s", name=f"t{os.getpid()}") as cluster:
        thread = threading.Thread(target=train)
        thread.start()
        until = time.monotonic() + 100
        while not prediction.exists() and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.1)
        cluster.cut(1)
        thread.join()
    assert failures and failures[0].code == 1, failures
    said = [
        line for result in failures[0].results for line in result.stderr.splitlines() if "is lost" in line or "is cut" in line
    ]
    assert said, [result.stderr for result in failures[0].results]


@dataclass
class Failure:
    """What ``ProcessFailure`` has."""

    exitcode: int
    message: str = ""
    mistake: bool = False
    lost: bool = False
    timestamp: int = 5
    pid: int = 1

    @property
    def error_file_data(self) -> dict[str, object]:
        return {"message": self.message, "mistake": self.mistake, "lost": self.lost, "fix": ""} if self.message else {}


LOST = Failure(1, "Connection closed by peer", timestamp=4)


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        ({0: LOST, 1: Failure(7)}, 1),  # it ended without a word, and the other lost it
        ({0: LOST, 1: Failure(-9)}, 1),
        ({0: LOST, 1: Failure(2, "no such column", mistake=True)}, 1),
        ({0: Failure(1, "Timed out waiting 10000ms for recv operation"), 1: Failure(-9)}, 0),  # the launcher killed it
        ({0: Failure(-15), 1: Failure(1, "out of memory")}, 1),
        ({0: Failure(1, "one", timestamp=6), 1: Failure(1, "two", timestamp=5)}, 1),
        ({0: Failure(1, "rank 1 is lost", lost=True), 1: Failure(1, "KeyError: 'x'")}, 1),
    ],
)
def test_the_rank_that_failed_first_is_named(failures: dict[int, Failure], first: int) -> None:
    assert launcher._first(failures)[0] == first  # type: ignore[arg-type]


STARTED = """
import os, signal, sys
from pathlib import Path
from paceline.training.runs.launcher import leave_error
(Path(sys.argv[1]) / str(os.getpid())).touch()
"""
"""Says that it was started; how it ends is added."""


@pytest.mark.long
@pytest.mark.everyday("a mistake")
@pytest.mark.parametrize(
    ("end", "starts", "said"),
    [
        ("leave_error('the disk is full', 'free some', mistake=True); sys.exit(2)", 1, "^the disk is full; free some$"),
        ("leave_error('KeyError'); sys.exit(1)", 1, r"^worker rank 0 \(process \d+\) ended with code 1: KeyError$"),
        ("leave_error('rank 1 is lost', lost=True); sys.exit(1)", 2, "ended with code 1: rank 1 is lost$"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 2, "was killed by SIGKILL$"),
    ],
    ids=["a mistake", "an error of its own", "another rank's loss", "killed"],
)
def test_workers_are_started_again_only_after_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, starts: int, said: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    with pytest.raises(UserError if "mistake" in end else launcher.WorkerFailed, match=said):
        launcher.run_workers(["-c", STARTED + end, str(tmp_path)], 1, restarts=1)
    assert len(list(tmp_path.iterdir())) == starts


@pytest.mark.long
def test_workers_that_were_asked_to_stop_are_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    interruption = launcher.Interruption()
    interruption.asked = signal.SIGTERM
    with pytest.raises(Interrupted) as stopped:
        launcher.run_workers(["-c", f"{STARTED}sys.exit(143)", str(tmp_path)], 1, interruption, restarts=1)
    assert stopped.value.code == 143
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.long
def test_an_error_of_the_users_model_has_its_type_and_place_and_ends_an_elastic_run(tmp_path: Path) -> None:
    words = [*FEW, "--model", "faulty_module:raising", "--workers", "2", "--elastic", "--out", str(tmp_path / "out")]
    run = Run(["-c", SAYS_ITS_NUMBER, "train", *words], python=executable())
    try:
        code, lines = run.end()
    finally:
        run.clean_up()
    assert code == 1
    module = TESTS / "faulty_module.py"
    number = module.read_text().splitlines().index('    {}["x"]') + 1
    assert re.fullmatch(
        rf"paceline: worker rank 1 \(process \d+\) ended with code 1: KeyError: 'x' \({re.escape(str(module))}:{number}\)",
        lines[-2],
    )
    assert re.fullmatch(
        r"step \d+ of epoch \d+ is kept, from the memory of rank 0; the same command continues from it", lines[-1]
    )
    assert sum(line.startswith("Traceback") for line in lines) == 1
    assert f'  File "{module}", line {number}, in _look_up' in lines
    assert sum("predicted" in line for line in lines) == 1  # it was started once
