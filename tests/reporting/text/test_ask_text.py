"""The one screen of ``paceline ask``: every figure that it answers with, and no more lines than a screen has."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline.hardware import Cluster
from paceline.planning import Asked, ask
from paceline.planning.search.training_target import TrainingTarget
from paceline.reporting.text.ask_text import asked_screen
from paceline.reporting.values import seconds
from paceline.workload import Workload

TARGET = TrainingTarget(total=1e6)


@pytest.fixture(scope="module")
def asked() -> Asked:
    return ask(Workload.named("bert-large"), Cluster.named("2x8 A100, 100Gb/s"), TARGET, by_s=1e5, budget_usd=500.0)


def flat(asked: Asked, deeper: str = "") -> str:
    """The screen without its line breaks."""
    return " ".join(asked_screen(asked, deeper).text().split())


def test_it_fits_one_screen_and_ends_in_advice_and_a_command(asked: Asked) -> None:
    lines = asked_screen(asked, "paceline plan bert-large").text().strip().splitlines()
    assert len(list(filter(None, lines))) <= 20  # of 24
    why = " ".join(asked_screen(asked).text(why=True).split())
    assert "each row has the best strategy of its machine; whatif keeps one strategy for all." in why
    assert asked.advice in flat(asked) and "deeper paceline plan bert-large" in flat(asked, "paceline plan bert-large")


def test_what_rdma_would_bring_is_said_where_only_a_speed_is_given(asked: Asked) -> None:
    rdma = asked.by_transport["RDMA"].step_time_s
    gain = asked.choice.prediction.step_time_s / rdma
    assert f"TCP is taken; RDMA (RoCE, InfiniBand) on the same link: {seconds(rdma)} a step, {gain:.2f}x." in flat(asked)
    same = replace(asked, by_transport={**asked.by_transport, "RDMA": asked.by_transport["TCP"]})
    assert "with RDMA (RoCE, InfiniBand) the step is the same" in flat(same)
    assert "TCP" not in flat(replace(asked, by_transport={}))


def test_it_says_fit_speed_limit_time_and_cost(asked: Asked) -> None:
    text = flat(asked)
    for part in ("fits ", "GiB of 80.0 GiB a device", "a step (", "samples/s", "tokens/s", "waits for ", "takes ", "costs $"):
        assert part in text
    assert "likely" in text and "within $500" in text
    for upgrade in asked.upgrades:
        assert upgrade.title in text and f"{upgrade.speedup:.2f}x" in text


def test_an_unknown_price_is_unknown_and_says_how_to_name_one(asked: Asked) -> None:
    free = replace(asked, choice=replace(asked.choice, usd=math.nan), in_budget=None)
    text = "costs unknown: no price of A100 SXM 80GB is listed, so the budget is not checked; --price 2.50 names yours"
    assert text in flat(free)
    assert text.replace(", so the budget is not checked", "") in flat(replace(free, budget_usd=None))


def test_what_does_not_fit_is_the_first_line() -> None:
    screen = asked_screen(ask(Workload.named("llama-2-70b"), Cluster.named("2 RTX 4090"), TARGET))
    assert screen.text().startswith("DOES NOT FIT on 2 RTX 4090.")


def test_provenance_is_behind_why(asked: Asked) -> None:
    screen = asked_screen(asked)
    why = "".join(screen.text(why=True).split())  # long addresses are broken
    for text in (*asked.assumptions, asked.price):
        assert "".join(text.split()) in why
    assert "It rests on" not in screen.text()


def test_one_line_where_one_is_asked_for(asked: Asked) -> None:
    line = asked_screen(asked).brief_line()
    assert "\n" not in line and asked.advice.rstrip(".") in line
