"""Which tensors have neither decay nor ratio: by rule, by patterns, by a function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerwise_toys import make, network
from paceline.errors import UserError
from paceline.training.optimizers.exclusion import DEFAULT_RULE, RULES, check_patterns_match, check_rule, is_excluded


def test_excluded_tensors_by_rule_pattern_and_function() -> None:
    model = network()
    named = list(model.named_parameters())
    vectors = ["0.bias", "1.weight", "1.bias", "2.bias"]
    assert make("LAMB", named).excluded() == vectors
    assert make("LAMB", named, exclude="none").excluded() == []
    assert make("LAMB", named, exclude=["2.*", "1.weight"]).excluded() == ["1.weight", "2.weight", "2.bias"]
    assert make("LAMB", named, exclude=lambda name, tensor: tensor.numel() == 54).excluded() == ["0.weight"]
    assert make("LAMB", model.parameters()).excluded() == ["0.1", "0.2", "0.3", "0.5"]


VECTOR, MATRIX = torch.zeros(3), torch.zeros(3, 3)


@pytest.mark.parametrize("rule", RULES)
def test_a_named_rule_needs_no_names(rule: str) -> None:
    check_rule(rule, named=False)
    assert is_excluded(rule, "", VECTOR) == (rule == DEFAULT_RULE) and not is_excluded(rule, "", MATRIX)
    assert is_excluded(rule, "", torch.zeros(())) == (rule == DEFAULT_RULE)


@given(st.text("ab.*", max_size=6), st.text("ab.", max_size=6))
def test_a_list_is_the_union_of_its_patterns(pattern: str, name: str) -> None:
    alone = is_excluded([pattern], name, MATRIX)
    assert is_excluded([pattern, "c"], name, MATRIX) == is_excluded(("c", pattern), name, MATRIX) == alone
    assert not is_excluded([], name, VECTOR) and is_excluded(["*"], name, MATRIX)


@pytest.mark.parametrize(
    ("rule", "named", "words"),
    [
        ("biases", True, r"unknown exclusion rule 'biases'; legal: biases-and-norms, none; did you mean 'biases-and-norms'\?"),
        ("*.bias", True, r"A pattern of names goes into a list: exclude=\['\*\.bias'\]"),
        ([1], True, r"exclude=\[1\]; legal: a rule's name, a list of patterns, or a function"),
        (None, True, "exclude=None; legal"),
        (["*.bias"], False, r"asks for names, and the parameters have none; pass model\.named_parameters\(\)"),
    ],
)
def test_what_is_no_rule_is_refused(rule: Any, named: bool, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_rule(rule, named)


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_names() -> None:
    names = ["head.weight", "head.bias", "body.weight"]
    check_patterns_match([["head.*"], "none", lambda name, tensor: False, []], names)
    with pytest.raises(UserError, match=r"the pattern 'haed\.bias' in exclude matches no parameter; nearest names: head\.bias"):
        check_patterns_match([["head.*", "haed.bias"]], names)
