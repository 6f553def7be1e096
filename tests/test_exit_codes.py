"""One convention of exit codes: 0 for an answer that meets what was asked, 2 for a mistake, 3 for an answer that is no."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import objects, run
from paceline.exit_codes import ExitCode, exit_code_table

UNFIT = "llama-3-8b --device A100"
"""A job that does not fit: eight billion parameters with their state on one device."""
RACE = "resnet-50 --on A100 --samples 100M"
JOBS = """name,arrival_s,model,devices,duration_s,deadline_s
a,0,resnet-50,1,3600,60
b,0,resnet-50,1,3600,
large,0,resnet-50,9,3600,
"""
ANSWERED = {
    f"predict {UNFIT}": "DOES NOT FIT: ",
    f"memory {UNFIT}": "DOES NOT FIT: ",
    f"explain {UNFIT}": "DOES NOT FIT: ",
    f"whatif {UNFIT} --change nodes+1 --network 100Gb/s": "DOES NOT FIT: ",
    "ask llama-3-8b --on A100 --samples 10k": "DOES NOT FIT on 1 A100",
    f"ask {RACE} --by 1h": "TOO LATE; ",
    f"ask {RACE} --budget 1": "OVER BUDGET; ",
    "schedule JOBS --cluster 1xT4 --drop-too-large": "TOO LATE: 1 of 1 deadlines; ",
    "schedule compare JOBS --cluster 1xT4 --drop-too-large --policies fifo,las": "TOO LATE under each policy; ",
}
"""Commands whose answer is no, with the first words of its one line."""
NEAREST = {
    f"plan {UNFIT} --max-nodes 1 --global-batch 8": "fits on no device here",
    "plan resnet-50 --cluster A100 --samples 100M --goal deadline=1h --global-batch 256": "no strategy meets deadline=60 min",
    "plan resnet-50 --cluster A100 --samples 100M --goal budget=1 --global-batch 256": "no strategy meets budget=$1",
    "schedule JOBS --cluster 1xT4": "asks for 9 devices",
    "schedule JOBS --cluster 1xT4 --where name=large --drop-too-large": "larger than the cluster",
}
"""Commands without an answer, which name the nearest on stderr."""
MET = (
    "predict resnet-50 --device A100",
    "ask resnet-50 --on A100 --samples 10k --by 1h --budget 10",
    "plan resnet-50 --cluster A100 --samples 10k --goal deadline=1h --global-batch 256",
    "schedule JOBS --cluster 1xT4 --where name=b",
    "schedule compare JOBS --cluster 1xT4 --where name=b --policies fifo,las",
)
WRONG = ("predict resnet-50 --device A1000", "ask resnet-50 --on A100 --by soon", "schedule nowhere.csv --cluster 1xT4", "halp")


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A trace: one of its jobs has a deadline that no policy keeps, one is too large."""
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text(JOBS)
    return "jobs.csv"


@pytest.mark.long
def test_an_answer_that_is_no_begins_with_it_and_has_code_3(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, first in ANSWERED.items():
        code, out, err = run(capsys, f"{command.replace('JOBS', jobs)} --brief")
        assert (code, err) == (ExitCode.NO, "") and out.startswith(first) and out.count("\n") == 1, command
    code, out, err = run(capsys, f"predict {UNFIT} --json")
    assert (code, err) == (ExitCode.NO, "") and objects(out)[0]["fit"] == "does not fit"


def test_a_command_without_an_answer_names_the_nearest(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, words in NEAREST.items():
        code, out, err = run(capsys, command.replace("JOBS", jobs))
        assert (code, out) == (ExitCode.NO, "") and words in err and err.count("\n") == 1, command


def test_other_answers_and_mistakes(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in MET:
        code, out, _ = run(capsys, f"{command.replace('JOBS', jobs)} --brief")
        assert code == ExitCode.DONE and out, command
    for command in WRONG:
        code, out, err = run(capsys, command)
        assert (code, out) == (ExitCode.MISTAKE, "") and err.count("\n") == 1, command


def test_each_code_has_a_meaning_and_the_docs_list_them() -> None:
    page = (Path(__file__).parents[1] / "docs" / "scripts.md").read_text()
    for code, meaning in exit_code_table():
        assert f"| {code} | {meaning} |" in page
