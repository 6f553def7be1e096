"""Matching of a message by the facts in it."""

from __future__ import annotations

import re

import pytest

from facts import facts

MESSAGE = "block -96 of int8 (x.toml);\ngive a power of two from 64 to 65,536, such as 0.5 or $2/h"


@pytest.mark.parametrize(
    "words",
    [("block", "-96"), ("64", "block -96"), ("x.toml",), ("int8", "give"), ("65,536",), ("$2/h", "0.5"), ("0.5", "two")],
)
def test_whole_words_are_found_in_any_order(words: tuple[str, ...]) -> None:
    assert re.search(facts(*words), MESSAGE)


@pytest.mark.parametrize(
    "words", [("block", "6"), ("lock",), ("65",), ("5",), ("0",), ("xxtoml",), ("block", "int8", "dense"), ("Block",), ("int",)]
)
def test_a_fact_that_lacks_or_is_part_of_another_is_not_found(words: tuple[str, ...]) -> None:
    assert not re.search(facts(*words), MESSAGE)


def test_a_match_of_no_facts_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="no facts"):
        facts()
