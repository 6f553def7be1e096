"""One table of controls, derived from the declared choices."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import UserError
from paceline.hardware import PRECISIONS
from paceline.reporting.pages.template import filled
from paceline.serve.configurations import Configurations
from paceline.serve.controls import SPEEDS, _of_choice, by_option, controls, folded
from paceline.serve.question import question
from paceline.serve.selection import start
from paceline.strategy import SHARDINGS
from paceline.strategy.choices.choice import StrategyChoice
from paceline.strategy.choices.choice_values import Bits, ByteSize, Flag, LegalValues, RealNumber, WholeNumber
from paceline.strategy.strategy import CHOICES


def test_what_is_offered_is_legal() -> None:
    alone = {**start(), "workload": "gpt2", "global-batch": "16384"}
    for control in controls():
        values = control.stops[-2:] if control.common else ()
        for value in (*values, *(control.choices if control.option in ("sharding", "network") else ())):
            question({**alone, control.option: value}, Configurations())


def test_what_can_be_chosen_are_the_names_of_the_catalogues() -> None:
    legal = {control.option: control.choices for control in controls()}
    assert "resnet-50" in legal["workload"] and "H100 SXM" in legal["device"] and "InfiniBand NDR" in legal["network"]
    assert (legal["precision"], legal["sharding"]) == (tuple(PRECISIONS), tuple(SHARDINGS))
    assert {"TCP", "RoCE", "InfiniBand"} < set(legal["transport"]) and set(SPEEDS) < set(legal["network"])


def test_every_choice_with_an_option_has_a_control_and_the_common_ones_come_first() -> None:
    assert {control.keyword for control in controls() if control.keyword} == {n for n, item in CHOICES.items() if item.option}
    common = [control.common for control in controls()]
    assert common == sorted(common, reverse=True)
    shown = {control.option for control in controls() if control.common}
    assert {"recompute", "grad-accum", "micro-batch-size", "tokens", "samples", "by", "budget", "framework", "lora"} < shown
    parts = {title: [control.option for control in members] for title, members in folded().items()}
    assert parts["Division of the work"][:3] == ["tensor", "pipeline", "context"] and "task" in parts["The run"]


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
    item = StrategyChoice(
        values=values, default=default, help="", name="flux", option=option, word="flux", label="Flux", common=True
    )
    control = _of_choice(item)
    assert (control.option, control.words(text), control.kind) == ("flux", words, kind)
    assert control.value(text) == value and type(control.value(text)) is type(value)
    assert control.value(control.text(value)) == value
    with pytest.raises(UserError):
        control.value("two")
    page = filled("serve/page.html.j2", around((control,)))
    minimum = {"0": "0", "0.5": "0.25"}.get(text)
    assert ('type="number"' in page) == (kind == "number") and (minimum is None or f'min="{minimum}"' in page)
    assert ('step="any"' in page) == (text == "0.5")
    assert control.stops[:2] == (("0", "1") if text == "0" else ())


def around(shown: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("answer", "status", "problem", "wrong", "has_schedule", "has_queue"), "")
    return {**empty, "controls": shown, "folded": {}, "chosen": {}}


def test_lists_that_a_user_searches_are_grouped() -> None:
    page = filled("serve/page.html.j2", around((by_option()["device"],)))
    assert '<option value="H100 SXM" label="80.0 GiB, Hopper" data-group="NVIDIA NVLink servers">' in page
