"""The answer at every move: what predict says, and texts that ask the same."""

from __future__ import annotations

from paceline import predict
from paceline.reporting.values import seconds
from paceline.serve.answer import answer_page, copies, status
from paceline.serve.configurations import Configurations
from paceline.serve.question import Question, question

CHOSEN = {"workload": "gpt2", "device": "A100", "devices-per-node": "2", "global-batch": "16", "precision": "bf16"}


def asked(**changes: str) -> Question:
    return question({**CHOSEN, **changes}, Configurations())


def test_the_answer_is_that_of_predict() -> None:
    own = asked()
    page, assumptions = answer_page(own)
    prediction = predict(own.workload, own.cluster, own.strategy)
    assert page.cards[0]["value"] == seconds(prediction.step_time_s)
    assert seconds(prediction.step_time_s) in status(page) and "for 1M samples" in status(page)
    titles = [section.title for section in page.sections]
    assert titles == ["One step, bar by bar", "Memory of a device", "What if?", "How it scales"]
    assert str(prediction.assumptions[0])[:40] in " ".join(assumptions)


def test_every_change_of_the_ladder_is_a_bar_and_a_row() -> None:
    ladder = answer_page(asked())[0].sections[2]
    assert ladder.rows[0][1] == "--change devices-per-nodex2"
    assert all(row[0] in ladder.pictures[0] for row in ladder.rows)


def test_the_ladder_says_that_it_keeps_the_strategy() -> None:
    assert "with the same strategy; the advice chooses it again" in answer_page(asked())[0].sections[2].text


def test_numbers_of_devices_that_do_not_hold_the_job_are_marked() -> None:
    scaling = answer_page(asked(workload="llama-3-8b", sharding="zero3", **{"devices-per-node": "8", "global-batch": "8"}))[
        0
    ].sections[3]
    marked = {row[0] for row in scaling.rows if row[0].endswith("*")}
    assert "1 *" in marked and "8" in {row[0] for row in scaling.rows}
    assert "*: does not fit the device's memory" in scaling.text
    assert "samples/s" in scaling.pictures[0] and "does not fit the device" in scaling.pictures[0]
    assert "*" not in answer_page(asked())[0].sections[3].text


def test_what_does_not_fit_is_said_first() -> None:
    page, _ = answer_page(asked(workload="llama-3-8b", sharding="ddp"))
    assert page.findings[0].startswith("DOES NOT FIT") and "does not fit" in page.sections[1].text


def test_a_device_without_a_price_has_no_cost() -> None:
    page, _ = answer_page(asked(device="GTX 1080", precision="fp32"))
    assert page.cards[3]["value"] == "unknown" and page.sections[2].rows


def test_what_another_software_lacks_is_said_in_its_place() -> None:
    texts = {copy.title: copy for copy in copies(asked(compression="terngrad"))}
    assert texts["Command"].text.endswith("--compression terngrad") and "compression='terngrad'" in texts["Python"].text
    assert not texts["deepspeed"].text and "terngrad" in texts["deepspeed"].missing
    assert "zero_optimization" in {copy.title: copy for copy in copies(asked(sharding="zero2"))}["deepspeed"].text
