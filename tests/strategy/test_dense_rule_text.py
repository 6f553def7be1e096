"""A rule for dense tensors is one text, which states what is changed."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.strategy import DenseRule
from paceline.strategy.compression.dense_rule_text import parse_rule, rule_text


@pytest.mark.parametrize(
    "rule", [DenseRule(), DenseRule(min_elements=0, last_layer=False), DenseRule(names=("*.embedding.*", "head.[a,b]*"))]
)
def test_a_text_is_read_as_it_was_written(rule: DenseRule) -> None:
    assert parse_rule(rule_text(rule), DenseRule(min_elements=9, names=("x",) if rule.names else ())) == rule


def test_missing_parts_are_those_of_the_rule() -> None:
    rule = DenseRule(min_elements=9, last_layer=False, names=("x",))
    assert parse_rule("last-layer=yes", rule) == DenseRule(min_elements=9, names=("x",))
    assert parse_rule("dense=y", rule) == DenseRule(min_elements=9, last_layer=False, names=("y",))


@pytest.mark.parametrize("text", ["", "5", "min-elements", "min-elements=-1", "last-layer=maybe", "dense=", "names=x"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_rule(text, DenseRule())
