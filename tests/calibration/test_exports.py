"""Exports of experiment trackers."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.calibration.imports.exports import read_export
from paceline.calibration.imports.step_times import MeasuredSteps
from paceline.errors import UserError

WANDB_PANEL = """"Step","run-a - perf/step_time_ms","run-a - perf/step_time_ms__MIN","run-a - perf/step_time_ms__MAX"
"1","200","190","210"
"2","","",""
"3","100","90","110"
"""
WANDB_HISTORY = """_step,_runtime,_timestamp,loss,train/global_step
0,10.0,1700000010,3.0,0
1,14.0,1700000014,NaN,10
2,16.0,1700000016,2.0,20
3,18.0,1700000018,1.9,
"""
MLFLOW = """run_id,key,value,step,timestamp
a,loss,3.0,0,1700000010000
a,accuracy,0.1,0,1700000010500
a,loss,2.0,10,1700000015000
a,loss,1.0,20,1700000019000
"""
TENSORBOARD = "Wall time,Step,Value\n1700000010.5,0,3.0\n1700000012.5,1,2.0\n1700000011.0,2,2.0\n1700000013.0,4,2.0\n"


def written(tmp_path: Path, text: str) -> Path:
    place = tmp_path / "export.csv"
    place.write_text(text)
    return place


def steps_of(path: Path, named: dict[str, str] | None = None, unit: str = "") -> MeasuredSteps:
    return read_export(path, named, unit).measured_steps


@pytest.mark.parametrize(
    ("text", "seconds", "source"),
    [
        (WANDB_PANEL, [0.2, 0.1], "column run-a - perf/step_time_ms"),
        (WANDB_HISTORY, [0.4, 0.2], "column _runtime over train/global_step"),
        (MLFLOW, [0.5, 0.4], "column timestamp over step"),
        (MLFLOW.replace("loss", "step_time_s"), [3.0, 2.0, 1.0], "column step_time_s"),
        (TENSORBOARD, [2.0, 1.0], "column Wall time over Step"),  # a clock that goes back says nothing
        ("s/it\n2\n1\n", [2.0, 1.0], "column s/it"),
        ("train_steps_per_second\n2\n4\n", [0.5, 0.25], "column train_steps_per_second"),
        ("Iteration time (ms),Step\n5,1\n4,2\n", [0.005, 0.004], "column Iteration time (ms)"),
    ],
)
def test_columns_are_detected(tmp_path: Path, text: str, seconds: list[float], source: str) -> None:
    steps = steps_of(written(tmp_path, text))
    assert list(steps.step_s) == pytest.approx(seconds)
    assert steps.source == f"export.csv, {source}"


def test_columns_may_be_named(tmp_path: Path) -> None:
    place = written(tmp_path, WANDB_HISTORY)
    assert list(steps_of(place, {"step": "_step"}).step_s) == pytest.approx([4.0, 2.0, 2.0])
    assert list(steps_of(place, {"time": "_timestamp"}).step_s) == pytest.approx([0.4, 0.2])
    own = written(tmp_path, "dt,n\n2,0\n3,1\n")
    assert list(steps_of(own, {"step_time": "dt"}, "ms").step_s) == pytest.approx([0.002, 0.003])
    assert list(steps_of(own, {"time": "dt", "step": "n"}, "us").step_s) == pytest.approx([1e-6])
    assert list(steps_of(written(tmp_path, "it/s,a\n2,1\n"), {"step_time": "it/s"}).step_s) == [0.5]


@pytest.mark.parametrize(
    ("text", "named", "unit", "said"),
    [
        ("loss,step\n1,2\n", {}, "", "no column of step times, and no clock with a column of steps; it has loss, step"),
        ("step_time\n1\n", {}, "", "column step_time has no unit; give --unit s or --unit ms"),
        ("a - step_time_s,b - step_time_s\n1,2\n", {}, "", "several columns of step times: a - step_time_s, b - step_time_s"),
        ("a,b\n1,2\n", {"step_time": "c"}, "s", "has no column c; it has a, b"),
        ("a,b\n1,2\n", {"time": "a", "step": "b"}, "", "column a has no unit"),
        ("a,b\n1,2\n", {"clock": "a"}, "", "unknown role of a column 'clock'"),
        ("a,b\n1,2\n", {"step_time": "a"}, "h", "unknown unit 'h'"),
    ],
)
def test_an_export_that_does_not_say_is_refused(tmp_path: Path, text: str, named: dict[str, str], unit: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        steps_of(written(tmp_path, text), named, unit)
