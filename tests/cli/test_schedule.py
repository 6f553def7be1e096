"""``paceline schedule``: simulate, compare, why, and the report; mistakes are one line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from command import answer, run
from paceline.cli import main
from paceline.cli.commands.schedule import _progress
from paceline.exit_codes import ExitCode
from schedule_toys import TRACE
from scheduling_toys import write_profiles

ON = f"{TRACE} --cluster 2x4xT4"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_a_schedule_is_simulated_saved_and_explained(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, err = run(capsys, f"schedule {ON} --policy las --out {out}")
    assert (code, err) == (0, "") and max(map(len, text.splitlines())) <= max(80, len(f"schedule: {out}/schedule.json"))
    for words in ("12 jobs on 2 x 4 T4 under las", "completion", "99% within", "device-hours", "kWh", "$", "waited longest"):
        assert words in text
    data = answer(capsys, f"schedule run {ON} --policy las --out {out}")
    assert data["metrics"]["ended"] == 12 and len(data["jobs"]) == 12 and data["schedule"] == str(out / "schedule.json")
    told = answer(capsys, f"schedule why {out} nightly-2")
    assert told["job"]["jct_s"] == next(job["jct_s"] for job in data["jobs"] if job["name"] == "nightly-2")
    code, text, err = run(capsys, f"schedule why {out} nightly-2")
    assert code == 0 and "waited" in text and "Rigid: it gets the 8 that it asked for" in text
    assert run(capsys, f"schedule why {out} nightly-2 --brief")[1].count("\n") == 1


def test_why_finds_the_usual_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no run directory runs/schedule" in run(capsys, "schedule why large")[2]
    text = run(capsys, f"schedule {ON} --policy srtf --why")[1]
    assert (
        "paceline schedule why " in text
        and "why runs" not in text
        and "the durations that 12 jobs state as known" in " ".join(text.split())
    )
    named = answer(capsys, "schedule why runs/schedule large")
    assert answer(capsys, "schedule why large") == answer(capsys, "schedule why large runs/schedule") == named
    assert "runs/schedule is a run directory, and no job is named" in run(capsys, "schedule why runs/schedule")[2]


@pytest.mark.long
def test_policies_are_compared_and_each_is_asked_why(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, err = run(capsys, f"schedule compare {ON} --policies fifo,las,goodput --out {out} --report")
    assert (code, err) == (0, "") and "Mean completion time against fifo, job by job (12 jobs)" in text
    page = (out / "report.html").read_text()
    assert run(capsys, f"report {out}")[0] == 0 and (out / "report.html").read_text() == page
    assert max(len(line) for line in text.splitlines() if str(out) not in line) <= 80
    data = answer(capsys, f"schedule compare {ON} --policies fifo,las,goodput --out {out}")
    assert [pair["policy"] for pair in data["paired"]] == ["las", "goodput"]
    assert {pair["verdict"] for pair in data["paired"]} <= {"shorter", "longer", "not settled"}
    las = data["policies"][1]["metrics"]["mean_jct_s"] - data["policies"][0]["metrics"]["mean_jct_s"]
    assert data["paired"][0]["difference_s"] == pytest.approx(las)
    assert (
        f"{out} holds several policies: fifo, las, goodput; choose --policy fifo" in run(capsys, f"schedule why {out} large")[2]
    )
    assert answer(capsys, f"schedule why {out} large --policy LAS")["policy"] == "las"


def test_jobs_that_learn_no_more_are_ended_with_their_reason(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "toys.csv"
    trace.write_text("name,arrival_s,model,devices,batch,target\n" + "".join(f"t{n},0,toy,8,64,its end\n" for n in range(7)))
    words = (
        f"{trace} --cluster 2x4xT4 --profiles {write_profiles(tmp_path, epochs=12)} --stop-early 2:60% --round 10s --out {out}"
    )
    code, text, _ = run(capsys, f"schedule {words} --policy fifo --report")
    why = "it no longer learned: its last 2 reports added less than 60 % of its earlier progress"
    assert code == 0 and "removed" in text and f"t0 at 00:01:10: {why}" in " ".join(text.split()) and "2 more; --json" in text
    assert why in (out / "report.html").read_text().replace('<span class="n">', "").replace("</span>", "")
    data = answer(capsys, f"schedule compare {words} --policies fifo,las")
    assert [[job["removed"] for job in policy["jobs"]] for policy in data["policies"]] == [[why] * 7] * 2


def test_fairness_says_how_it_was_found(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"schedule {ON} --policy fifo --out {out}"
    estimate, alone = (answer(capsys, f"{command} --fairness {how}") for how in ("estimate", "alone"))
    assert (estimate["fairness"], alone["fairness"]) == ("estimate", "alone")
    assert "of jobs are unfair; estimated" in run(capsys, command)[1]
    text = run(capsys, f"{command} --fairness alone --why")[1]
    assert "of jobs are unfair; each job simulated alone" in text and "a simulation of the job alone" in " ".join(text.split())


def test_the_seed_and_the_options_reach_the_simulator(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two jobs of six devices on three nodes of four share the second node."""
    trace = tmp_path / "three.csv"
    trace.write_text("name,arrival_s,devices,duration_s,owner\nx,0,6,900,me\ny,0,6,900,me\nz,60,2,60,you\n")

    def figures(options: str) -> dict[str, float]:
        command = f"schedule {trace} --cluster 3x4xT4 --policy fifo --out {out} {options}"
        data: dict[str, float] = answer(capsys, command)["metrics"]
        return data

    def mean(options: str) -> float:
        return figures(options)["mean_jct_s"]

    plain = mean("")
    options = ("--round 7min", "--restart 5min", "--interference 0.5", "--outage 0:0-2h", "--maintenance 1:5min-3h")
    assert all(mean(option) > plain for option in options)
    draws = [mean(f"--failures 20min --repair 10min --seed {seed}") for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert mean("--checkpoint 1h --outage 0:10min-11min") > mean("--checkpoint 1min --outage 0:10min-11min")
    assert mean("--where owner=you") < plain
    dollars = figures("--price 2")
    assert dollars["usd"] == pytest.approx(2 * 3 * dollars["device_hours_per_job"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("nowhere.csv --cluster 2x4xT4 --policy las", "cannot read nowhere.csv"),
        (f"{ON} --policy lass", "unknown policy 'lass'"),
        (f"{ON} --policy las --knowledge guessed", "unknown knowledge 'guessed'"),
        (f"{ON} --policy las --knowledge predicted", "choose --knowledge online or measured"),
        (f"{ON} --policy las --price H100=1", "a price of H100 SXM; price what the cluster has: T4"),
        (f"{ON} --policy las --where owner", "write COLUMN=VALUE"),
        (f"{ON} --policy las --where owner=us", "unknown owner of jobs.csv 'us'; legal: vision, text"),
        (f"{ON} --policy las --outage 9:1h-2h", "nodes are 0 to 1"),
        (f"{TRACE} --cluster 1x8xT4 --policy las --outage 9:1h-2h", "nodes are 0, and an outage ends after"),
        (f"{ON} --policy las --outage 9", "write NODE:START-END"),
        (f"{ON} --policy las --interference 1", "--interference 1"),
        (f"{ON} --policy las --seed -1", "--seed -1"),
        (f"{ON} --policy las --round -5s", "expected one argument"),
        (f"{ON} --policy las --round 1e-9s", "a --round of 1.00 ns; give at least 0.01s"),
        (
            f"{ON} --policy las --restart 1000d",
            "a --restart of 2.74 years takes 1,000 rounds of 60.0 s or more; give a shorter --r",
        ),
        (
            f"{ON} --policy las --stop-early 5",
            "12 of 12 jobs run for their duration, and nothing says how they learn; leave --stop",
        ),
        (f"{ON} --policy las --stop-early soon", "to stop early at 'soon'; write REPORTS or REPORTS:SHARE"),
        (f"{ON} --policy las --fairness just", "unknown fairness 'just'; legal: estimate, alone"),
        (
            f"{ON} --policy las --outage 0:5h-2h",
            "an outage of node 0 from 5 h to 2 h; nodes are 0 to 1, and an outage ends after",
        ),
        (f"{ON} --policy las --outage 0:5h-1e9d", "it ends after at most 31 years"),
        (f"{ON} --policy las --repair 1e300d --failures 1d", "--repair 1e300d; give at most 31 years"),
        (f"{ON} --policy las --restart 5", "--restart: '5' is not a time"),
        (f"{ON} --policy las --seed x", "argument --seed: 'x' is not a whole number"),
        (f"{TRACE} --cluster 2x4xT4,fast --policy las", "unknown network 'fast'"),
        (f"compare {TRACE} --cluster 2x8xT4+1x1xK80 --policies fifo,goodput", "under goodput: the policy goodput shares out"),
        (f"{ON} --policy las --round 5", "5"),
        (f"{TRACE} --cluster 2x4 --policy las", "unknown device '4'"),
        (
            f"{TRACE} --cluster 1x4xT4 --policy las",
            "is too large); give a larger cluster, or leave such jobs out with --drop-too-",
        ),
        (f"{ON} --policy las --polcy fifo", "unknown option '--polcy'"),
        (f"compare {ON} --policies fifo,fifo", "name each policy once"),
        (f"compare {ON} --policies fifo --jobs 0", "0 processes"),
        ("why nowhere large", "no run directory nowhere; run paceline schedule TRACE --cluster 2x4xT4 --out nowhere first"),
        (f"why {TRACE} large", "jobs.csv is a file; give the directory that paceline schedule wrote"),
        (f"{TRACE} --policy las", "the following arguments are required: --cluster"),
    ],
)
def test_mistakes_are_one_line(
    words: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, f"schedule {words}")
    expected = ExitCode.NO if "too large" in text else ExitCode.MISTAKE
    assert (code, out, err.count("\n")) == (expected, "", 1) and text in err, err


def test_a_column_that_no_job_has_is_refused_and_the_legal_ones_are_listed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "mine.csv"
    trace.write_text("name,arrival_s,colour\na,0,red\n")
    code, _, err = run(capsys, f"schedule {trace} --cluster 1x4xT4")
    assert code == 2 and "unknown column 'colour'; legal: name," in err and err.count("virtual_cluster") == 1


def test_progress_says_the_day_and_the_share_of_jobs_done() -> None:
    said: list[str] = []
    step = _progress(argparse.Namespace(say=said.append), 200)
    for moment_s, ended in ((0.0, 0), (60.0, 1), (86_400.0, 1), (90_000.0, 2), (90_060.0, 3)):
        step(moment_s, ended)
    assert said == [
        "day 0, 0 % of the jobs done (0 of 200)",
        "day 1, 0 % of the jobs done (1 of 200)",
        "day 1, 1 % of the jobs done (2 of 200)",
    ]


def test_a_damaged_file_is_named(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out.mkdir()
    for text in (
        "",
        "{",
        "[]",
        '{"schema": 1}',
        '{"schema": 2}',
        '{"schema": 1, "groups": 3, "outages": [], "jobs": [], "policies": {}}',
        '{"schema": 1, "groups": [[]], "outages": [], "jobs": [], "policies": {}}',
        '{"schema": 1, "groups": [], "outages": [], "jobs": [], "policies": []}',
    ):
        (out / "schedule.json").write_text(text)
        for command in (f"schedule why {out} a", f"report {out}"):
            code, _, err = run(capsys, command)
            assert code == 2 and "schedule.json cannot be read" in err and err.count("\n") == 1
            assert "object" not in err and "argument" not in err, err
    (out / "schedule.json").unlink()
    assert "no schedule.json" in run(capsys, f"schedule why {out} a")[2]


def test_a_job_may_have_a_name_with_spaces(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "odd.csv"
    trace.write_text("name,arrival_s,devices,duration_s\nx,0,4,600\nmy job,1,4,60\n")
    shown = run(capsys, f"schedule {trace} --cluster 1x4xT4 --policy fifo --out {out}")[1]
    assert f"schedule why {out} 'my job'".replace(" ", "") in "".join(shown.split())
    assert main(["schedule", "why", str(out), "my job"]) == 0
    assert json.loads((out / "schedule.json").read_text())["jobs"][1]["name"] == "my job"
