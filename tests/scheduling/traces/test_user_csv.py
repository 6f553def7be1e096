"""A CSV of one's own says every field of a job."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.traces.reader import read_trace
from paceline.scheduling.traces.user_csv import FIELDS


def test_every_field_has_a_column() -> None:
    assert set(FIELDS) == {field.name for field in fields(Job)}


def test_cells_become_fields(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "name,arrival_s,model,devices,samples,adapts,device_types,deadline_s,weight,owner\n"
        "a,0,resnet-50,4,1e6,devices+batch,T4+A100 SXM 80GB,3600,2,me\n"
        "b,5,bert-large,1,100,,,,,\n"
    )
    assert read_trace(path).jobs == (
        Job(
            name="a",
            model="resnet-50",
            devices=4,
            samples=1e6,
            adapts=frozenset({"devices", "batch"}),
            device_types=("T4", "A100 SXM 80GB"),
            deadline_s=3600,
            weight=2,
            owner="me",
        ),
        Job(name="b", arrival_s=5, model="bert-large", samples=100),
    )


def test_conditions_and_their_other_names_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "name,arrival_s,duration_s,time_limit_s,priority,preemptible,min_run_s,grace_s,topology,gpu_milli\n"
        "a,0,60,7200,-5,no,60,30,rack,460\n"
        "b,0,60,,,,,,,\n"
    )
    a, b = read_trace(path).jobs
    assert (a.limit_s, a.priority, a.preemptible, a.min_run_s, a.grace_s, a.topology) == (7200, -5, False, 60, 30, "rack")
    assert a.share == pytest.approx(0.46) and b == Job(name="b", duration_s=60)


@pytest.mark.parametrize(
    ("header", "row", "text"),
    [
        ("preemptible", "perhaps", "column preemptible: 'perhaps' is not one of yes, no"),
        ("priority", "1.5", "column priority: '1.5' is not a whole number"),
        ("devcies", "4", "unknown column 'devcies'"),
        ("adapts", "wings", "mine.csv, row 1 (line 2), column adapts: unknown choice 'wings'"),
        ("deadline_s", "5", "mine.csv, row 1 (line 2): job 'a': its deadline is not after its arrival"),
        ("max_devices", "-1", "column max_devices: '-1' is not a number from 0 up"),
    ],
)
def test_a_mistake_names_its_row_and_column(header: str, row: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"name,arrival_s,duration_s,{header}\na,9,60,{row}\n")
    with pytest.raises(UserError) as error:
        read_trace(path)
    assert text in str(error.value)


@pytest.mark.parametrize("name", ["", "  "])
def test_a_row_without_a_name_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"name,arrival_s,duration_s\na,0,60\n{name},0,60\n")
    with pytest.raises(UserError, match=r"mine.csv, row 2 \(line 3\), column name: '' is not a name"):
        read_trace(path)


def test_other_resources_are_amounts(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("name,arrival_s,duration_s,resources\na,0,9,cpu=8+mem=64G+node=2\n")
    assert read_trace(path).jobs[0].resources == (("cpu", 8.0), ("mem", 64 * 2.0**30), ("node", 2.0))
    for cell in ("gpu=1", "cpu=many"):
        path.write_text(f"name,arrival_s,duration_s,resources\na,0,9,{cell}\n")
        with pytest.raises(UserError, match="resources"):
            read_trace(path)
