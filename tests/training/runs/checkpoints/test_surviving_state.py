"""A run that loses a rank goes on from the memory of the others; only what the lost rank owed is lost, and that is said."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import paceline
from brief_runs import AskedAt, run_briefly
from distributed import TESTS, executable, free_port, launch
from fault_driver import FEATURES
from paceline.errors import UserError
from paceline.training.attach import liveness
from paceline.training.attach.hooks.state import exchange_of, own_state
from paceline.training.runs import worker
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.checkpoints import surviving_state as survivors
from paceline.training.runs.loop import Trainer
from paceline.training.runs.step_agreement import StepAgreement, Wish
from training_jobs import job

WARM_WORKERS = "import sys; sys.executable = sys.argv.pop(1); from paceline.cli import main; sys.exit(main())"


def left(folder: Path, rank: int, step: int, workers: int = 3, sharers: int = 0, **changes: Any) -> None:
    hook = {"rank": rank, "step": step, "feedback": {"residual": {"a": torch.full((4,), 1.0 + rank)}, "velocity": {}}}
    shared = {"model": {"a": torch.full((4,), float(step))}, "curve": [], "workers": workers, "sharers": sharers}
    survivors.leave(job(folder, **changes), 1, step, shared, {"rank": rank, "hook": hook, "shards": {}})


def test_those_at_the_last_step_count_and_the_lost_one_owes_nothing(tmp_path: Path) -> None:
    run = job(tmp_path)
    assert survivors.found(tmp_path, run) is None
    left(tmp_path, 0, 6)
    left(tmp_path, 2, 7)
    left(tmp_path, 1, 7)
    state = survivors.found(tmp_path, run)
    assert state is not None and (state["epoch"], state["step"], state["lost"], state["apart"]) == (1, 7, [], [0])
    assert state["model"]["a"].tolist() == [7.0] * 4 and [hook["rank"] for hook in state["hook"]] == [0, 1, 2]
    assert [hook["feedback"]["residual"]["a"][0].item() for hook in state["hook"]] == [0.0, 2.0, 3.0]
    where = "going on from step 7 of epoch 2, in the memory of rank 1, 2 when the group broke"
    assert survivors.said(state) == f"{where}; the residuals of rank 0, of another step, are dropped"
    (tmp_path / "survivor.0.pt").unlink()
    state = survivors.found(tmp_path, run)
    assert state is not None and survivors.said(state) == f"{where}; the residuals of rank 0 are lost"
    left(tmp_path, 0, 7, seed=5)
    survivors.remove(tmp_path, run)
    assert [path.name for path in tmp_path.glob(survivors.PATTERN)] == ["survivor.0.pt"]
    with pytest.raises(UserError, match=r"another run have left, or it is damaged: survivor\.0\.pt; name another --out"):
        survivors.newest(tmp_path, replace(run, elastic=True))


def fail_in_the_conference(rank: int, workers: int, folder: str) -> tuple[int, int]:
    """The step that a survivor says, and how many steps its optimizer has done, when the ranks fail to confer behind one."""
    confer, looks = StepAgreement.after_step, 0

    def broken(self: StepAgreement, wish: Wish, step_s: float) -> Wish:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise RuntimeError("cut")
        return confer(self, wish, step_s)

    StepAgreement.after_step = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="cut"):
        run_briefly(job(folder, optimizer="adam", workers=workers, elastic=True), rank)
    state = checkpoint.read(Path(folder) / "survivor.0.pt")
    return state["step"], int(next(iter(state["optimizer"]["state"].values()))["step"])


def test_a_survivor_has_the_step_that_its_weights_are_of(tmp_path: Path) -> None:
    assert launch(fail_in_the_conference, 1, folder=str(tmp_path)) == [(3, 3)]


WEIGHTS = torch.arange(1.0, 1025.0)


class Normed(nn.Module):
    """A weight, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(64, 16, bias=False), nn.BatchNorm1d(1)


def leave_local(rank: int, workers: int, folder: str, lost: int) -> None:
    """Three ranks between two exchanges of local steps, whose weights are as 1 to 10 to 100; one is lost."""
    model = Normed()
    sync = paceline.attach_local(model, "topk", sync_every=2)
    for _ in range(3):  # an exchange, which leaves something to owe, and half a round
        with torch.no_grad():
            model.layer.weight.copy_(WEIGHTS.view(16, 64) * 10**rank)
            model.norm.running_mean.fill_(10.0**rank)
        sync.step()
    if rank != lost:
        shared = {"model": {}, "curve": [], "workers": workers}
        survivors.leave(job(folder), 1, 7, shared, {"rank": rank, "hook": sync.state_dict()})


def begin_local(rank: int, workers: int, folder: str) -> list[torch.Tensor]:
    """Weights, statistics and residuals with which a rank begins."""
    model = Normed()
    sync = paceline.attach_local(model, "topk", sync_every=2)
    state = survivors.found(Path(folder), job(folder))
    assert state is not None and sync.feedback is not None
    sync.load_state_dict(state["hook"])
    weight = model.layer.weight.detach().flatten()
    return [weight, model.norm.running_mean.clone(), sync.feedback.state()["residual"]["layer.weight"]]


@pytest.mark.everyday("0")
@pytest.mark.parametrize("lost", [0, 2])
def test_of_local_steps_the_mean_is_that_of_the_survivors(tmp_path: Path, lost: int) -> None:
    launch(leave_local, 3, folder=str(tmp_path), lost=lost)
    left = [rank for rank in range(3) if rank != lost]
    mean = sum(10.0**rank for rank in left) / 2
    states = {rank: checkpoint.read(tmp_path / f"survivor.{rank}.pt")["hook"][0] for rank in left}
    owed = sum(state["feedback"]["residual"]["layer.weight"] for state in states.values())
    assert owed.any()
    fewer, same = launch(begin_local, 2, folder=str(tmp_path)), launch(begin_local, 3, folder=str(tmp_path))
    for weight, statistics, _ in (*fewer, same[lost]):
        torch.testing.assert_close(weight, WEIGHTS * mean)
        torch.testing.assert_close(statistics, torch.full((1,), mean))
    for rank in left:
        assert torch.equal(same[rank][0], WEIGHTS * 10**rank) and same[rank][1] == 10**rank
        assert torch.equal(same[rank][2], states[rank]["feedback"]["residual"]["layer.weight"])
    torch.testing.assert_close(sum(residual for _, _, residual in fewer) / 2, owed / 3)
    assert not same[lost][2].any()


def test_what_a_broken_run_keeps_is_said(tmp_path: Path) -> None:
    elastic = replace(job(tmp_path, elastic=True), out=str(tmp_path))
    assert survivors.kept(elastic) == f"no checkpoint was written, so nothing is kept in {tmp_path}"
    left(tmp_path, 1, 6, elastic=True)
    said = "step 6 of epoch 2 is kept, from the memory of rank 1; the same command continues from it"
    assert survivors.kept(elastic) == said
    assert survivors.kept(replace(elastic, elastic=False)).startswith("no checkpoint")


RARELY: dict[str, Any] = {"data": "user_module:fewest", "checkpoint_every": "1h", "elastic": True}


def resume_from_before(rank: int, workers: int, folder: str) -> list[str]:
    """An elastic run began at a checkpoint of another directory, and was broken further on in its own."""
    before = job(Path(folder) / "before", "topk", "momentum", workers, data="user_module:fewest")
    assert run_briefly(before, rank, AskedAt(1)).startswith("143")
    began = replace(before, out=str(Path(folder) / "own"), resume=before.out, elastic=True)
    prepared = worker.prepare(began, first=rank == 0)
    found = [worker._came_further(prepared)]
    assert run_briefly(began, rank, AskedAt(2)).startswith("143")
    found.append(worker._came_further(prepared))
    assert run_briefly(began, rank) == ""
    dist.barrier()  # rank 0 writes the last checkpoint
    return [*map(str, found), str(checkpoint.load(Path(folder) / "own")["epoch"])]


def break_in_the_second_epoch(rank: int, workers: int, folder: str) -> list[Any]:
    """The group breaks in the first step behind an epoch, which no checkpoint has."""
    run = job(Path(folder), "topk", "momentum", workers, epochs=2, **RARELY)
    usual = Trainer.train_epoch

    def broken(self: Trainer, epoch: int, *more: Any) -> Any:
        if epoch == 1:
            raise RuntimeError("connection closed")
        return usual(self, epoch, *more)

    Trainer.train_epoch = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="connection closed"):
        run_briefly(run, rank)
    dist.barrier()
    state = survivors.found(Path(folder), worker.prepare(run))
    assert state is not None
    Trainer.train_epoch = usual  # type: ignore[method-assign]
    run_briefly(run, rank)
    dist.barrier()
    return [state["epoch"], state["step"], len(state["curve"]), len(checkpoint.load(Path(folder))["curve"])]


def break_behind_the_last_step(rank: int, workers: int, folder: str) -> list[Any]:
    """The group breaks while the last epoch is evaluated, so that who goes on has no step to take."""
    run = job(Path(folder), "topk", "momentum", workers, epochs=1, **RARELY)
    usual = Trainer.evaluate

    def broken(self: Trainer) -> Any:
        raise RuntimeError("connection closed")

    Trainer.evaluate = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="connection closed"):
        run_briefly(run, rank)
    Trainer.evaluate = usual  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"every epoch is done and saved in .*: there is no record"):
        run_briefly(run, rank)
    dist.barrier()
    return [checkpoint.load(Path(folder))["epoch"], sorted(path.name for path in Path(folder).glob(survivors.PATTERN))]


STORIES = [resume_from_before, break_in_the_second_epoch, break_behind_the_last_step]


def tell_all(rank: int, workers: int, folder: str) -> list[list[Any]]:
    liveness.SETTLE_S, liveness.PATIENCE_S = 0.0, 0.1  # every rank is alive, and who is lost is not asked
    return [story(rank, workers, f"{folder}/{story.__name__}") for story in STORIES]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[list[list[Any]]]:
    """Findings of each rank in each of the ``STORIES``."""
    return launch(tell_all, 2, folder=str(tmp_path_factory.mktemp("stories")))


def test_an_elastic_run_that_resumed_another_goes_on_in_its_own_directory(told: list[list[list[Any]]]) -> None:
    assert [rank[0] for rank in told] == [["False", "True", "3"]] * 2


def test_an_epoch_that_has_ended_is_not_ended_again(told: list[list[list[Any]]]) -> None:
    assert [rank[1] for rank in told] == [[1, 0, 1, 2]] * 2


def test_a_run_that_broke_behind_its_last_step_ends_with_its_checkpoint(told: list[list[list[Any]]]) -> None:
    assert [rank[2] for rank in told] == [[1, []]] * 2


def test_what_is_damaged_or_of_another_run_does_not_count(tmp_path: Path) -> None:
    left(tmp_path, 0, 6)
    left(tmp_path, 1, 9, seed=5)
    left(tmp_path, 2, 9)
    path = tmp_path / "survivor.2.pt"
    path.write_bytes(path.read_bytes()[:-400])
    state = survivors.found(tmp_path, job(tmp_path))
    assert state is not None and state["step"] == 6 and state["lost"] == [1, 2] and not state["apart"]
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.load(tmp_path)


def test_only_what_lacks_rows_and_is_of_this_run_is_removed(tmp_path: Path) -> None:
    run = job(tmp_path)
    assert not survivors.remove_partial(tmp_path, run)
    left(tmp_path, 0, 6)
    assert not survivors.remove_partial(tmp_path, run) and survivors.found(tmp_path, run) is not None
    survivors.remove(tmp_path, run)
    left(tmp_path, 0, 6, sharers=3)
    left(tmp_path, 1, 7, seed=5)
    assert not survivors.remove_partial(tmp_path, run) and len(list(tmp_path.glob(survivors.PATTERN))) == 2
    (tmp_path / "survivor.1.pt").unlink()
    assert survivors.remove_partial(tmp_path, run) and not list(tmp_path.glob(survivors.PATTERN))


class Watched:
    """A process with its error stream's lines."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path = TESTS) -> None:
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def wait_for(self, text: str, within_s: float = 120, after: int = 0) -> str:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            for line in self.lines[after:]:
                if text in line:
                    return line
            time.sleep(0.05)
        raise AssertionError(f"no {text!r} in {self.lines}")

    def goes_on_without(self, rank: int, workers: int) -> str:
        """Kill a worker of ``paceline train``; what it then says that it goes on from."""
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout.split()
        assert len(children) == workers
        before = len(self.lines)
        for process in children:
            if f"RANK={rank}".encode() in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                os.kill(int(process), signal.SIGKILL)
        return self.wait_for("going on from ", after=before)

    def goes_on_to(self, epoch: int, out: Path) -> None:
        """It comes so far, has removed what survivors left, and stops in order."""
        self.wait_for(f"epoch {epoch}/")
        assert not list(out.glob(survivors.PATTERN))
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 143

    def end(self) -> None:
        """At once, if it has not ended yet."""
        self.process.kill()
        self.process.wait()


WORDS = ["--model", "user_module:small_and_idle", "--data", "user_module:few", "--global-batch", "8", "--epochs", "1000000"]
WORDS += ["--compression", "topk", "--timeout", "5s", "--elastic"]


@pytest.mark.full
def test_a_killed_worker_is_started_again_and_all_go_on_from_memory(tmp_path: Path) -> None:
    """Nothing but the memory of the other has it: a checkpoint is written once an hour."""
    out = str(tmp_path / "out")
    words = ["train", *WORDS, "--workers", "2", "--checkpoint-every", "1h", "--out", out]
    run = Watched([sys.executable, "-c", WARM_WORKERS, executable(), *words], FEATURES)
    try:
        run.wait_for("epoch 2/")
        line = run.goes_on_without(1, workers=2)
        memory = r"going on from step \d of epoch \d+, in the memory of rank 0 when the group broke; "
        assert re.search(memory + "the residuals of rank 1 are lost", line)
        epoch = int(re.search(r"epoch (\d+),", line)[1])  # type: ignore[index]
        assert epoch >= 2
        run.goes_on_to(epoch + 2, Path(out))
    finally:
        run.end()


@pytest.mark.full
def test_a_killed_worker_of_a_sharded_run_leaves_its_rows_to_the_other_copy(tmp_path: Path) -> None:
    """If a survivor was a step ahead when the other ended, the checkpoint is taken; another try does not meet that."""
    out = str(tmp_path / "out")
    sharding = ["--workers", "4", "--sharding", "zero3", "--shard-devices", "2", "--checkpoint-every", "3"]
    run = Watched([sys.executable, "-c", WARM_WORKERS, executable(), "train", *WORDS, *sharding, "--out", out], FEATURES)
    line, epoch = "", 0
    try:
        for _ in range(3):  # as often as workers are started again
            run.wait_for(f"epoch {epoch + 2}/")
            line = run.goes_on_without(1, workers=4)
            epoch = int(re.search(r"epoch (\d+)", line)[1])  # type: ignore[index]
            if "memory" in line:
                break
        # Rank 3 has the rows of rank 1; one of 0 and 2 may have been at another step.
        assert re.search(r"in the memory of rank (0, 2|0|2), 3 when the group broke; the residuals of rank 1 are lost", line)
        run.goes_on_to(epoch + 2, Path(out))
    finally:
        run.end()


class Nodes:
    """Agents of torchrun on this machine, two or three at a time, each with one rank; the first keeps the rendezvous."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.port = folder, folder / "out", free_port()
        self.all: list[Watched] = []

    def start(self) -> Watched:
        """One more, which joins the others."""
        own = self.folder / str(len(self.all))
        own.mkdir()
        torchrun = ["-m", "torch.distributed.run", "--nnodes", "2:3", "--nproc-per-node", "1", "--max-restarts", "3"]
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{self.port}", "--rdzv-id", "x"]
        conf = ["--local-addr", "localhost", "--rdzv-conf", "last_call_timeout=2,join_timeout=60"]
        batch = ["--global-batch", "6", "--out", str(self.out), "--checkpoint-every", "1h"]
        command = [sys.executable, *torchrun, *meet, *conf, "-m", "paceline.training", *WORDS, *batch]
        more = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHON_EXEC": executable()}
        self.all.append(Watched(command, {**FEATURES, **more}, own))
        return self.all[-1]

    def say(self, text: str, within_s: float = 120) -> str:
        """The first line of any node with the text, now or soon."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            for line in self.lines:
                if text in line:
                    return line
            time.sleep(0.1)
        raise AssertionError(f"no {text!r} in {self.lines}")

    @property
    def lines(self) -> list[str]:
        return [line for one in self.all for line in one.lines]

    def hold(self, node: Watched, within_s: float = 30) -> None:
        """Wait until the rank of a node stands still in its forward pass (``user_module.Idle``)."""
        folder = self.folder / str(self.all.index(node))
        (folder / "hold").touch()
        until = time.monotonic() + within_s
        while not (folder / "held").exists():
            assert time.monotonic() < until, self.lines
            time.sleep(0.02)

    def stop(self) -> None:
        """All, by SIGTERM."""
        for one in self.all:
            one.process.terminate()
        for one in self.all:
            try:
                one.process.wait(60)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()


@pytest.mark.full
def test_a_node_joins_and_one_is_lost_under_torchrun(tmp_path: Path) -> None:
    """Two stop at a step and save it; three go on from there, and owe together what the two owed. Then one is killed, and two
    go on from memory."""
    nodes = Nodes(tmp_path)
    try:
        nodes.start()
        time.sleep(3)  # its agent keeps the rendezvous
        nodes.start()
        nodes.say("epoch 2/")
        last = nodes.start()
        line = nodes.say("going on from the checkpoint of ")
        saved = checkpoint.load(nodes.out)
        assert saved["workers"] == 2 and checkpoint.place(saved) in line
        owed = [hook["feedback"]["residual"] for hook in saved["hook"]]
        assert len(owed) == 2 and max(float(values.abs().max()) for values in owed[0].values()) > 0
        exchange = exchange_of(saved["hook"][0])
        shares = [own_state(saved["hook"], exchange, 3, rank)["feedback"]["residual"] for rank in range(3)]
        for name in owed[0]:
            torch.testing.assert_close(sum(one[name] for one in shares) / 3, sum(one[name] for one in owed) / 2)
        nodes.say(f"epoch {saved['epoch'] + 2}/")
        nodes.hold(last)  # in an exchange its message might reach one of the others alone, which would be a step ahead
        last.process.kill()  # the agent; its worker follows it
        line = nodes.say(" in the memory of rank ")
        epoch = int(re.search(r"epoch (\d+),", line)[1])  # type: ignore[index]
        assert epoch >= saved["epoch"] + 1
        assert re.search(r"rank \d, \d when the group broke; the residuals of rank \d are lost", line), line
    finally:
        nodes.stop()
