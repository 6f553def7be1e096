"""The answer at every change: what predict says, with one cost for one cluster."""

from __future__ import annotations

from functools import cache

from paceline import predict
from paceline.reporting.values import seconds
from paceline.serve.answer import PageAnswer, answered
from paceline.serve.configurations import Configurations
from paceline.serve.question import Question, question

CHOSEN = {"workload": "gpt2", "device": "A100", "devices-per-node": "2", "global-batch": "16", "precision": "bf16"}


def asked(**changes: str) -> Question:
    return question({**CHOSEN, **changes}, Configurations())


@cache
def usual() -> PageAnswer:
    return answered(asked())


def test_the_answer_is_that_of_predict() -> None:
    own, answer = asked(), usual()
    prediction = predict(own.workload, own.cluster, own.strategy)
    assert answer.page.cards[0]["value"] == seconds(prediction.step_time_s)
    assert seconds(prediction.step_time_s) in answer.status and answer.page.cards[3]["value"] in answer.status
    titles = [section.title for section in answer.page.sections]
    assert titles == ["One step, bar by bar", "Memory of a device", "What if?", "How it scales"]
    assert str(prediction.assumptions[0])[:40] in " ".join(answer.assumptions)
    assert "tokens/s" in answer.page.cards[1]["note"] and answer.verdicts[0].text.startswith("Fits: ")


def test_every_change_of_the_ladder_is_a_bar_and_a_row() -> None:
    ladder = usual().page.sections[2]
    assert ladder.rows[0][-1] == "--change devices-per-nodex2"
    assert all(row[0] in ladder.pictures[0] for row in ladder.rows)
    assert "with the same strategy" in ladder.text


def test_numbers_of_devices_that_do_not_hold_the_job_are_marked() -> None:
    large = asked(workload="llama-3-8b", sharding="zero3", **{"devices-per-node": "8", "global-batch": "8"})
    scaling = answered(large).page.sections[3]
    marked = {row[0] for row in scaling.rows if row[0].endswith("*")}
    assert "1 *" in marked and "8" in {row[0] for row in scaling.rows}
    assert "*: does not fit the device's memory" in scaling.text
    assert "samples/s" in scaling.pictures[0] and "does not fit the device" in scaling.pictures[0]
    assert "*" not in usual().page.sections[3].text


def test_what_does_not_fit_is_said_first_and_has_no_price() -> None:
    answer = answered(asked(workload="gpt2-xl", device="RTX 4090"))
    assert answer.verdicts[0].text.startswith("DOES NOT FIT") and answer.status == answer.verdicts[0].text
    assert [card["value"] for card in answer.page.cards[2:]] == ["none", "none"] and answer.proposals
    assert answer.page.cards[0]["note"].startswith("as if it fitted")


def test_a_device_without_a_price_has_no_cost() -> None:
    own = asked(device="Tesla M40", precision="fp32", **{"global-batch": "2"})
    answer = answered(own)
    assert (answer.page.cards[3]["value"] == "unknown") == (own.price is None)
    assert answer.page.sections[2].rows


def test_the_ports_of_a_node_are_said_in_the_words_of_the_page() -> None:
    several = asked(device="H100", nodes="2", network="InfiniBand NDR", **{"devices-per-node": "8", "global-batch": "64"})
    assert "8x InfiniBand NDR, like DGX H100 (else the network '1x InfiniBand NDR')." in answered(several).page.findings[-1]
