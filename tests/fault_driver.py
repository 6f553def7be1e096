"""Faults, injected into a small job of real processes: what every rank does then, how soon, and what it says.

``run(NAME, FOLDER)`` runs one; ``FAULTS`` has them all. A job has two ranks, each as if alone on its node, as torchrun starts
them, and waits 3 s for a rank that does not answer. Its network idles, so that several jobs share a core.
"""

from __future__ import annotations

import functools
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed import free_port
from paceline import lab
from paceline.training import checkpoint
from warm_python import ENVIRONMENT, TESTS, executable

LIMIT_S = 30.0
"""In which every rank ends or goes on, from when the fault can be noticed."""
TIMEOUT_S = 3.0
WORDS = ["--data", "faulty_module:few", "--global-batch", "8", "--epochs", "1000000", "--timeout", f"{TIMEOUT_S:g}s"]
PLAIN = ["--model", "user_module:small_and_idle", *WORDS]
FEATURES = {k: v for k, v in ENVIRONMENT.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}


@dataclass
class Outcome:
    """What came of a fault.

    Attributes:
        seconds: until the last rank had ended, or gone on, after the fault could be noticed.
        hung: ranks that had not by ``LIMIT_S``, and were ended.
        line: what names rank and cause.
        problems: everything that was not as it should be, in words; empty is good.
    """

    fault: str
    seconds: float = 0.0
    hung: int = 0
    line: str = ""
    problems: list[str] = field(default_factory=list)


class Rank:
    """A process of a job, whose error stream is read as it comes."""

    def __init__(self, words: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.lines, self.ended_at = folder, list[str](), 0.0
        folder.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [executable(), "-m", "paceline.training", *words],
            cwd=folder,
            env={**FEATURES, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._grown = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._wait, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grown:
                self.lines.append(line.rstrip())
                self._grown.notify_all()

    def _wait(self) -> None:
        self.process.wait()
        with self._grown:
            self.ended_at = time.monotonic()
            self._grown.notify_all()

    def said(self, text: str, within_s: float = 120, after: int = 0) -> bool:
        """Whether a line behind the first ``after`` has the text, now or soon."""
        with self._grown:
            self._grown.wait_for(lambda: self.ended_at or any(text in line for line in self.lines[after:]), within_s)
            return any(text in line for line in self.lines[after:])

    @property
    def pid(self) -> int:
        """The program that the warm Python's client waits for."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "cwd").readlink() == self.folder and int(process.name) != self.process.pid:
                    return int(process.name)
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def error(self) -> str:
        """Its last line that Paceline has said."""
        return next((line for line in reversed(self.lines) if line.startswith("paceline: ")), "")


class Job:
    """Two ranks that write to one directory."""

    def __init__(self, outcome: Outcome, folder: Path, words: Sequence[str] = PLAIN, out: Path | None = None) -> None:
        self.outcome, self.folder, self.words = outcome, folder, list(words)
        self.out = out or folder / "out"
        self.ranks: list[Rank] = []
        self.fault_at = 0.0

    def start(self, *more: Sequence[str]) -> Job:
        """Start both ranks, each with further words."""
        shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        own = {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        self.ranks = [
            Rank(
                [*self.words, "--out", str(self.out), *(more[rank] if more else ())],
                self.folder / str(rank),
                {**shared, **own, "RANK": str(rank)},
            )
            for rank in (0, 1)
        ]
        return self

    def trains(self, epoch: int = 2) -> Job:
        """Wait until this many epochs are through."""
        self.check(self.ranks[0].said(f"epoch {epoch}/"), "it does not train")
        return self

    def happens(self, detectable_in_s: float = 0.0) -> None:
        """The fault is there, and can be noticed so many seconds later."""
        self.fault_at = time.monotonic() + detectable_in_s

    def check(self, true: bool, problem: str) -> None:
        if not true:
            told = " | ".join(f"rank {number}: {rank.lines[-3:]}" for number, rank in enumerate(self.ranks))
            self.outcome.problems.append(f"{problem} ({told})")

    def ends(self, *codes: int | None, limit_s: float = LIMIT_S) -> None:
        """Wait for the ranks; each has its code, where one is given."""
        until = max(self.fault_at, time.monotonic()) + limit_s
        for number, (rank, code) in enumerate(zip(self.ranks, codes, strict=True)):
            while not rank.ended_at and time.monotonic() < until:
                time.sleep(0.02)
            if not rank.ended_at:
                self.outcome.hung += 1
                self.check(False, f"rank {number} hangs")
                continue
            self.outcome.seconds = max(self.outcome.seconds, rank.ended_at - self.fault_at)
            time.sleep(0.05)  # its last line
            self.check(
                code in (None, rank.process.returncode), f"rank {number} ended with {rank.process.returncode}, not {code}"
            )

    def says(self, text: str, rank: int = 0) -> None:
        line = self.ranks[rank].error
        self.outcome.line = self.outcome.line or line
        self.check(text in line, f"rank {rank} does not say {text!r}")

    def goes_on(self, line: str = "") -> None:
        """Epochs end after the fault too; then SIGTERM ends both in order."""
        known = len(self.ranks[0].lines)
        self.check(self.ranks[0].said(": epoch ", LIMIT_S, known), "it does not go on")
        self.outcome.seconds = max(0.0, time.monotonic() - self.fault_at)
        self.outcome.line = self.outcome.line or line or "goes on"
        self.stop()

    def stop(self) -> None:
        """SIGTERM, as Slurm sends it."""
        seconds, line = self.outcome.seconds, self.outcome.line
        for rank in self.ranks:
            rank.signal(signal.SIGTERM)
        self.fault_at = time.monotonic()
        self.ends(143, 143)
        self.outcome.seconds, self.outcome.line = max(seconds, self.outcome.seconds), line
        self.keeps()

    def keeps(self, least: tuple[int, int] = (1, 0)) -> tuple[int, int]:
        """What is saved is whole, and of this step or a later one."""
        try:
            state = checkpoint.load(self.out)
        except Exception as error:
            self.check(False, f"nothing is kept: {error}")
            return 0, 0
        place = (state["epoch"], state["step"])
        self.check(place >= least, f"{place} is kept, {least} was saved")
        return place

    def saved(self) -> tuple[int, int]:
        """The place of the newest checkpoint so far."""
        with suppress(Exception):
            state = checkpoint.load(self.out)
            return state["epoch"], state["step"]
        return 0, 0

    def clean_up(self) -> None:
        for rank in self.ranks:
            with suppress(OSError):
                for pid in {rank.pid, rank.process.pid} if not rank.ended_at else ():
                    os.kill(pid, signal.SIGKILL)
            rank.process.wait(30)


FAULTS: dict[str, Callable[[Outcome, Path], None]] = {}
LONG: set[str] = set()
"""Those that take more than about three seconds."""
NEEDS_LAB: set[str] = set()


def fault(name: str, *, long: bool = False, needs_lab: bool = False) -> Callable[[Callable[[Job], None]], Any]:
    """Register a fault: a function of a job that is not started."""

    def register(inject: Callable[[Job], None]) -> Callable[[Job], None]:
        def run(outcome: Outcome, folder: Path) -> None:
            job = Job(outcome, folder)
            try:
                inject(job)
            finally:
                job.clean_up()

        FAULTS[name] = run
        if long:
            LONG.add(name)
        if needs_lab:
            NEEDS_LAB.add(name)
        return inject

    return register


def run(name: str, folder: Path) -> Outcome:
    """Inject a fault once."""
    _warm()
    outcome = Outcome(name)
    folder.mkdir(parents=True, exist_ok=True)
    FAULTS[name](outcome, folder.resolve())
    return outcome


@functools.cache
def _warm() -> None:
    """The time of imports is nobody's fault."""
    subprocess.run([executable(), "-c", "import paceline.training.worker"], check=True, timeout=200, env=FEATURES, cwd=TESTS)


def missing(name: str) -> str:
    """What this machine lacks for a fault; empty if nothing."""
    if name in NEEDS_LAB and lab.missing():
        return f"no emulated cluster here: {'; '.join(lab.missing())}"
    if name == "full disk" and os.geteuid() != 0:
        return "no small file system can be mounted here"
    return ""


@fault("kill -9", long=True)
def killed(job: Job) -> None:
    job.start().trains()
    saved = job.saved()
    job.ranks[1].signal(signal.SIGKILL)
    job.happens()
    job.ends(1, None)
    job.says("rank 1 is lost")
    job.keeps(saved)


@fault("SIGSTOP", long=True)
def stopped(job: Job) -> None:
    job.start().trains()
    saved, pid = job.saved(), job.ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    job.happens(TIMEOUT_S)
    while not job.ranks[0].ended_at and time.monotonic() < job.fault_at + LIMIT_S:
        time.sleep(0.05)
    os.kill(pid, signal.SIGCONT)  # it finds its peer gone
    job.ends(1, 1)
    job.says("rank 1 is lost")
    job.keeps(saved)


@fault("one slow rank")
def slow(job: Job) -> None:
    job.start().trains()
    pid = job.ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(TIMEOUT_S / 2)
    os.kill(pid, signal.SIGCONT)
    job.happens()
    job.goes_on()


@fault("SIGTERM")
def terminated(job: Job) -> None:
    job.start().trains()
    job.happens()
    job.stop()
    job.says("interrupted by SIGTERM; the checkpoint of ")


@fault("SIGTERM on one rank")
def one_terminated(job: Job) -> None:
    job.start().trains()
    job.ranks[1].signal(signal.SIGTERM)
    job.happens()
    job.ends(143, 143)
    job.says("interrupted by SIGTERM; the checkpoint of ")
    job.keeps()


@fault("Ctrl-C")
def interrupted(job: Job) -> None:
    job.start().trains()
    for rank in job.ranks:
        rank.signal(signal.SIGINT)
    job.happens()
    job.ends(130, 130)
    job.says("interrupted by SIGINT; the checkpoint of ")
    job.check(job.ranks[0].said("stopped after ", 1), "no summary")
    job.keeps()


@fault("Ctrl-C twice")
def interrupted_twice(job: Job) -> None:
    job.start().trains()
    saved = job.saved()
    pids = [rank.pid for rank in job.ranks]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that no rank is through with the first before the second
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    time.sleep(0.02)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
    job.happens()
    job.ends(130, 130)
    job.says("interrupted ")
    job.keeps(saved)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@fault("full disk")
def disk_full(job: Job) -> None:
    with small_disk(job.folder / "small", "2m") as disk:
        job.out = disk / "out"
        job.start().trains()
        saved = job.saved()
        ballast = disk / "ballast"
        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(4096))
        job.happens()
        job.check(job.ranks[0].said("No space left on device", LIMIT_S), "a full disk is not said")
        line = next((line for rank in job.ranks for line in rank.lines if "No space left" in line), "")
        job.check("rank " in line and "training goes on" in line, "the line does not name the rank")
        job.keeps(saved)
        ballast.unlink()
        known = len(job.ranks[0].lines)
        job.check(job.ranks[0].said(": epoch ", LIMIT_S, known), "it does not go on")
        job.goes_on(line)


def _go_on_after(job: Job, damage: Callable[[Path], None], words: str) -> None:
    job.start().trains()
    job.stop()
    before = checkpoint.read(job.out / checkpoint.PREVIOUS)
    damage(job.out / checkpoint.FILE)
    more = ["--resume", str(job.out), "--seed", "0"]  # what is not given is the newest checkpoint's
    job.happens()
    job.start(more, more)
    job.check(job.ranks[0].said("going on from the previous checkpoint"), "it does not say that it falls back")
    line = next((line for line in job.ranks[0].lines if "going on from the previous" in line), "")
    job.check(words in line and checkpoint.place(before) in line, f"the line is {line}")
    job.outcome.line = line
    job.goes_on()
    job.keeps((before["epoch"], before["step"]))


@fault("truncated checkpoint", long=True)
def truncated(job: Job) -> None:
    _go_on_after(job, lambda path: os.truncate(path, path.stat().st_size // 2), "cannot be read")


@fault("foreign checkpoint", long=True)
def foreign(job: Job) -> None:
    def copy_of_another(path: Path) -> None:
        state = checkpoint.read(path)
        from dataclasses import replace

        run = replace(state.pop("run"), seed=99)
        other = path.parent / "other"
        other.mkdir()
        keep = {name: state[name] for name in ("model", "optimizer", "curve", "workers")}
        checkpoint.save(other, run, state["epoch"] + 7, {**keep, "parts": state["parts"]}, step=0)
        shutil.copy(other / checkpoint.FILE, path)

    _go_on_after(job, copy_of_another, "seed 99 -> 0")


@fault("clock jump")
def clock(job: Job) -> None:
    job.words = ["--model", "faulty_module:clock", *WORDS]
    job.start().trains(4)
    job.happens()
    job.goes_on()


@fault("two runs with one --out")
def twice(job: Job) -> None:
    job.start().trains()
    second = Job(job.outcome, job.folder / "second", out=job.out)
    second.folder.mkdir()
    try:
        job.happens()
        second.start()
        second.fault_at = job.fault_at
        second.ends(2, 2)
        second.says("is in use by process ")
    finally:
        second.clean_up()
    job.goes_on(second.ranks[0].error)


@fault("other options")
def options(job: Job) -> None:
    job.happens()
    job.start(["--lr", "0.1"], ["--lr", "0.2"])
    job.ends(2, 2)
    for rank in (0, 1):
        job.says("the ranks disagree on lr (rank 0: 0.1; rank 1: 0.2)", rank)


@fault("other code of the model")
def other_model(job: Job) -> None:
    for rank in (0, 1):
        (job.folder / str(rank)).mkdir()
        (job.folder / str(rank) / "my_net.py").write_text(f"from user_module import small  # {rank}\n")
    job.words = ["--model", "my_net:small", *WORDS]
    job.happens()
    job.start()
    job.ends(2, 2)
    job.says("the ranks disagree on code of model (rank 0: ")


@fault("other code of Paceline", long=True)
def other_code(job: Job) -> None:
    copy = job.folder / "src"
    shutil.copytree(TESTS.parent / "src" / "paceline", copy / "paceline", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "paceline" / "units.py").open("a") as file:
        file.write("# another line\n")
    job.happens(20)  # its Python starts anew
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    own = {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    words = [*job.words, "--out", str(job.out), "--timeout", "60s"]  # the ranks do not start together
    job.ranks = [Rank(words, job.folder / "0", {**shared, **own, "RANK": "0"})]
    start = "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in type(f).__module__]; "
    start += "from paceline.training.__main__ import main; sys.exit(main())"
    apart = Rank.__new__(Rank)
    environment = {**FEATURES, **shared, **own, "RANK": "1", "PYTHONPATH": f"{copy}:{TESTS}"}
    _start_apart(apart, ["-c", start, *words], job.folder / "1", environment)
    job.ranks.append(apart)
    job.ends(2, 2, limit_s=100)
    job.says("the ranks disagree on code (rank 0: paceline ")


def _start_apart(rank: Rank, words: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
    """A rank in a Python of its own."""
    import sys

    folder.mkdir(exist_ok=True)
    rank.folder, rank.lines, rank.ended_at = folder, [], 0.0
    rank.process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    rank._grown = threading.Condition()
    threading.Thread(target=rank._read, daemon=True).start()
    threading.Thread(target=rank._wait, daemon=True).start()


@fault("corrupted message", long=True)
def corrupted(job: Job) -> None:
    job.words = ["--model", "faulty_module:corrupt", "--compression", "int8", *WORDS]
    job.start()
    job.check(job.ranks[0].said("checksum"), "a damaged message is not noticed")
    job.happens()
    job.ends(1, 1)
    job.says("a message of ")
    job.says("the checksum does not match")
    job.keeps()


class LabJob:
    """Three ranks, each on a host of its own, which their links join."""

    def __init__(self, job: Job, timeout_s: float) -> None:
        self.job, self.timeout_s = job, timeout_s
        self.results: list[Any] = []
        self.ended_at = 0.0

    @contextmanager
    def running(self) -> Iterator[Any]:
        """The cluster, on which the job trains."""
        words = [*PLAIN, "--global-batch", "9", "--timeout", f"{self.timeout_s:g}s", "--out", str(self.job.out)]
        environment = {**FEATURES, "PYTHONPATH": f"{TESTS}:{ENVIRONMENT['PYTHONPATH']}", "GLOO_SOCKET_IFNAME": "pl0"}

        def train() -> None:
            try:
                command = [executable(), "-m", "paceline.training", *words]
                self.results = cluster.run(command, env=environment, timeout=200)
            except lab.HostFailed as error:
                self.results = error.results
            self.ended_at = time.monotonic()

        with lab.up(3, "1Gb/s", name=f"f{os.getpid()}") as cluster:
            thread = threading.Thread(target=train)
            thread.start()
            until = time.monotonic() + 120
            while self.job.saved() < (2, 0) and thread.is_alive() and time.monotonic() < until:
                time.sleep(0.2)
            if self.job.saved() < (2, 0):
                raise AssertionError(f"it does not train: {[result.stderr for result in self.results]}")
            yield cluster
            thread.join(LIMIT_S + 60)
            if thread.is_alive():
                self.job.outcome.hung += 1
                self.job.check(False, "a rank hangs")
        self.job.outcome.seconds = self.ended_at - self.job.fault_at

    def lines(self) -> list[str]:
        return [line for result in self.results for line in result.stderr.splitlines() if line.startswith("paceline: ")]

    def pids(self) -> list[int]:
        """The programs of the ranks, in their order."""
        found: dict[int, int] = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):
                words = (process / "environ").read_bytes().split(b"\0")
                if f"PYTHONPATH={TESTS}:{ENVIRONMENT['PYTHONPATH']}".encode() in words and b"GLOO_SOCKET_IFNAME=pl0" in words:
                    rank = next(int(word[5:]) for word in words if word.startswith(b"RANK="))
                    found[rank] = max(found.get(rank, 0), int(process.name))
        return [found[rank] for rank in sorted(found)]


@fault("link cut", long=True, needs_lab=True)
def cut(job: Job) -> None:
    at_work = LabJob(job, TIMEOUT_S)
    with at_work.running() as cluster:
        saved = job.saved()
        cluster.cut(2)
        job.happens(TIMEOUT_S)
    lines = at_work.lines()
    job.outcome.line = next((line for line in lines if "rank 2 is lost" in line), "")
    job.check(bool(job.outcome.line), f"nobody names rank 2: {lines}")
    job.check(any("this rank's link is cut" in line or "rank 2 is lost" in line for line in lines), f"{lines}")
    job.keeps(saved)


@fault("link cut and restored", long=True, needs_lab=True)
def cut_and_restored(job: Job) -> None:
    at_work = LabJob(job, 25.0)
    with at_work.running() as cluster:
        cluster.cut(2)
        time.sleep(2)
        cluster.mend(2)
        job.happens()
        saved = job.saved()
        while job.saved() <= saved and time.monotonic() < job.fault_at + LIMIT_S:
            time.sleep(0.2)
        job.check(job.saved() > saved, "it does not go on")
        for pid in at_work.pids():
            os.kill(pid, signal.SIGTERM)
    job.check([result.code for result in at_work.results] == [143] * 3, f"{[(r.code, r.stderr) for r in at_work.results]}")
    job.outcome.line = "goes on"
    job.keeps(saved)


@fault("half-open connection", long=True, needs_lab=True)
def half_open(job: Job) -> None:
    """The host is cut off and its process dies there, so that nobody is told; then the link is back."""
    at_work = LabJob(job, TIMEOUT_S)
    with at_work.running() as cluster:
        saved, pids = job.saved(), at_work.pids()
        cluster.cut(2)
        os.kill(pids[2], signal.SIGKILL)
        job.happens(TIMEOUT_S)
        descriptor = os.pidfd_open(pids[2]) if Path(f"/proc/{pids[2]}").exists() else None
        if descriptor is not None:
            select.select([descriptor], [], [], 5)
            os.close(descriptor)
        cluster.mend(2)
    lines = at_work.lines()
    job.outcome.line = next((line for line in lines if "rank 2 is lost" in line), "")
    job.check(bool(job.outcome.line), f"nobody names rank 2: {lines}")
    job.keeps(saved)


def remove(folder: Path) -> None:
    """What a run of a fault has left."""
    shutil.rmtree(folder, ignore_errors=True)
