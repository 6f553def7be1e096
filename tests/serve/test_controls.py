"""One table of controls: what the address says is what the command line and Python say."""

from __future__ import annotations

import shlex

import pytest

import paceline
from paceline import predict
from paceline.cli.arguments.prediction_inputs import prediction_inputs
from paceline.cli.command_line import build_parser
from paceline.cli.parser import parse
from paceline.errors import UserError
from paceline.hardware import PRECISIONS
from paceline.serve.configurations import Configurations
from paceline.serve.controls import command, controls, python, selection, start
from paceline.serve.question import question
from paceline.strategy import SHARDINGS

CHOSEN = selection({**start(), "global-batch": "64", "seq-len": "512", "compression": "dense"}.items())


def test_what_is_offered_is_legal() -> None:
    alone = {**start(), "global-batch": "16384"}
    for control in controls():
        for value in (*control.stops[-2:], *(control.choices if control.option in ("sharding", "network") else ())):
            question({**alone, control.option: value}, Configurations())


def test_what_can_be_chosen_are_the_names_of_the_catalogues() -> None:
    legal = {control.option: control.choices for control in controls()}
    assert "resnet-50" in legal["workload"] and "H100 SXM" in legal["device"] and "InfiniBand NDR" in legal["network"]
    assert (legal["precision"], legal["sharding"]) == (tuple(PRECISIONS), tuple(SHARDINGS))


def test_the_command_to_copy_asks_the_same() -> None:
    words = shlex.split(command(CHOSEN))
    assert words[0] == "paceline"
    asked = question(CHOSEN, Configurations())
    assert prediction_inputs(parse(build_parser("predict"), words[1:])) == (asked.workload, asked.cluster, asked.strategy)


def test_the_python_to_copy_asks_the_same() -> None:
    asked = question(CHOSEN, Configurations())
    call = python(CHOSEN).partition("print(")[2].removesuffix(")")
    own = eval(call, {"paceline": paceline})
    assert own.step_time_s == predict(asked.workload, asked.cluster, asked.strategy).step_time_s


def test_a_configuration_is_named_as_its_file() -> None:
    chosen = selection({"workload": "config:12", "device": "H100 SXM", "seq-len": "64", "precision": "bf16"}.items())
    assert command(chosen).startswith("paceline predict config.json --device 'H100 SXM'")
    call = "paceline.predict(paceline.Workload.from_config('config.json', 64), '1x1 H100 SXM', precision='bf16')"
    assert call in python(chosen)


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([("workload", "gpt2")], "no device is given"),
        ([("workload", " "), ("device", "A100")], "no workload is given"),
        ([("nodse", "1")], "did you mean nodes"),
        ([("nodes", "1"), ("nodes", "")], "given twice"),
    ],
)
def test_what_is_no_question_is_refused(pairs: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(UserError, match=said):
        selection(pairs)
