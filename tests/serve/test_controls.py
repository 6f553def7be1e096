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
from paceline.reporting.pages.template import filled
from paceline.serve.configurations import Configurations
from paceline.serve.controls import _of_choice, command, controls, python, selection, start
from paceline.serve.question import question
from paceline.strategy import SHARDINGS
from paceline.strategy.choices.choice import StrategyChoice
from paceline.strategy.choices.choice_values import Bits, ByteSize, Flag, LegalValues, RealNumber, WholeNumber

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


@pytest.mark.parametrize(
    ("values", "default", "text", "words", "value", "kind"),
    [
        (Flag(), False, "yes", ["--flux"], True, "select"),
        (Flag(), False, "no", [], False, "select"),
        (Flag(), True, "no", ["--no-flux"], False, "select"),
        (WholeNumber("layers of flux", 0), 2, "0", ["--flux", "0"], 0, "number"),
        (RealNumber(0.25, 1.5), 1.0, "0.5", ["--flux", "0.5"], 0.5, "number"),
        (Bits((32, 16)), 32, "16", ["--flux", "16"], 16, "select"),
        (ByteSize("bytes of flux"), 1024, "2KiB", ["--flux", "2KiB"], 2048, "text"),
    ],
)
def test_a_control_reads_values_as_its_declaration_says(
    values: LegalValues, default: object, text: str, words: list[str], value: object, kind: str
) -> None:
    option = "no-flux" if default is True else "flux"
    item = StrategyChoice(values=values, default=default, help="", name="flux", option=option, word="flux", label="Flux")
    control = _of_choice(item)
    assert (control.option, control.words(text), control.kind) == ("flux", words, kind)
    assert control.value(text) == value and type(control.value(text)) is type(value)
    with pytest.raises(UserError):
        control.value("two")
    around = dict.fromkeys(("answer", "status", "problem", "query", "has_schedule"), "")
    page = filled("serve/page.html.j2", {**around, "controls": (control,), "chosen": {}})
    minimum = {"0": "0", "0.5": "0.25"}.get(text)
    assert ('type="number"' in page) == (kind == "number") and (minimum is None or f'min="{minimum}"' in page)
    assert ('step="any"' in page) == (text == "0.5")
    assert control.stops[:2] == (("0", "1") if text == "0" else ())
