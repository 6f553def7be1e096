"""From a trained network to a smaller one."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.edge import slim_run
from paceline.edge.evaluation import held_out, held_out_on_file
from paceline.edge.slim_prediction import predict
from paceline.edge.slim_run import SlimRun, missed_budget, slim_network
from paceline.errors import Interrupted, UserError
from paceline.slim_record import BOTH_EASED, SMALLER, SlimRecord
from paceline.slimming.export.onnx_export import difference
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.layer_times import REST
from paceline.slimming.latency.targets import LiteRT, OnnxRuntime, SlimTarget
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.weight_forms import INT4, INT8
from paceline.slimming.slim import Slim
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import load
from paceline.strategy import Strategy
from paceline.training.runs.data import load as load_data
from paceline.training.runs.starting_model import build_model
from paceline.training.runs.training_run import TrainingRun


def run_of(out: Path, **changes: Any) -> SlimRun:
    strategy = Strategy.of(world_size=2, global_batch_size=64, compression="terngrad", optimizer="lars")
    training = TrainingRun(model="lenet5", data="digits", strategy=strategy, epochs=2, out=str(out))
    return SlimRun(**{"training": training, "budget": Budget("size", 200e3), "path_epochs": 1, "tune_epochs": 1, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": "ssll"}, "unknown method 'ssll'"),
        ({"target": "onnxrt"}, "unknown target 'onnxrt'.*did you mean onnxruntime?"),
        ({"target": "litert", "weights": (INT8,)}, r"weights in int8 for litert"),
        ({"weights": (INT8, INT8)}, r"weights in int8 twice"),
        (
            {"target": "executorch", "budget": Budget("speedup", 2), "method": "force"},
            "ONNX Runtime, not on executorch",
        ),
        ({"path_epochs": -1}, "-1 epochs"),
        ({"threads": 0}, "0 threads"),
        ({"budget": Budget.parse("decode=2x")}, "decode=2x for lenet5, which is no folder of a language model"),
        ({"method": "force"}, "force cannot aim at size=200kB"),
        ({"method": "compact"}, "`path_epochs` for compact, which has no path"),
        ({"method": "sparse", "budget": Budget("accuracy", 1.0)}, "sparse cannot aim at accuracy=-1pt"),
    ],
)
def test_what_cannot_be_is_refused_before_anything(
    changes: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlimTarget, "check_installed", lambda self: None)
    with pytest.raises(UserError, match=says):
        run_of(tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_each_stage_has_its_own_directory_and_its_share_of_the_rate(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    stage = run.stage("tune", 3, 0.5)
    assert (Path(stage.out), stage.epochs) == (tmp_path / "tune", 3)
    assert stage.learning_rate == pytest.approx(run.training.learning_rate / 2)


def test_a_runtime_that_is_missing_is_said_before_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiteRT, "package", "not_there")
    with pytest.raises(UserError, match=r"LiteRT is not installed; pip install 'paceline\[litert\]'"):
        run_of(tmp_path / "out", target="litert")
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_a_compact_student_learns_from_the_whole_network(tmp_path: Path) -> None:
    training = replace(run_of(tmp_path).training, strategy=Strategy.of(world_size=1, global_batch_size=64), lr=0.05)
    run = run_of(tmp_path, method="compact", training=training, path_epochs=0, tune_epochs=6, budget=Budget("size", 60e3))
    record = slim_network(run)
    assert record.slimmed is not None and record.slimmed.file_bytes < 115e3 and not (tmp_path / "path").exists()
    assert record.slimmed.accuracy is not None and record.slimmed.accuracy > 0.5, "one in ten by chance"
    small = load(SlimPlan.load(tmp_path / "plan.json"), build_model("lenet5", 0))
    small.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert held_out(small, load_data("digits")) == (record.slimmed.accuracy, record.slimmed.loss)
    assert any("new network" in note for note in record.notes) and record.kept == {}


@pytest.mark.full
def test_two_workers_slim_with_compressed_gradients_and_a_second_run_does_nothing_twice(tmp_path: Path) -> None:
    run = run_of(tmp_path, weights=(INT8, INT4))
    said: list[str] = []
    record = slim_network(run, said.append)
    after = record.slimmed
    assert after is not None and after.file_bytes <= 200e3 < record.whole.file_bytes
    data = load_data("digits")
    small = load(SlimPlan.load(tmp_path / "plan.json"), build_model("lenet5", 0))
    small.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert held_out(small, data) == (after.accuracy, after.loss)
    quantised = record.quantised
    assert quantised is not None and quantised.file_bytes < 0.4 * after.file_bytes
    assert quantised.accuracy is not None and abs(quantised.accuracy - after.accuracy) < 0.05  # type: ignore[operator]
    assert record.sizes == {name: (tmp_path / name).stat().st_size for name in record.files}
    ways = {(each.way, each.weights): each for each in record.candidates}
    assert list(ways)[:3] == [("smaller", "fp32"), ("fewer bits", "int8"), ("both", "int8")] and ("both", "int4") in ways
    for each in record.candidates:
        file = tmp_path / each.file
        assert each.measured.file_bytes == file.stat().st_size == pytest.approx(each.predicted_bytes, abs=8000)
        assert each.meets == ("yes" if file.stat().st_size <= 200e3 else "no")
        assert held_out_on_file(file, data) == pytest.approx((each.measured.accuracy, each.measured.loss))
    assert ways["fewer bits", "int4"].meets == "yes" and not missed_budget(run.budget, record) and record.meeting
    assert difference(small, (data.test_x[:1],), tmp_path / "model.onnx") < 1e-4
    assert SlimRecord.from_json(json.loads((tmp_path / "slim.json").read_text())).widths == record.widths
    assert any(width.after < width.before for width in record.widths)
    assert [each.layer for each in record.layers] == ["conv1", "conv2", "fc1", "fc2", REST]
    assert sum(each.before_s for each in record.layers) == pytest.approx(record.whole.latency_s)
    assert sum(each.after_s for each in record.layers) == pytest.approx(after.latency_s)
    assert all(each.predicted_s > 0 for each in record.layers), "which the tables say for a size too"
    assert not list(tmp_path.glob("*.draft*")) and said[2:4] == ["measuring the layers", "training the whole network"]
    assert any(each.startswith("The whole network in int4 is ") for each in said[:2]) and "whole.int8.onnx" in record.files
    assert any("meets size=200kB alone" in each and "points of accuracy" in each for each in said), "after the training"
    stages = {name: (tmp_path / name / "checkpoint.pt").stat().st_mtime_ns for name in ("whole", "path", "tuned")}
    (tmp_path / "tuned" / "checkpoint.pt").unlink()
    (tmp_path / "tuned" / "record.jsonl").unlink()
    again = slim_network(run)
    assert again.slimmed is not None and (again.slimmed.accuracy, again.slimmed.loss) == (after.accuracy, after.loss)
    assert all((tmp_path / name / "checkpoint.pt").stat().st_mtime_ns == stages[name] for name in ("whole", "path"))
    tuned = (tmp_path / "tuned" / "checkpoint.pt").stat().st_mtime_ns
    assert slim_network(run).speedup > 1, "a run that has ended is only measured again"
    assert (tmp_path / "tuned" / "checkpoint.pt").stat().st_mtime_ns == tuned
    with pytest.raises(UserError, match="holds a run with other settings: seed was 0, is 5; give another --out"):
        slim_network(run_of(tmp_path, training=TrainingRun(**{**vars(run.training), "seed": 5})))
    with pytest.raises(UserError, match="budget was size=200kB, is speedup=3x"):
        slim_network(run_of(tmp_path, budget=Budget("speedup", 3)))


def test_an_interrupted_stage_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: TrainingRun) -> None:
        raise Interrupted(2, f"resume {run.out} to go on")

    monkeypatch.setattr(slim_run, "train_run", broken)
    with pytest.raises(Interrupted, match="interrupted by SIGINT; the same command continues from the last epoch"):
        slim_run._stage(run_of(tmp_path).training, print, "training")


@pytest.mark.long
def test_a_table_is_measured_again_where_it_is_of_something_else(tmp_path: Path) -> None:
    run, data, said = run_of(tmp_path), load_data("digits"), []  # type: ignore[var-annotated]
    whole = build_model("lenet5", 0).eval()
    for each in (run, run, run_of(tmp_path, threads=2), run_of(tmp_path, threads=2)):
        slim_run._measured(each, whole, data, said.append)
    assert said[2::3] == ["measuring the layers"] * 2
    assert all(each.startswith("The whole network in int") for number, each in enumerate(said) if number % 3 != 2)
    assert json.loads((tmp_path / "table.json").read_text())["of"] == {"method": "auto", "target": "onnxruntime", "threads": 2}


@pytest.mark.long
def test_a_network_that_cannot_be_exported_is_refused_before_any_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slim_run, "_stage", lambda *_: pytest.fail("trained"))
    strategy = Strategy.of(world_size=1, global_batch_size=64)
    given = TrainingRun(
        model="opaque_modules:network", data="user_module:samples", strategy=strategy, epochs=1, out=str(tmp_path)
    )
    for budget in (Budget("size", 1e3), Budget("speedup", 2)):
        says = r"cannot be exported to ONNX: 3 \(Branching\): `if y.sum\(\) > 0:` .*; rewrite that line, or slim for a size"
        with pytest.raises(UserError, match=says):
            slim_network(run_of(tmp_path, training=given, budget=budget))
        with pytest.raises(UserError, match=says):
            predict(run_of(tmp_path, training=given, budget=budget))
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_refused_budget_may_be_another_in_the_same_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slim_run, "_stage", lambda *_: pytest.fail("trained"))
    for size in (20.0, 30.0):
        with pytest.raises(UserError, match="cannot be met"):
            slim_network(run_of(tmp_path, budget=Budget("size", size)))


@pytest.mark.everyday("save")
@pytest.mark.parametrize("failing", ["export", "latencies", "_layers", "save", "SlimRecord"])
def test_what_fails_in_the_end_leaves_nothing_half_written(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, whole = load_data("digits"), build_model("lenet5", 0).eval()
    torch.save(whole.state_dict(), tmp_path / "start.pt")
    run = run_of(tmp_path / "out")
    run.out.mkdir()
    took = Latency(1e-3, 1e-3, 1e-3, 1)
    slim = Slim(whole, (data.test_x[:1],), budget=run.budget, table={"whole": asdict(took)})
    with pytest.warns(UserWarning):
        small = slim.shrink().eval()
    assert slim.plan is not None
    point = slim_run._Point(run.budget, "", slim.plan, small, 0.5, 1.0, 1e-3, {}, ())
    before, said = (0.5, 1.0), [""]
    finish = partial(slim_run._finish, run, slim, str(tmp_path / "start.pt"), before, [point], data, said.append)
    fails = {failing}

    def export(self: SlimTarget, model: nn.Module, inputs: object, path: Path) -> Path:
        if model is small:
            stop("export")
        path.write_text(f"{sum(each.numel() for each in model.parameters())}")
        return path

    def stop(name: str) -> None:
        if name in fails:
            raise UserError(f"no {name}")

    def stopping(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: (stop(name), real(*given, **named))[1]

    monkeypatch.setattr(OnnxRuntime, "export", export)
    monkeypatch.setattr(SlimTarget, "latencies", stopping("latencies", lambda self, files, threads: dict.fromkeys(files, took)))
    monkeypatch.setattr(slim_run, "_layers", stopping("_layers", lambda *given: ()))
    monkeypatch.setattr(torch, "save", stopping("save", torch.save))
    monkeypatch.setattr(slim_run, "SlimRecord", stopping("SlimRecord", SlimRecord))

    def left() -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in run.out.iterdir()}

    with pytest.raises(UserError, match=f"no {failing}"):
        finish()
    assert not left()
    fails.clear()
    record = finish()
    done, names = left(), {"model.onnx", "plan.json", "weights.pt"}
    assert set(done) == names | {"whole.onnx", "slim.json"} and int(done["model.onnx"]) < int(done["whole.onnx"])
    assert record.files == {name: str(run.out / name) for name in names}
    assert record.sizes == {name: len(done[name]) for name in names}
    fails.add(failing)
    with pytest.raises(UserError, match=f"no {failing}"):
        finish()
    assert left() == done, "what an earlier run made stays"


@pytest.mark.long
def test_a_wider_network_in_fewer_bits_is_kept_with_its_plan(tmp_path: Path) -> None:
    data, whole = load_data("digits"), build_model("lenet5", 0).eval()
    torch.save(whole.state_dict(), tmp_path / "start.pt")
    run = run_of(tmp_path / "out", weights=(INT8,))
    run.out.mkdir()
    slim, _ = slim_run._measured(run, whole, data, print)
    with pytest.warns(UserWarning):
        small = slim.shrink().eval()
    assert slim.plan is not None
    point = slim_run._Point(run.budget, "", slim.plan, small, 0.5, 1.0, 1e-3, {}, ())
    record = slim_run._finish(run, slim, str(tmp_path / "start.pt"), (0.5, 1.0), [point], data, print, {INT8: point})
    assert {(each.way, each.file) for each in record.candidates} >= {(BOTH_EASED, "both.int8.onnx"), (SMALLER, "model.onnx")}
    assert set(record.files) >= {"both.int8.onnx", "both.int8.plan.json", "both.int8.weights.pt"}
    assert all((run.out / name).is_file() for name in record.files)


@pytest.mark.long
@pytest.mark.everyday("0.9-False")
@pytest.mark.parametrize(("slimmed", "teaches"), [(0.9, False), (0.1, True)])
def test_a_worse_network_does_not_teach(slimmed: float, teaches: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[TrainingRun] = []
    data, model = load_data("digits"), build_model("lenet5", 0).eval()
    run = run_of(tmp_path, distill=0.5)
    slim, _ = slim_run._measured(run, model, data, print)
    monkeypatch.setattr(slim_run, "_stage", lambda stage, *_: stages.append(stage))
    monkeypatch.setattr(slim_run, "load_weights", lambda *_: None)
    monkeypatch.setattr(slim_run, "_network", lambda *_: model)
    monkeypatch.setattr(slim_run, "_on_training", lambda net, _: 0.5 if net is model else slimmed)
    with warnings.catch_warnings(action="ignore"):
        point = slim_run._point(run, slim, "whole", "whole", 0, data, print)
    assert stages[-1].distill == (0.5 if teaches else 0) and bool(stages[-1].teacher) == teaches
    assert (slim_run.NO_TEACHER in point.notes) != teaches


@pytest.mark.parametrize(("lost", "said"), [(0.5, 0), (5.0, 1)])
def test_a_large_loss_is_said_with_the_next_step(lost: float, said: int, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    point = slim_run._Point(run.budget, "", None, None, 0.9 - lost / 100, 0.0, 0.0, {}, ())  # type: ignore[arg-type]
    notes = list(slim_run._lost_much(run, (0.9, 0.0), point))
    assert len(notes) == said and all("5.0 points" in note and "--tune-epochs" in note for note in notes)


def test_a_network_that_gives_no_scores_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    monkeypatch.setattr(slim_run, "build_model", lambda *_: Two())
    monkeypatch.setattr(slim_run, "_measured", lambda *_: pytest.fail("measured"))
    with pytest.raises(UserError, match="lenet5 gives a tuple for a sample of digits; give a network that gives one tensor"):
        slim_network(run_of(tmp_path))
