"""Typed keywords name exactly what the declarations do: options of a run, of an exchange, of compressions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import pytest

from paceline.scheduling.verb import ScenarioKeywords, ScenarioOptions
from paceline.strategy import COMPRESSIONS, LocalSteps
from paceline.training.attach.attach_arguments import EXCHANGE
from paceline.training.attach.attach_keywords import AttachKeywords, ExchangeKeywords, LocalKeywords, RankKeywords
from paceline.training.attach.attach_options import AttachOptions
from paceline.training.runs.training_run import RunKeywords, TrainingRun

OPTIONS = {option.name: type(option.default) for described in COMPRESSIONS.values() for option in described.options}
EVERYWHERE = {option.name for option in fields(AttachOptions) if option.metadata["everywhere"]}


def named(kind: Any, names: Collection[str] | None = None) -> dict[str, Any]:
    """Types of the fields with defaults, by name; ``names``: of these alone."""
    hints = get_type_hints(kind)
    optional = [f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING]
    return {name: hints[name] for name in optional if names is None or name in names}


@pytest.mark.parametrize(
    ("keywords", "declared"),
    [
        (RankKeywords, named(AttachOptions, EVERYWHERE)),
        (LocalKeywords, {**named(AttachOptions, EVERYWHERE), **named(LocalSteps), **get_type_hints(ExchangeKeywords)}),
        (RunKeywords, named(TrainingRun)),
        (ScenarioKeywords, named(ScenarioOptions)),
    ],
)
def test_keywords_have_the_names_and_types_of_the_fields(keywords: Any, declared: dict[str, Any]) -> None:
    assert get_type_hints(keywords) == declared and not keywords.__required_keys__


def test_attach_takes_every_option_of_a_run_of_an_exchange_and_of_a_compression() -> None:
    hints = get_type_hints(AttachKeywords)
    assert get_type_hints(ExchangeKeywords).keys() == EXCHANGE.keys() | OPTIONS.keys()
    assert hints.keys() == named(AttachOptions).keys() | EXCHANGE.keys() | OPTIONS.keys()
    assert {name: hints[name] for name in OPTIONS} == OPTIONS
    assert {name: hints[name] for name in named(AttachOptions)} == named(AttachOptions)
