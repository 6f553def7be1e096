"""Causes that are put in are found, and a second measurement tells two of them apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

import paceline
from paceline.errors import UserError
from paceline.planning.compare.changes import parse_change
from paceline.planning.diagnose.diagnose import diagnose, parse_also
from paceline.planning.diagnose.diagnosis import Diagnosis
from paceline.planning.diagnose.evidence import Evidence
from paceline.planning.diagnose.measured import parse_speed
from planning.diagnose.test_question import TWO, question


def run_with(*changes: str, question: str = "") -> str:
    """Return the measured seconds of a run that has the changes, without anyone knowing."""
    asked = TWO.changed([parse_change(text) for text in question.split(",") if text])
    return f"{asked.changed([parse_change(text) for text in changes]).step.step_time_s!r} s"


def score(diagnosis: Diagnosis, name: str) -> float:
    return next(one.score for one in diagnosis.causes if one.name == name)


def found(measured: str, *also: str) -> Diagnosis:
    return diagnose(TWO, parse_speed(measured), [parse_also(text) for text in also])


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ("network=25Gb/s TCP", "network-tcp"),
        ("precision=fp32", "fp32"),
        ("link=PCIe 4.0 x16 via host", "no-p2p"),
        ("attention=eager", "eager-attention"),
    ],
)
def test_a_cause_is_among_the_first(change: str, cause: str) -> None:
    busy = question("gpt2-large", "2x8 A100, 8x200Gb/s InfiniBand", global_batch_size=32)
    slow = busy.changed([parse_change(change)]).step
    diagnosis = diagnose(busy, parse_speed(f"{slow.step_time_s!r} s"))
    assert slow.step_time_s > busy.step.step_time_s
    assert cause in [one.name for one in diagnosis.causes[:4]]
    assert sum(one.score for one in diagnosis.causes) == pytest.approx(1.0)


def test_a_second_measurement_narrows() -> None:
    slow, one_node = run_with("network=25Gb/s TCP"), run_with(question="nodes=1,global-batch=64")
    alone = {one.name: one.score for one in found(slow).causes}
    both = {one.name: one.score for one in found(slow, f"nodes=1, global-batch=64: {one_node}").causes}
    assert both["network-tcp"] > alone["network-tcp"]
    assert both["fp32"] < 0.1 * alone["fp32"] + 1e-9


def test_another_number_of_devices_keeps_the_batch_of_a_device() -> None:
    assert found("1 s", "nodes=1: 1 s").compared[1].question == "nodes=1, global-batch=64"


def test_evidence_raises_the_cause_that_it_proves() -> None:
    measured = run_with("network=100Gb/s TCP")
    plain = {one.name: one.score for one in found(measured).causes}
    seen = diagnose(TWO, parse_speed(measured), evidence=[Evidence("clocks", "1100 of 1980 MHz", 30.0)])
    assert {one.name: one.score for one in seen.causes}["clocks"] > plain["clocks"]
    assert seen.evidence == ("1100 of 1980 MHz",)


def test_a_stated_choice_makes_its_contradiction_less_probable() -> None:
    slow = parse_speed(run_with("attention=eager"))
    alone, stated = (diagnose(one, slow) for one in (TWO, replace(TWO, stated=frozenset({"attention"}))))
    assert score(stated, "eager-attention") < score(alone, "eager-attention")


def test_faster_than_predicted_is_a_misstated_question() -> None:
    diagnosis = found(f"{0.3 * TWO.step.step_time_s!r} s")
    assert diagnosis.finding == "faster" and "misstated" in diagnosis.headline
    assert all(one.name.startswith("faster-") for one in diagnosis.causes)


def test_as_fast_as_predicted_shows_only_what_is_in_it() -> None:
    diagnosis = found(f"{TWO.step.step_time_s!r} s")
    assert diagnosis.finding == "as predicted"
    assert all(one.inside for one in diagnosis.causes)


def test_the_verb_takes_names() -> None:
    answer = paceline.diagnose("gpt2", "8 A100", global_batch_size=96, measured="562 ms", also="global-batch=48: 281 ms")
    assert answer.compared[1].question == "global-batch=48"
    assert answer.to_json()["finding"] == "slower"
    assert [row["name"] for row in answer.rows()] == [one.name for one in answer.causes]


def test_mistakes() -> None:
    with pytest.raises(UserError, match="names no change"):
        parse_also("0.31 s")
    with pytest.raises(UserError, match="unknown change"):
        parse_also("nods=1: 0.31 s")
