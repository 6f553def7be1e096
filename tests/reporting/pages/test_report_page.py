"""The report: well formed, offline, safe against names from files, the same twice, and open about what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import samples
from paceline.errors import UserError
from paceline.reporting import render_report, write_report
from paceline.reporting.figures.report_figures import PALETTE
from paceline.reporting.pages.report_page import histogram_problem
from paceline.rundir import RunDir, RunDirContents

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Collects tags, ids, text and addresses, and notes what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.urls: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self.stack or self.stack.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.text += data

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        self.ids += [v for k, v in attrs if k == "id" and v]
        self.urls += [v for k, v in attrs if k in {"src", "href", "xlink:href", "action", "data", "poster"} and v]


def contents(*labels: str) -> RunDirContents:
    predictions = {k: samples.metrics(k) for k in labels}
    records = {k: samples.record(k) for k in labels}
    return RunDirContents(
        predictions=predictions,
        records=records,
        predicted={k: r.timeline for k, r in predictions.items()},
        measured={k: r.timeline for k, r in records.items()},
        clusters={k: {"nodes": 4, "link": {"rate": "1Gb/s"}} for k in labels},
    )


@pytest.fixture(scope="module")
def html() -> str:
    return render_report(contents("dense", "terngrad"))


def test_is_well_formed(html: str) -> None:
    page = Page(html)
    assert page.problems == []
    assert page.stack == []
    assert len(page.ids) == len(set(page.ids)), "an id is used twice"
    for target in re.findall(r"url\(#([^)]+)\)", html) + [u[1:] for u in page.urls]:
        assert target in page.ids


def test_loads_nothing(html: str) -> None:
    page = Page(html)
    assert all(url.startswith("#") for url in page.urls)
    assert "http:" not in html
    assert "https:" not in html
    assert "@import" not in html
    assert not [tag for tag, _ in page.tags if tag in {"link", "img", "iframe", "object", "embed"}]
    assert [a for tag, a in page.tags if tag == "script"] == [{}]
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    assert "default-src &#39;none&#39;" in html or "default-src 'none'" in html


def test_both_colour_schemes(html: str) -> None:
    assert "@media (prefers-color-scheme: dark)" in html
    assert ':root[data-theme="dark"]' in html
    assert 'id="theme"' in html
    for variable in PALETTE:
        assert html.count(f"--{variable}:") == 3, variable  # light, dark by the system, dark by the button
    svg = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}\b", svg), "a fixed colour would be wrong in one of the schemes"


def test_pictures_are_there_and_described(html: str) -> None:
    pictures = [a for tag, a in Page(html).tags if tag == "svg"]
    assert len(pictures) == 4  # timeline, accuracy, loss, one histogram
    assert all(a["role"] == "img" and a["aria-label"] and (a.get("viewbox") or a.get("height")) for a in pictures)
    labels = " ".join(str(a["aria-label"]) for a in pictures)
    assert "dense, predicted: 12.9 ms" in labels
    assert "terngrad ends at 97." in labels
    for panel in ("original", "clipped", "ternary", "averaged"):
        assert panel in html
    assert "<title>exchange fc1: " in html


def test_numbers_are_there(html: str) -> None:
    text = Page(html).text
    for part in ("mnist-mlp", "12.0 ms", "2.59 MB", "181 kB", "14.3x", "97.8 %", "+7.5 %", "unknown", "samples/s"):
        assert part in text
    assert "the step is 2.15 times shorter, a worker sends 14.3 times fewer bytes" in text
    assert "Example CPU @ 2.4 GHz" in text
    assert "link rate" in text
    assert "from the cluster file" in text


def test_names_are_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&$x_1$"
    base = contents("dense", "terngrad")
    event = replace(samples.timeline(1, 1, 1)[0], name=evil, start_s=0.0, duration_s=1.0)
    bad = RunDirContents(
        predictions={evil: replace(base.predictions["terngrad"], workload=evil, bottleneck=evil, assumptions=(evil,))},
        records={
            evil: replace(
                base.records["terngrad"],
                workload=evil,
                strategy={evil: evil},
                environment={evil: evil, "date": evil},
                histogram={**samples.histogram(), "layer": evil},
            )
        },
        predicted={evil: (event,)},
        measured={evil: (replace(event, lane=evil),)},
        clusters={evil: {evil: evil}},
    )
    html = render_report(bad)
    assert "<script>alert" not in html
    page = Page(html)
    assert page.problems == []
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert evil in page.text


def test_long_timeline_is_cut_and_says_so() -> None:
    bars = tuple(replace(samples.timeline(1, 1, 1)[0], start_s=k * 1e-3, duration_s=0.0) for k in range(5000))
    html = render_report(RunDirContents(records={"dense": samples.record("dense")}, measured={"dense": bars}))
    assert "only the first 400 bars of a row are drawn; measured.trace.json has all" in html
    assert len(html) < 1_000_000


def test_long_names_with_one_start_keep_their_curves() -> None:
    runs = {"a very long name of a run, number " + k: samples.record("dense") for k in "12"}
    assert Page(render_report(RunDirContents(records=runs))).text.count("a very long name of a run, nu… 2") == 2


def test_same_contents_same_bytes(html: str) -> None:
    assert render_report(contents("dense", "terngrad")) == html


@pytest.mark.long
def test_written_beside_the_data(run_dir: RunDir) -> None:
    path = write_report(run_dir)
    assert path == run_dir.path / "report.html"
    text = path.read_text(encoding="utf-8")
    assert Page(text).problems == []
    assert write_report(run_dir.path).read_text(encoding="utf-8") == text
    with pytest.raises(UserError, match="no run directory"):
        write_report(run_dir.path / "absent")


@pytest.mark.everyday("1", "8")
@pytest.mark.parametrize("n", [1, 3, 6, 8])
def test_any_number_of_runs(n: int) -> None:
    runs = {f"run {k}": samples.record("dense") for k in range(n)}
    page = Page(render_report(RunDirContents(records=runs, measured={k: r.timeline for k, r in runs.items()})))
    assert page.problems == []
    assert len(page.ids) == len(set(page.ids))
    assert all(f"run {k}" in page.text for k in range(n))


def test_says_what_is_missing() -> None:
    only_predicted = Page(render_report(RunDirContents(predictions={"dense": samples.metrics("dense", timeline=())})))
    for part in (
        "predicted, not measured",
        "No timeline was kept",
        "predicted.trace.json has no events",
        "record.jsonl is missing",
        "No histogram",
        "No environment",
        "Not measured: record.jsonl has no such run",
    ):
        assert part in only_predicted.text
    record = samples.record("dense", timeline=(), curve=(), environment={})
    only_measured = Page(render_report(RunDirContents(records={"dense": record})))
    for part in (
        "not predicted",
        "measured.trace.json has no events",
        "No accuracy curve: no epoch was recorded",
        "no gradient histogram",
        "Not predicted: prediction.json has no such run",
    ):
        assert part in only_measured.text
    assert only_predicted.problems == only_measured.problems == []
    assert "no run" in Page(render_report(RunDirContents())).text


def test_values_that_are_not_numbers() -> None:
    nan = float("nan")
    record = samples.record("dense", step_time_s=nan, low_s=nan, accuracy=nan, curve=({"epoch": 1.0, "loss": nan},))
    page = Page(render_report(RunDirContents(records={"dense": record}, predictions={"dense": samples.metrics("dense")})))
    assert page.problems == []
    assert "unknown" in page.text
    assert "nan" not in re.sub(r"<style.*?</style>", "", page.text).replace("finance", "")


@pytest.mark.parametrize(
    ("panels", "why"),
    [
        ({}, "no panels"),
        ([], "no panels"),
        ({"original": {"edges": [0, 1]}}, "no edges or counts"),
        ({"original": {"edges": [0, 1], "counts": []}}, "do not fit"),
        ({"original": {"edges": [1, 0], "counts": [2]}}, "do not fit"),
        ({"original": {"edges": [0, float("nan")], "counts": [2]}}, "do not fit"),
    ],
)
def test_a_broken_histogram_has_its_reason(panels: object, why: str) -> None:
    assert why in histogram_problem({"layer": "fc1", "panels": panels})


def test_broken_histogram_is_said() -> None:
    data = {"layer": "fc1", "panels": {"original": {"edges": [0, 1], "counts": []}}}
    page = Page(render_report(RunDirContents(records={"terngrad": samples.record("terngrad", histogram=data)})))
    assert histogram_problem(data) in page.text


def test_import_is_light() -> None:
    """The command line imports this package for every command; the pictures' library is loaded for a picture."""
    heavy = "('torch', 'matplotlib', 'jinja2', 'numpy')"
    code = f"import sys, paceline.reporting; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
