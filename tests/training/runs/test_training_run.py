"""A whole run: resumed, killed or refused."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import paceline
from distributed import ENVIRONMENT, TESTS, executable, launch
from everyday import cases_of
from paceline.errors import UserError
from paceline.rundir import RunDir
from paceline.strategy import Strategy
from paceline.strategy.optimizer import usual_optimizer
from paceline.strategy.recipe import Recipe
from paceline.training.runs import launcher, worker
from paceline.training.runs import train as local
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.training_run import TrainingRun
from training_jobs import DATA, MODEL, flatten, job, keep_first, quick


def run_whole_and_rest(rank: int, workers: int, folder: str, cases: list[list[str]]) -> None:
    """Train three epochs of four steps. Then resume from the checkpoint after the first epoch, or from one within the
    second, as after an interruption."""
    keep_first()
    quick()
    for compression, optimizer in cases:
        base = Path(folder) / f"{compression}-{optimizer}"
        changes: dict[str, Any] = SCHEDULE if [compression, optimizer] in SCHEDULED else {}
        changes = {**changes, "optimizer_options": OPTIONS.get(optimizer, {}), "data": "user_module:fewest"}
        if [compression, optimizer] in MIDDLE:
            changes["checkpoint_every"] = "3"
        if [compression, optimizer] == SPOILT:
            changes = {"model": "user_module:plain", "data": "user_module:spoilt"}
        whole = job(base / "whole", compression, optimizer, workers, **changes)
        rest = replace(whole, out=str(base / "rest"), resume=str(base / "first"))
        for run in (whole, rest):
            worker.train(worker.prepare(run, first=rank == 0), torch.device("cpu"))
            dist.barrier()


MIDDLE = [["topk", "adam"]]
"""Interrupted after 6 of 12 steps, in the second of three epochs."""
DAILY = [["dense", "momentum"], ["topk", "adam"], ["terngrad", "lars"], ["dense", "lamb"], ["dense", "lars"]]
RARE = [["dense", "adam"], ["terngrad", "adam"], ["terngrad", "momentum"], ["inceptionn-scaled", "momentum"]]
RESUMED = [*DAILY, *(pytest.param(*case, marks=pytest.mark.full) for case in RARE)]
SCHEDULED = [["dense", "momentum"], ["terngrad", "lars"], ["dense", "lamb"]]
SCHEDULE = {"warmup": 0.6, "decay": 2.0, "scale_from": 16}
OPTIONS = {"lars": {"variant": "mlperf", "momentum": 0.8}, "lamb": {"variant": "nvlamb", "weight_decay": 0.02}}
SPOILT = ["dense", "lars"]
"""With an infinite sample, which every epoch comes to once."""
STEPS = 12


@pytest.fixture(scope="module")
def resumed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resumed")
    named = {(case["compression"], case["optimizer"]): None for case in cases_of(request) if case} | {tuple(SPOILT): None}
    launch(run_whole_and_rest, 2, folder=str(folder), cases=list(named))
    return folder


@pytest.mark.parametrize(("compression", "optimizer"), RESUMED)
def test_a_resumed_run_ends_with_the_same_bits(resumed, compression, optimizer):
    base = resumed / f"{compression}-{optimizer}"
    whole, rest = checkpoint.load(base / "whole"), checkpoint.load(base / "rest")
    for part in ("model", "optimizer", "hook", "diagnostics"):
        a, b = dict(flatten(whole.get(part, {}))), dict(flatten(rest.get(part, {})))
        assert a.keys() == b.keys()
        for key, value in a.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(b[key], value, rtol=0, atol=0, equal_nan=True, msg=key)
            else:
                assert value == b[key], key
    assert [state["step"] for state in whole["hook"]] == [STEPS] * 2
    for key in ("loss", "accuracy", "noise_scale"):
        assert str([e[key] for e in whole["curve"]]) == str([e[key] for e in rest["curve"]])  # of a spoilt one, NaN
    first = checkpoint.load(base / "first")
    assert (first["epoch"], first["step"]) == ((1, 2) if [compression, optimizer] in MIDDLE else (1, 0))
    assert any(not torch.equal(v, first["model"][k]) for k, v in whole["model"].items())


def test_the_record_counts_the_steps_that_were_skipped(resumed):
    """One an epoch; the run that went on after the first says those before it too."""
    whole, rest = (RunDir(resumed / "-".join(SPOILT) / part).read().records["dense"] for part in ("whole", "rest"))
    assert whole.skipped_steps == rest.skipped_steps == 3
    assert all(weight.isfinite().all() for weight in checkpoint.load(resumed / "-".join(SPOILT) / "whole")["model"].values())


@pytest.mark.parametrize(("compression", "optimizer"), SCHEDULED)
def test_the_record_has_recipe_noise_scale_and_layers(resumed, compression, optimizer):
    whole, rest = (RunDir(resumed / f"{compression}-{optimizer}" / part).read() for part in ("whole", "rest"))
    record, again = whole.records[compression], rest.records[compression]
    asked, options = job("x", compression, optimizer, **SCHEDULE).recipe(STEPS // 3).to_json(), record.recipe["options"]
    assert record.recipe == again.recipe == asked | {"options": options} and record.recipe["warmup_steps"] == 4
    expected = {"beta1" if optimizer == "lamb" else "momentum": 0.9, **OPTIONS.get(optimizer, {})}
    assert expected.items() <= options.items()
    assert options.get("variant", "") in str(Recipe.from_json(record.recipe))
    assert (record.batch_efficiency != {}) == (compression == "dense" and any(e["noise_scale"] for e in record.curve))
    assert record.batch_efficiency == again.batch_efficiency and record.skipped_steps == 0
    if optimizer != "momentum":
        a, b = whole.trust[compression], rest.trust[compression]
        assert a.steps.tolist() == list(range(1, STEPS + 1)) and (a.trust_ratio == b.trust_ratio).all() and a.names == b.names
        assert a.rates().keys() == {"0.weight", "4.weight", "6.weight"}


@pytest.mark.parametrize(
    ("compression", "optimizer"), [DAILY[0], ["terngrad", "lars"]]
)  # the lengths of the others depend on the values
def test_the_record_has_the_bytes_that_the_prediction_has(resumed, compression, optimizer):
    contents = RunDir(resumed / f"{compression}-{optimizer}" / "whole").read()
    assert contents.records[compression].wire_bytes_per_device == contents.predictions[compression].wire_bytes_per_device > 0
    assert contents.records[compression].nonfinite_steps == 0
    assert contents.records[compression].steps == STEPS


def saved(tmp_path: Path, **changes: Any) -> Path:
    """A checkpoint after two of three epochs, as the workers write it."""
    prepared = worker.prepare(job(tmp_path / "run", **changes))
    state = {"model": {}, "optimizer": {}, "hook": {}, "curve": []}
    checkpoint.save(tmp_path / "run", prepared, 2, state)
    return tmp_path / "run"


def test_the_same_job_with_more_epochs_may_resume(tmp_path):
    run = saved(tmp_path)
    assert worker.prepare(job(run, resume=str(run), epochs=4)).label == "dense"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 7}, "seed 6 -> 7"),
        ({"lr": 0.5}, "lr 0.01 -> 0.5"),
        ({"decay": 2.0, "warmup": 1.0}, "warmup 0.0 -> 1.0, decay 0.0 -> 2.0"),
        ({"compression": "terngrad"}, "compression 'dense' -> 'terngrad'"),
        ({"optimizer": "adam"}, "optimizer 'momentum' -> 'adam'"),
        ({"optimizer_options": {"momentum": 0.5}}, "momentum 0.9 -> 0.5"),
        ({"data": "user_module:endless"}, "data 'user_module:samples' -> 'user_module:endless'"),
        ({"epochs": 2}, "already has 2 epochs; ask for more"),
        ({"epochs": 1}, "already has 2 epochs; ask for more"),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change, words):
    run = saved(tmp_path)
    with pytest.raises(UserError) as error:
        worker.prepare(job(tmp_path / "other", resume=str(run), **change))
    assert words in str(error.value)
    assert not (tmp_path / "other").exists()


def test_another_number_of_workers_may_resume(tmp_path):
    run = saved(tmp_path)
    assert worker.prepare(job(run, resume=str(run), workers=2)).strategy.world_size == 2


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({}, ""),
        ({"exchange": "sharded"}, ""),
        ({"exchange": "ring"}, "other settings: exchange 'allgather' -> 'ring';"),
        ({"compression": "int8"}, "compression 'topk' -> 'int8'"),
    ],
    ids=str,
)
def test_another_number_of_workers_may_resume_over_the_usual_exchange_there(tmp_path, named, words):
    """Between copies of the shards it is another than over all ranks."""
    sharded = {"sharding": "zero3", "shard_devices": 2, "global_batch_size": 24, "optimizer": "momentum"}
    before = Strategy.of(world_size=4, compression="topk", **sharded)
    run = job(saved(tmp_path, strategy=before), resume=str(tmp_path / "run"), strategy=before.changed(world_size=2, **named))
    assert before.gradient_exchange.exchange.name == "allgather"
    if words:
        with pytest.raises(UserError, match=words):
            worker.prepare(run)
    else:
        assert worker.prepare(run).strategy.gradient_exchange.exchange.name == "sharded"


def test_an_exchange_that_was_named_may_not_change_on_another_mesh(tmp_path):
    sharded = {"sharding": "zero3", "shard_devices": 2, "global_batch_size": 24, "compression": "topk", "optimizer": "momentum"}
    folder = saved(tmp_path, strategy=Strategy.of(world_size=4, exchange="ring", **sharded))
    with pytest.raises(UserError, match="exchange 'ring' -> 'sharded'"):
        worker.prepare(job(folder, resume=str(folder), strategy=Strategy.of(world_size=2, **sharded)))


def test_a_decay_ends_with_its_run(tmp_path):
    """More epochs than it was made for would have had other rates from the start."""
    run = saved(tmp_path, decay=2.0)
    assert worker.prepare(job(run, resume=str(run), decay=2.0)).label == "dense"
    with pytest.raises(UserError, match="epochs 3 -> 4"):
        worker.prepare(job(run, resume=str(run), decay=2.0, epochs=4))


def test_rate_and_warm_up_follow_from_those_of_another_batch():
    """At four times the batch: four times the rate for LARS, twice for LAMB, four times the epochs of warm-up."""
    rates = {"lr": 0.1, "warmup": 0.25, "decay": 2.0, "scale_from": 6}
    lars, lamb = (job("x", optimizer=name, **rates).recipe(10) for name in ("lars", "lamb"))
    assert (lars.lr, lamb.lr) == pytest.approx((0.4, 0.2))
    assert (lars.total_steps, lars.warmup_steps, lars.power) == (30, 10, 2.0) and "linear scaling from 0.1" in lars.source
    plain = job("x").recipe(10)
    assert plain.source == "the default rate of momentum" and {plain.rate(step) for step in range(40)} == {0.01}


def test_a_missing_damaged_or_foreign_checkpoint_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no checkpoint\.pt in"):
        checkpoint.load(tmp_path)
    run = saved(tmp_path)
    file = run / checkpoint.FILE
    whole = file.read_bytes()
    for broken in (b"", b"not a checkpoint", whole[: len(whole) // 2]):
        file.write_bytes(broken)
        with pytest.raises(UserError, match="cannot be read"):
            checkpoint.load(run)
    torch.save({"schema": 99}, file)
    with pytest.raises(UserError, match="schema 99"):
        checkpoint.load(run)
    torch.save([1, 2], file)
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.load(run)


def test_a_checkpoint_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    torch.save({"schema": 1, "job": Evil()}, tmp_path / checkpoint.FILE)
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.load(tmp_path)
    assert not (tmp_path / "made").exists()


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*args: Any) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr(local, "run_workers", started)


def test_an_out_that_is_a_file_is_said_before_training(tmp_path, no_workers):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file, not a directory"):
        local.train_run(job(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot write to"):
        local.train_run(job(tmp_path / "file" / "below"))


@pytest.mark.parametrize(("cores", "workers", "most"), [(2, 17, 16), (2, 200, 16), (8, 33, 32)])
def test_more_workers_than_a_host_can_run_are_refused(tmp_path, monkeypatch, no_workers, cores, workers, most):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    strategy = Strategy.of(world_size=workers, global_batch_size=workers)
    refusal = rf"^{workers} workers are too many for the {cores} cores of this host; give at most {most}.* torchrun "
    for start in (
        lambda: paceline.train(MODEL, DATA, strategy, out=str(tmp_path / "out")),
        lambda: launcher.probe(workers),
    ):
        with pytest.raises(UserError, match=refusal):
            start()
    assert not (tmp_path / "out").exists()
    launcher.check_host_holds(most)


def test_an_unwritable_out_is_said_before_training(no_workers):
    with pytest.raises(UserError, match="cannot write to /proc/paceline"):
        local.train_run(job("/proc/paceline"))  # not even root may


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "lenet"}, "lenet5"),
        ({"model": "user_module:netwrk"}, "did you mean network"),
        ({"model": "user_module:not_a_network"}, "return a torch.nn.Module"),
        ({"model": "lenet5"}, "lenet5 does not take the samples of user_module:samples, 29"),
        ({"data": "digit"}, "did you mean digits"),
        ({"strategy": Strategy.of(world_size=3, global_batch_size=243)}, "give at most 240"),
    ],
    ids=["unknown network", "unknown function", "no module", "wrong samples", "unknown data", "too large a batch"],
)
def test_what_cannot_work_is_said_before_training(tmp_path, no_workers, change, words):
    with pytest.raises(UserError) as error:
        local.train_run(job(tmp_path / "out", **change))
    assert words in str(error.value)


def children(pid: int) -> dict[int, str]:
    """Processes below ``pid``, each with its RANK or nothing."""
    processes: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) if entry.name.isdigit() else 0
            if parent and parent == pid:
                variables = (entry / "environ").read_bytes().split(b"\0")
                processes[int(entry.name)] = next((v[5:].decode() for v in variables if v.startswith(b"RANK=")), "")
                processes |= children(int(entry.name))
        except (OSError, ValueError):
            continue  # it has just ended
    return processes


START = """
import os, sys
print(os.getpid(), flush=True)
from paceline.training.runs import train as local
from paceline.training.runs.training_run import TrainingRun
from paceline.training.runs.launcher import WorkerFailed
try:
    local.train_run(TrainingRun.from_json(sys.argv[1]))
except WorkerFailed as error:
    print(f"failed: {error}", flush=True)
    sys.exit(error.code)
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux, for /proc")
def test_a_killed_worker_ends_the_job_within_30_s_and_is_named(tmp_path):
    out = tmp_path / "out"
    text = replace(job(out, "terngrad", workers=2), model="user_module:plain_and_idle", data="user_module:endless").to_json()
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [executable(), "-c", START, text],
            env=ENVIRONMENT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 150
        while not RunDir(out).prediction_path.exists() and time.monotonic() < until and process.poll() is None:
            time.sleep(0.2)
        time.sleep(1.5)  # into the training itself
        ranks = {rank: pid for pid, rank in children(int(log.read_text().split()[0])).items() if rank}
        assert set(ranks) >= {"0", "1"}, log.read_text()
        os.kill(ranks["1"], signal.SIGKILL)
        killed = time.monotonic()
        code = process.wait(200)
        took = time.monotonic() - killed
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    words = log.read_text()
    assert code == 128 + signal.SIGKILL, words
    assert f"failed: worker rank 1 (process {ranks['1']}) was killed by SIGKILL" in words
    assert f"\nno checkpoint was written, so nothing is kept in {out}" in words
    assert took < 30
    assert not RunDir(out).record_path.exists()
    deadline = time.monotonic() + 100
    while any(Path(f"/proc/{pid}").exists() for pid in ranks.values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values()), "a worker was left behind"


def test_without_torchrun_it_says_so():
    environment = {k: v for k, v in ENVIRONMENT.items() if k not in ("WORLD_SIZE", "RANK")}
    command = [executable(), "-m", "paceline.training", "--model", MODEL, "--data", DATA]
    done = subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True, timeout=200)
    assert (
        done.returncode == 2
        and "paceline: torchrun has not started this process; on one machine use paceline train" in done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_job_comes_back_from_its_json(optimizer):
    run = job("somewhere", "terngrad", optimizer, lr=0.25, label="x", resume="y")
    assert TrainingRun.from_json(run.to_json()) == run
    assert "\n" not in run.to_json()


@pytest.mark.parametrize("name", ["lenet5", "resnet-50", "gpt2", "bert-large"])
def test_an_optimizer_that_is_left_out_is_the_one_of_a_prediction(name):
    run = job("out", model=name, optimizer="")
    assert run.strategy.optimizer == paceline.predict(name, "A100", global_batch_size=1).strategy["optimizer"]
    assert run.identity["optimizer"] == run.recipe(10).optimizer == run.strategy.optimizer


def test_an_optimizer_that_is_left_out_for_a_network_of_the_users_is_that_of_an_unknown_one():
    assert job("out", optimizer="").strategy.optimizer == usual_optimizer(None) == "momentum"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 0}, "0 epochs"),
        ({"lr": -1.0}, "learning rate"),
        ({"lr": float("inf")}, "learning rate"),
        ({"lr": float("nan")}, "learning rate"),
        ({"warmup": 3.5}, "3.5 epochs in a run of 3"),
        ({"decay": -1.0}, "power -1"),
        ({"scaling": "sqrt"}, "give `scale_from`"),
        ({"scaling": "cubic", "scale_from": 8}, "scaling rule"),
        ({"optimizer_options": {"variant": "paper"}}, "momentum has no variant; leave it out, or use lars or lamb"),
        ({"optimizer": "lamb", "optimizer_options": {"momentum": 0.5}}, "lamb has no momentum; leave it out, or use momentum"),
        ({"optimizer": "lars", "optimizer_options": {"wait_decay": 0.5}}, "lars 'wait_decay'; .* did you mean weight_decay"),
        ({"optimizer_options": {"momentum": 1.0}}, "momentum 1.0; give a number from 0 to less than 1"),
        ({"optimizer_options": {"weight_decay": -1.0}}, "weight decay -1.0; give 0 or a positive number"),
        ({"optimizer_options": {"weight_decay": float("nan")}}, "weight decay nan"),
        ({"strategy": Strategy.of(world_size=2, global_batch_size=4, precision="fp8")}, "cannot run precision fp8"),
        (
            {"strategy": Strategy.of(world_size=2, global_batch_size=4, sharding="distributed_optimizer")},
            "cannot run sharding distributed_optimizer",
        ),
        (
            {"strategy": Strategy.of(world_size=2, global_batch_size=4, sharding="zero1", gradient_bits=16)},
            "leave gradient_bits",
        ),
        ({"strategy": Strategy.of(world_size=2, global_batch_size=4, recompute="selective:moe")}, "cannot run recomputation"),
        (
            {"strategy": Strategy.of(world_size=2, global_batch_size=4, exchange="parameter_server", servers=2)},
            "one server, not 2",
        ),
        (
            {"strategy": Strategy.of(world_size=2, global_batch_size=4, precision="fp16", sharding="zero1")},
            "fp16 with sharding zero1",
        ),
    ],
    ids=str,
)
def test_a_job_that_cannot_be_is_refused(change, words):
    with pytest.raises(UserError, match=words):
        job("out", **change)
