"""``paceline plan``: the best strategy for a target, and what is not known."""

from __future__ import annotations

import pytest

from command import answer, run
from planning_commands import PLAN, SMALL


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, f"{PLAN} --goal cheapest --price 2 --why-not compression=terngrad")
    best = data["best"]
    assert best["time_low_s"] <= best["time_s"] <= best["time_high_s"] and best["usd"] > 0
    assert data["considered"] > 50 and data["assumptions"] and data["front"] and data["why_not"]
    assert sum(x["count"] for x in data["excluded"]) > 0 and all(x["reason"] for x in data["excluded"])
    text = run(capsys, f"{PLAN} --goal cheapest --price 2")[1]
    assert max(map(len, text.splitlines())) <= 80 and "given by the user" in text and "ompression" in text


def test_without_a_batch_it_answers_and_says_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    small = f"{SMALL} --sharding ddp --compression dense"
    known = answer(capsys, f"plan resnet-50 {small}")
    assert "MLPerf" in known["work"] and "neither a batch nor samples" in known["work"] and not known["notice"]
    same = answer(capsys, f"plan resnet-50 {small} --target mlperf")
    assert same["best"] == known["best"]
    speed = answer(capsys, f"plan resnet-50 {small} --samples 1e6")
    assert "not counted; the target mlperf counts it" in speed["notice"]
    text = " ".join(run(capsys, f"plan vgg-16 {small}")[1].split())
    assert text.startswith("vgg-16, 1,000,000 samples; goal fastest The batch is chosen by speed alone")
    assert text.count("unknown for vgg-16 and not counted; a target RUNS.csv counts it") == 2  # at the top, and below
