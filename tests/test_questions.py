"""The ten questions of the documentation: what is published is what the benchmark says, and the table what the answers say."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from statistics import mean, median

import pytest

from doc_outputs import commands, shown
from page_figures import says

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from unseen_runs import IN_THE_FIT, RUNS, Run, predicted, read

PAGE = "docs/questions.md"
TEXT = (Path(__file__).parents[1] / PAGE).read_text()
PUBLISHED = {tuple(sorted(shlex.split(run.command))): run for run in (*RUNS, *IN_THE_FIT)}


def compared() -> list[tuple[Run, str]]:
    """The published runs of the page, each with its answer on one line."""
    answers = {tuple(sorted({*shlex.split(c)} - {"paceline", "predict", "--brief"})): text for c, text in shown(PAGE).items()}
    keys = {tuple(sorted(set(key))): run for key, run in PUBLISHED.items()}
    return [(keys[key], text) for key, text in answers.items() if key in keys]


def test_there_are_ten_and_each_is_asked() -> None:
    assert re.findall(r"^## (\d+)\. .*\?$", TEXT, re.MULTILINE) == [str(n) for n in range(1, 11)]
    sections = TEXT.split("\n## ")[1:]
    assert all("$ paceline ask " in section and "**Published**: " in section for section in sections)
    assert shown(PAGE).keys() == set(commands(PAGE))


def test_the_table_has_what_is_published_and_what_is_answered() -> None:
    rows = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if re.match(r"\| \[\d", line)]
    runs = compared()
    assert len(rows) == len(runs) == 9  # the tenth is a time to train
    for (_, published, answer), (run, text) in zip(rows, runs, strict=True):
        number, unit = published.split()
        assert float(number) * {"s": 1.0, "ms": 1e-3}[unit] == pytest.approx(run.step_s, rel=0.005)
        assert f": {answer.replace(' (', ' a step (')}, " in text


def test_a_short_form_of_the_benchmark() -> None:
    row = predicted(RUNS[0])
    assert row["error"] == pytest.approx(float(str(row["predicted_s"])) / RUNS[0].step_s - 1, abs=1e-3)
    assert row["inside"] == (float(str(row["low_s"])) <= RUNS[0].step_s <= float(str(row["high_s"])))


def test_the_validation_has_the_rows_of_the_benchmark() -> None:
    root = Path(__file__).parents[1]
    text = (root / "docs/validation.md").read_text()
    rows = list(read(root / "benchmarks/results/unseen_runs.csv"))
    errors = [abs(float(row["error"])) for row in rows]
    inside = sum(row["inside"] == "True" for row in rows)
    assert [row["run"] for row in rows] == [run.name for run in RUNS]
    assert says(
        text, f"The mean error of the {len(rows)} is {100 * mean(errors):.1f} %, the median {100 * median(errors):.1f} %"
    )
    assert says(text, f"; {inside} lie inside the 80 % range")
