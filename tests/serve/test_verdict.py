"""The first lines: memory, date and budget, and what would fit."""

from __future__ import annotations

from urllib.parse import parse_qsl

from paceline import predict
from paceline.prediction import Prediction
from paceline.serve.configurations import Configurations
from paceline.serve.question import Question, question
from paceline.serve.run_cost import whole_run
from paceline.serve.selection import selection
from paceline.serve.verdict import proposals, verdicts

CHOSEN = {"workload": "gpt2", "device": "A100", "devices-per-node": "2", "precision": "bf16"}


def asked(**changes: str) -> tuple[Question, Prediction]:
    own = question({**CHOSEN, **{name.replace("_", "-"): text for name, text in changes.items()}}, Configurations())
    return own, predict(own.workload, own.cluster, own.strategy)


def marks(**changes: str) -> list[tuple[str, str]]:
    own, step = asked(**changes)
    lines = verdicts(own, step, whole_run(own, step), own.cluster.device.memory.value)
    return [(line.mark, line.text) for line in lines]


def test_each_limit_has_a_line_with_a_mark_and_words() -> None:
    fits, late, dear = marks(by="30min", budget="1000", price="1", samples="1M")
    assert (fits[0], late[0], dear[0]) == ("ok", "off", "ok")
    assert fits[1].startswith("Fits: ") and late[1].startswith("TOO LATE: ") and dear[1].startswith("In the budget: ")
    assert marks(budget="1", price="1")[1][1].startswith("OVER BUDGET: ")


def test_what_does_not_fit_says_so_alone_and_what_would_fit_does() -> None:
    large = {"workload": "gpt2-xl", "device": "RTX 4090", "global_batch": "8"}
    (only,) = marks(**large, by="1h")
    assert only[0] == "off" and only[1].startswith("DOES NOT FIT: ") and "cannot run" in only[1]
    offers = proposals(*asked(**large))
    assert offers and all("global batch" not in offer.title for offer in offers)
    chosen = selection(parse_qsl(offers[0].address.partition("?")[2]))
    own = question(chosen, Configurations())
    assert predict(own.workload, own.cluster, own.strategy).fit == "fits"
    assert proposals(*asked()) == []
