"""The file of a checkpoint: whole or named as damaged, no code run that it names, those of before still read."""

from __future__ import annotations

import json
import os
import resource
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed import TESTS, launch
from paceline.calibration.observation import Observation
from paceline.cli import main
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.rundir import RunDir
from paceline.strategy import Strategy
from paceline.training.runs import train, worker
from paceline.training.runs.checkpoints import checkpoint
from paceline.training.runs.training_run import TrainingRun
from paceline.workload import Workload
from training_jobs import quick

OLD = TESTS / "data" / "old_runs"
MODEL, DATA = "user_module:small", "user_module:few"


def run_in(out: Path, **changes: Any) -> TrainingRun:
    strategy = Strategy.of(world_size=2, global_batch_size=8)
    return TrainingRun(**{"model": MODEL, "data": DATA, "strategy": strategy, "epochs": 2, "out": str(out), **changes})


@contextmanager
def disk_full_after(size: int) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_checkpoint_and_nothing_else(tmp_path):
    checkpoint.save(tmp_path, run_in(tmp_path), 1, {"model": {"a": torch.zeros(10)}, "curve": []})
    for _ in range(2):
        with (
            disk_full_after(1 << 16),
            pytest.raises(UserError, match=r"cannot write .*checkpoint\.pt: File too large; make room"),
        ):
            checkpoint.save(tmp_path, run_in(tmp_path), 2, {"model": {"a": torch.zeros(1 << 16)}})
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.FILE]
    assert checkpoint.load(tmp_path)["epoch"] == 1


def two_generations(folder: Path, parts: int = 2, **changes: Any) -> list[dict[str, Any]]:
    """Checkpoints after the first and the second epoch, with parts of ranks in files; a third is no longer there."""
    folder.mkdir(exist_ok=True)
    for epoch in (0, 1, 2):
        names = [f"{epoch}-5.{rank}.pt" for rank in range(parts)]
        for rank, name in enumerate(names):
            checkpoint.write_part(folder, name, {"rank": rank, "hook": {"residual": torch.full((9,), rank + epoch / 4)}})
        state = {"model": {"a": torch.full((300,), float(epoch))}, "curve": []}
        checkpoint.save(folder, run_in(folder, **changes), epoch, state, step=5, part_files=names)
    return [checkpoint.read(folder / name) for name in (checkpoint.PREVIOUS, checkpoint.FILE)]


def test_two_generations_are_kept_with_the_parts_of_both(tmp_path):
    previous, newest = two_generations(tmp_path)
    assert [(state["epoch"], state["step"]) for state in (previous, newest)] == [(1, 5), (2, 5)]
    assert [hook["residual"][0].item() for hook in (*previous["hook"], *newest["hook"])] == [0.25, 1.25, 0.5, 1.5]
    assert sorted(path.name for path in (tmp_path / checkpoint.PARTS).iterdir()) == [
        f"{epoch}-5.{rank}.pt" for epoch in (1, 2) for rank in (0, 1)
    ]
    assert checkpoint.read(tmp_path / checkpoint.FILE, [1])["parts"][0]["rank"] == 1
    (tmp_path / checkpoint.PARTS / "2-7-left.0.pt").touch()
    (tmp_path / f".{checkpoint.FILE}.tmp").touch()
    checkpoint.clear_leftovers(tmp_path)
    assert len(list(tmp_path.glob("**/*.pt"))) == 6 and not list(tmp_path.glob(".*"))


def test_a_new_run_does_not_write_over_one_that_is_not_over(tmp_path):
    state = {"model": {}, "optimizer": {}, "curve": [], "parts": [{}, {}]}
    checkpoint.refuse_unfinished(tmp_path)
    for epoch, step, where in ((0, 3, "step 3 of epoch 1"), (1, 0, "epoch 1")):
        checkpoint.save(tmp_path, run_in(tmp_path), epoch, state, step=step)
        with pytest.raises(UserError, match=rf"a run that is not over, {where} of 2.*--resume {tmp_path}, name another --out"):
            worker.prepare(run_in(tmp_path, lr=0.3))
        worker.prepare(run_in(tmp_path, elastic=True))
    checkpoint.save(tmp_path, run_in(tmp_path), 2, state)
    checkpoint.refuse_unfinished(tmp_path)
    damage(tmp_path / checkpoint.FILE, "truncated")
    with pytest.raises(UserError, match="not over, epoch 1 of 2"):
        checkpoint.refuse_unfinished(tmp_path)


def test_settings_are_compared_with_their_checksum_even_in_a_hurry(tmp_path: Path) -> None:
    two_generations(tmp_path, lr=0.1234)
    path = tmp_path / checkpoint.FILE
    path.write_bytes(path.read_bytes().replace(b'"lr": 0.1234', b'"lr": 0.7234'))
    state = checkpoint.load(tmp_path, checked=False)
    assert (state["file"], state["run"].lr) == (checkpoint.PREVIOUS, 0.1234) and "CRC" in state["fallback"]


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped":
        numbers = max(data.find(torch.full((9,), value).numpy().tobytes()) for value in (1.0, 1.5, 2.0))
        data[numbers + 5] ^= 1
    path.write_bytes({"truncated": data[: len(data) // 2], "empty": b"", "flipped": data}[how])


@pytest.mark.parametrize("how", ["truncated", "empty", "flipped", "gone"])
@pytest.mark.parametrize("what", ["checkpoint", "part"])
def test_a_damaged_newest_checkpoint_leads_to_the_one_before(tmp_path, what, how):
    two_generations(tmp_path)
    path = tmp_path / checkpoint.FILE if what == "checkpoint" else tmp_path / checkpoint.PARTS / "2-5.1.pt"
    path.unlink() if how == "gone" else damage(path, how)
    state = checkpoint.load(tmp_path)
    assert (state["epoch"], state["file"]) == (1, checkpoint.PREVIOUS) and [part["rank"] for part in state["parts"]] == [0, 1]
    assert f"{checkpoint.FILE} cannot be read: " in state["fallback"] and "\n" not in state["fallback"]
    assert what == "checkpoint" or "its part 2-5.1.pt" in state["fallback"]
    damage(tmp_path / checkpoint.PREVIOUS, "truncated")
    with pytest.raises(UserError, match=r"/checkpoint\.pt cannot be read"):  # the newest is what is named
        checkpoint.load(tmp_path)


def test_a_change_of_a_dense_rule_is_said_in_the_words_of_its_options():
    rule = {"min_elements": 1024, "last_layer": False, "names": []}
    other = {"min_elements": 64, "last_layer": False, "names": ["*.head.*"]}
    assert checkpoint._changes("dense_rule", rule, other) == ["min-elements 1024 -> 64", "dense none -> *.head.*"]
    assert checkpoint._changes("dense_rule", rule, None) == ["min-elements 1024 -> none"]
    assert checkpoint._changes("options", {}, {"a": None}) and not checkpoint._changes("options", {}, {})


def test_a_foreign_newest_checkpoint_leads_to_the_one_before(tmp_path):
    """A copy of another run's: the file is whole, and its parts are there or not."""
    two_generations(tmp_path / "run")
    two_generations(tmp_path / "other", parts=0, seed=9)
    shutil.copy(tmp_path / "other" / checkpoint.FILE, tmp_path / "run" / checkpoint.FILE)
    state = checkpoint.load(tmp_path / "run", run_in(tmp_path / "run"))
    assert state["epoch"] == 1 and "other settings: seed 9 -> 0" in state["fallback"]
    assert checkpoint.load(tmp_path / "run", run_in(tmp_path / "run", seed=9))["fallback"] == ""
    with pytest.raises(UserError, match="seed 9 -> 4"):
        checkpoint.load(tmp_path / "run", run_in(tmp_path / "run", seed=4))


def test_an_interrupted_run_says_which_checkpoint_it_can_go_on_from(tmp_path):
    folder = tmp_path / "run"
    run, path = run_in(folder), folder / checkpoint.FILE
    assert checkpoint.kept(run) == f"no checkpoint was written, so nothing is kept in {folder}"
    two_generations(folder)
    assert checkpoint.kept(run) == f"the checkpoint of step 5 of epoch 3 is kept; resume {folder} to go on"
    other = checkpoint.kept(run_in(folder, seed=9))
    assert other.startswith(f"{folder} has no checkpoint that this run can go on from: ")
    assert "from a run with other settings: seed 0 -> 9" in other
    for change in (lambda: damage(path, "truncated"), path.unlink):
        change()
        assert checkpoint.kept(run) == f"the checkpoint of step 5 of epoch 2 is kept; resume {folder} to go on"
    damage(folder / checkpoint.PREVIOUS, "truncated")
    assert f"{folder} has no checkpoint that this run can go on from: {path} cannot be read: [Errno 2]" in checkpoint.kept(run)
    assert checkpoint.kept(run).endswith(
        f"; the one before: {folder / checkpoint.PREVIOUS} cannot be read: File is not a zip file"
    )


@pytest.mark.parametrize("content", [{"model": {}, "x": 1}, {}, [1, 2], torch.zeros(3)])
def test_a_file_that_paceline_has_not_written_is_named_as_such(tmp_path, content):
    torch.save(content, tmp_path / checkpoint.FILE)
    with pytest.raises(UserError, match=r"/checkpoint\.pt cannot be read: it is no checkpoint of Paceline; start again"):
        checkpoint.load(tmp_path)


def test_two_checkpoints_that_do_not_serve_are_both_named(tmp_path):
    two_generations(tmp_path)
    torch.save({"x": 1}, tmp_path / checkpoint.FILE)
    damage(tmp_path / checkpoint.PREVIOUS, "truncated")
    both = r"checkpoint\.pt cannot be read: it is no .*; the one before: .*/checkpoint\.previous\.pt cannot be read: "
    with pytest.raises(UserError, match=both) as raised:
        checkpoint.load(tmp_path)
    assert str(raised.value).count("start again without") == 1 and "\n" not in str(raised.value)
    two_generations(tmp_path)
    with pytest.raises(UserError, match="other settings: seed 0 -> 9; resume") as raised:  # true of both: said once
        checkpoint.load(tmp_path, run_in(tmp_path, seed=9))
    assert "the one before" not in str(raised.value)


@pytest.mark.parametrize("names", [["../x.pt"], ["/etc/passwd"], "x", [3]])
def test_a_checkpoint_names_parts_of_its_own_directory_only(tmp_path, names):
    state = {"model": {}, "curve": []}
    checkpoint.save(tmp_path, run_in(tmp_path), 1, state)
    data = torch.load(tmp_path / checkpoint.FILE, weights_only=True)
    torch.save({**data, "part_files": names}, tmp_path / checkpoint.FILE)
    with pytest.raises(UserError, match=r"cannot be read: parts are"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("at", ["write", "keep", "replace"])
def test_a_process_that_dies_while_it_saves_leaves_a_whole_checkpoint(tmp_path, at):
    """Between any two of its steps: the child ends there without a chance to tidy up."""
    checkpoint.save(tmp_path, run_in(tmp_path), 1, {"model": {}, "curve": []})
    checkpoint.save(tmp_path, run_in(tmp_path), 2, {"model": {}, "curve": []})
    if (child := os.fork()) == 0:
        name, owner = {
            "write": ("fsync", os),
            "keep": ("_link_previous", checkpoint),
            "replace": ("sync_directory", checkpoint),
        }[at]
        setattr(owner, name, lambda *_: os._exit(9))
        checkpoint.save(tmp_path, run_in(tmp_path), 3, {"model": {}, "curve": []})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert checkpoint.load(tmp_path)["epoch"] == (3 if at == "replace" else 2)
    assert checkpoint.read(tmp_path / checkpoint.PREVIOUS)["epoch"] == (2 if at == "replace" else 1)
    checkpoint.save(tmp_path, run_in(tmp_path), 4, {"model": {}, "curve": []})
    assert checkpoint.load(tmp_path)["epoch"] == 4


@pytest.mark.parametrize("how", ["truncated", "flipped", "gone", "foreign"])
def test_a_newest_checkpoint_that_was_passed_over_does_not_replace_the_one_before(tmp_path, how):
    """A process that dies before the next one has its name leaves the one before; afterwards its parts are still there too."""
    run, path = run_in(tmp_path), tmp_path / checkpoint.FILE
    two_generations(tmp_path)
    if how == "foreign":
        checkpoint.write_alone(path, run_in(tmp_path, seed=9), 2, 5, {"model": {}, "curve": []})
    elif how == "gone":
        path.unlink()
    else:
        damage(path if how == "truncated" else tmp_path / checkpoint.PARTS / "2-5.1.pt", how)
    assert checkpoint.load(tmp_path, run)["epoch"] == 1
    if (child := os.fork()) == 0:
        Path.replace = stop_at_newest(Path.replace)
        checkpoint.save(tmp_path, run, 3, {"model": {}, "curve": []})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert checkpoint.load(tmp_path, run)["epoch"] == 1
    for epoch, before in ((3, 1), (4, 3)):
        checkpoint.save(tmp_path, run, epoch, {"model": {}, "curve": []})
        assert checkpoint.load(tmp_path, run)["epoch"] == epoch
        assert checkpoint.read(tmp_path / checkpoint.PREVIOUS)["epoch"] == before


def stop_at_newest(replace: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
    """``Path.replace`` of a process that ends where the newest checkpoint gets its name."""
    return lambda path, target: os._exit(9) if target.name == checkpoint.FILE else replace(path, target)


def test_a_flipped_byte_is_one_line(tmp_path):
    """Wherever it is: it is named, or it changes nothing, as between two records of the archive."""
    whole = (OLD / "int8_topk" / checkpoint.FILE).read_bytes()
    expected = repr(checkpoint.load(OLD / "int8_topk"))
    with zipfile.ZipFile(OLD / "int8_topk" / checkpoint.FILE) as archive:
        weights = max(archive.infolist(), key=lambda item: item.file_size)
    middle = weights.header_offset + 256 + weights.file_size // 2
    named = 0
    for place in [middle, *np.random.default_rng(3).integers(0, len(whole), 100)]:
        damaged = bytearray(whole)
        damaged[place] ^= 64
        (tmp_path / checkpoint.FILE).write_bytes(damaged)
        try:
            state = checkpoint.load(tmp_path)
        except UserError as error:
            named += 1
            assert f"{tmp_path / checkpoint.FILE} cannot be read: " in str(error) and "\n" not in str(error)
        else:
            assert repr(state) == expected, place
            assert place != middle
    assert named > 60


def resumable(folder: Path, **changes: Any) -> Path:
    """A checkpoint after the first of two epochs, as the workers write it."""
    folder.mkdir()
    state = {"model": {}, "optimizer": {}, "hook": {}, "curve": []}
    checkpoint.save(folder, worker.prepare(run_in(folder, **changes)), 1, state)
    return folder


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What workers would have been started with; they are not."""
    started: list[str] = []

    def start(command: list[str], *_: Any, **__: Any) -> None:
        started.append(command[-1])
        raise UserError("workers are started")

    monkeypatch.setattr(train, "run_workers", start)
    return started


def test_code_that_only_the_checkpoint_names_is_not_run(tmp_path, capsys, workers, monkeypatch):
    monkeypatch.syspath_prepend(str(TESTS))
    folder = str(resumable(tmp_path / "run"))
    for words, named in (([], f"--model {MODEL} --data {DATA}"), (["--model", MODEL], f"--data {DATA}")):
        assert main(["train", "--resume", folder, *words]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and f"give {named}" in said and not workers
    assert main(["train", "--resume", folder, "--model", MODEL, "--data", DATA]) == 2
    assert capsys.readouterr().err == "paceline: workers are started\n" and len(workers) == 1


def test_named_networks_and_data_are_taken_from_the_checkpoint(tmp_path, capsys, workers):
    folder = resumable(tmp_path / "run", model="lenet5", data="digits")
    assert main(["train", "--resume", str(folder)]) == 2
    assert capsys.readouterr().err == "paceline: workers are started\n" and len(workers) == 1


def _edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def edit(state: dict[str, Any]) -> dict[str, Any]:
        run = json.loads(state["job"])
        return {**state, "job": json.dumps(change(run) or run)}

    return edit


HUGE = 10**400
DAMAGED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no strategy": _edited(lambda run: run.update(strategy={})),
    "no run": _edited(lambda run: ["x"]),
    "no json": lambda state: {**state, "job": "x"},
    "deep": lambda state: {**state, "job": "[" * 100_000 + "]" * 100_000},
    "no model": _edited(lambda run: run.pop("model") and None),
    "an unknown choice": _edited(lambda run: run.update(colour="red")),
    "a number as the model": _edited(lambda run: run.update(model=5)),
    "text as epochs": _edited(lambda run: run.update(epochs="2")),
    "a huge rate": _edited(lambda run: run.update(lr=HUGE)),
    "huge epochs": _edited(lambda run: run.update(epochs=HUGE)),
    "huge workers": _edited(lambda run: run["strategy"].update(world_size=HUGE)),
    "no epoch": lambda state: {**state, "epoch": None},
    "no curve": lambda state: {**state, "curve": 5},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_checkpoint_is_one_line(tmp_path, capsys, workers, damage):
    state = torch.load(OLD / "int8_topk" / checkpoint.FILE, weights_only=True)
    torch.save(DAMAGED[damage](state), tmp_path / checkpoint.FILE)
    words = ["--model", MODEL, "--data", DATA, *(["--epochs", "3"] if "epochs" not in damage else [])]
    assert main(["train", "--resume", str(tmp_path), *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("paceline: ") and said.count("\n") == 1 and len(said) < 500 and not workers
    assert "cannot be read" in said


def go_on(rank: int, workers: int, old: str, out: str) -> None:
    """One epoch more of a run that the version before these tests has begun."""
    quick()
    before = checkpoint.load(Path(old))["run"]
    strategy = before.strategy
    run = TrainingRun(model=MODEL, data=DATA, strategy=strategy, epochs=3, seed=before.seed, out=out, resume=old)
    worker.train(worker.prepare(run, first=rank == 0), torch.device("cpu"))


def test_a_run_of_before_goes_on(tmp_path):
    """To the figures that the version which began it comes to: residuals, position in the data and weights are its own."""
    launch(go_on, 2, old=str(OLD / "int8_topk"), out=str(tmp_path / "out"))
    record = RunDir(tmp_path / "out").read().records["topk"]
    losses = [entry["loss"] for entry in record.curve]
    assert losses == pytest.approx([1.114462435245514, 1.0592467784881592, 1.0078390836715698], rel=1e-5)


def test_a_run_directory_of_before_is_read(tmp_path, capsys):
    contents = RunDir(OLD / "terngrad_lars").read()
    assert contents.labels == ["terngrad"] and contents.records["terngrad"].accuracy == 0.34375
    assert contents.predictions["terngrad"].wire_bytes_per_device == contents.records["terngrad"].wire_bytes_per_device
    assert contents.measured["terngrad"] and contents.trust["terngrad"].steps.size
    assert list(RunDir(OLD / "int8_topk").read(partial=True).records) == ["int8", "topk"]
    record = contents.records["terngrad"]
    observed = Observation.of_record(
        record, Workload.named("lenet5"), Cluster.from_json(record.cluster)
    )  # for later predictions
    assert observed.strategy.gradient_exchange.compression.name == "terngrad" and observed.step_s == 0.008106082000011838
    copy = tmp_path / "copy"
    shutil.copytree(OLD / "terngrad_lars", copy)
    assert main(["report", str(copy)]) == 0 and (copy / "report.html").stat().st_size > 10_000
    capsys.readouterr()


def test_a_checkpoint_of_before_is_of_the_same_run():
    before = checkpoint.load(OLD / "terngrad_lars")["run"]
    assert (before.strategy.gradient_exchange.compression.name, before.strategy.optimizer, before.warmup) == (
        "terngrad",
        "lars",
        1,
    )
    assert TrainingRun.from_json(before.to_json()) == before
