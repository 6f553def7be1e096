"""The slower answer: advice and the front; one search at a time, and the newest question wins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from paceline.reporting.values import seconds
from paceline.serve.configurations import Configurations
from paceline.serve.question import Question, question
from paceline.serve.run_cost import whole_run
from paceline.serve.search import Searches, Superseded, searched

CHOSEN = {"workload": "gpt2", "device": "A100", "devices-per-node": "2", "precision": "bf16"}


def asked() -> Question:
    return question(CHOSEN, Configurations())


def test_it_says_what_to_do_and_what_it_costs() -> None:
    own, found = asked(), searched(asked())
    assert found.page.findings[0].endswith(".") and [section.title for section in found.page.sections] == ["Cost against time"]
    first, *others = found.proposals
    run = whole_run(own, own.predictor.step(own.workload, own.cluster, own.strategy))
    assert (first.title, first.address, first.cells[0]) == ("as chosen", "", seconds(run.time_s)) and others
    assert all(other.address.startswith("./?workload=gpt2&") for other in others)


@pytest.mark.everyday("where1-0-is the fastest, and nothing smaller is cheaper")
@pytest.mark.parametrize(
    ("where", "drawn", "said"),
    [
        ({"device": "A100", "devices-per-node": "8", "nodes": "4", "network": "100Gb/s"}, 1, "No other strategy is both"),
        ({"device": "GB200", "devices-per-node": "2"}, 0, "is the fastest, and nothing smaller is cheaper"),
        ({"device": "Tesla M40", "devices-per-node": "2", "precision": "fp32"}, 0, "No price of this device is known"),
    ],
)
def test_cost_against_time_is_drawn_where_there_is_a_choice(where: dict[str, str], drawn: int, said: str) -> None:
    section = searched(question({**CHOSEN, **where}, Configurations())).page.sections[-1]
    assert (section.title, len(section.pictures)) == ("Cost against time", drawn) and said in section.text


def test_an_answer_is_found_once() -> None:
    count = 0

    def search(own: Question) -> str:
        nonlocal count
        count += 1
        return own.workload.name

    searches = Searches(search, kept=1)
    assert [searches.answer(CHOSEN, asked) for _ in range(3)] == ["gpt2"] * 3 and count == 1
    searches.answer({"workload": "lenet5"}, asked)
    searches.answer(CHOSEN, asked)
    assert count == 3


def test_a_question_that_waits_behind_a_newer_one_is_not_searched() -> None:
    begun, go = Event(), Event()

    def search(own: Question) -> str:
        begun.set()
        assert go.wait(150)
        return "answer"

    searches = Searches(search)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(searches.answer, {"n": "1"}, asked)
        assert begun.wait(150)
        second = pool.submit(searches.answer, {"n": "2"}, asked)
        while searches._newest != (("n", "2"),):
            pass
        third = pool.submit(searches.answer, {"n": "3"}, asked)
        while searches._newest != (("n", "3"),):
            pass
        go.set()
        assert first.result(150) == third.result(150) == "answer"
        with pytest.raises(Superseded):
            second.result(150)
