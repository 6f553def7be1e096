"""Forms are told by headers; a part of a file is chosen by values; mistakes name the row and the column."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.scheduling.traces.reader import FORMS, read_trace

WORKLOADS = """set,workload,job_id,submit_time_s,duration_s,num_gpus,model,batch_size
1.0x,1,a-0,107,853.6,6,cifar10,2048
1.0x,1,ncf-1,110,20,1,ncf,256
1.0x,2,a-0,9,9,1,bert,24
2.0x,1,a-0,9,9,1,bert,24
"""


def wrong(path: Path, text: str, **where: str) -> str:
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_trace(path, where)
    return str(error.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "t.csv"


def test_a_form_with_more_columns_is_preferred(file: Path) -> None:
    file.write_text("job_id,submit_time_s,duration_s,num_gpus,vc\n0,5,60,8,one\n")
    (job,) = read_trace(file).jobs
    assert (job.name, job.arrival_s, job.duration_s, job.devices, job.virtual_cluster) == ("0", 5, 60, 8, "one")
    assert job.adapts == frozenset()


def test_one_workload_of_many_is_chosen(file: Path) -> None:
    file.write_text(WORKLOADS)
    jobs = read_trace(file, {"set": "1.0x", "workload": "1"}).jobs
    assert [(job.name, job.devices, job.batch, job.model) for job in jobs] == [
        ("a-0", 6, 2048, "cifar10"),
        ("ncf-1", 1, 256, "ncf"),
    ]
    assert jobs[0].adapts == {"devices", "batch"} and jobs[1].adapts == frozenset()


def test_a_choice_that_lacks_is_asked_for_and_a_wrong_one_is_named(file: Path) -> None:
    assert wrong(file, WORKLOADS) == "t.csv holds 2 traces by set: 1.0x, 2.0x; choose `where` set=1.0x"
    assert "by workload: 1, 2" in wrong(file, WORKLOADS, set="1.0x")
    assert "unknown set of t.csv '3x'; legal: 1.0x, 2.0x" in wrong(file, WORKLOADS, set="3x")
    assert "unknown column 'sett'" in wrong(file, WORKLOADS, sett="1.0x")


def test_no_form_names_the_nearest(file: Path) -> None:
    text = wrong(file, "job_id,submit_time_s,duration_s,vc\n0,1,1,1\n")
    assert "the nearest form is philly (Philly, rigid jobs with durations), which also has num_gpus" in text
    assert "files that are read: your own CSV, sacct, squeue, Kueue" in wrong(file, "colour,shape\nred,round\n")
    printed = "NAME   QUEUE   RESERVED IN   ADMITTED   AGE\njob-a  team  cq  True  5s\n"
    assert "write it with kubectl get workloads" in wrong(file, printed)
    assert "the nearest form is sacct (Slurm's accounting): write it with sacct -a" in wrong(file, "JobID|Exit\n7|0\n")
    assert wrong(file, "Name,Arrival_s\na,0\n").endswith("write Name as name, Arrival_s as arrival_s")


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("0,x,60,8,one", "t.csv, row 2 (line 3), column submit_time_s: 'x' is not a number from 0 up"),
        ("0,1,-5,8,one", "t.csv, row 2 (line 3), column duration_s: '-5' is not a number from 0 up"),
        ("0,1,60,2.5,one", "column num_gpus: '2.5' is not a whole number"),
        ("0,1,60,,one", "column num_gpus: '' is not a whole number from 1 up"),
        ("0,1,0,8,one", "t.csv, row 2 (line 3): job '0' states no work"),
        (",1,60,8,one", "t.csv, row 2 (line 3): a job without a name"),
        ("0,1,60", "t.csv, row 2 (line 3): 3 values for 5 columns"),
        ("1,1,60,8,one", "two jobs are named '1' (t.csv, row 1 (line 2), and t.csv, row 2 (line 3)); give each"),
        ("0,1,60,1e300,one", "t.csv, row 2 (line 3), column num_gpus: '1e300' is not a whole number from 1 to 9,007"),
    ],
)
def test_a_wrong_row_is_named(cell: str, text: str, file: Path) -> None:
    assert text in wrong(file, f"job_id,submit_time_s,duration_s,num_gpus,vc\n1,5,60,8,one\n{cell}\n")


def test_a_file_that_is_none(file: Path) -> None:
    assert wrong(file, "").startswith("t.csv is empty")
    with pytest.raises(UserError, match=r"cannot read .*nowhere\.csv"):
        read_trace(file.parent / "nowhere.csv")


def test_every_form_is_told_from_every_other() -> None:
    columns = [frozenset(form.columns) for form in FORMS if form.columns]
    assert len(set(columns)) == len(columns) and len({form.name for form in FORMS}) == len(FORMS)
    assert all(bool(form.columns) != (form.fits is not None) and bool(form.log) != bool(form.read) for form in FORMS)
    assert all(form.about for form in FORMS)


def test_signs_between_columns_do_not_matter(file: Path) -> None:
    for sign in ",;\t|":
        file.write_text("name,arrival_s,duration_s\na,0,60\n".replace(",", sign))
        assert read_trace(file).jobs[0].duration_s == 60
