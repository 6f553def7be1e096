"""How gradients travel, from the options: only what was given, and the rule for dense tensors beside what was."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from paceline.cli.arguments.choice_arguments import PREDICTED, add_choice_arguments
from paceline.cli.arguments.exchange_arguments import add_compression_arguments, exchange_choices
from paceline.errors import UserError
from paceline.strategy import DenseRule, GradientExchange


def choices(text: str, before: GradientExchange | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_choice_arguments(parser, PREDICTED)
    add_compression_arguments(parser)
    return exchange_choices(parser.parse_args(text.split()), before)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("", {}),
        ("--compression topk --exchange allgather", {"compression": "topk", "exchange": "allgather"}),
        ("--compression inceptionn --codec-at nic", {"compression": "inceptionn", "codec_at": "nic"}),
        ("--residual-bits 16 --residuals-at host", {"residual_bits": 16, "residuals_at": "host"}),
        ("--dense-bits 16", {"dense_bits": 16}),
        ("--option bound=2^-7 --option ratio=8", {"options": {"bound": 2**-7, "ratio": 8.0}}),
        ("--clip 2.5", {"clip": 2.5}),
        ("--clip None", {"clip": None}),
        ("--no-compress-pull --ranks-per-node 4", {"compress_pull": False, "ranks_per_node": 4}),
        ("--sync-every 8 --fragments 2 --sync-delay 0", {"sync_every": 8, "fragments": 2, "sync_delay": 0}),
        ("--mixing 0 --outer-lr 1 --outer-momentum 0", {"mixing": 0.0, "outer_lr": 1.0, "outer_momentum": 0.0}),
    ],
)
def test_only_what_was_given_is_a_choice(text: str, given: dict[str, Any]) -> None:
    assert choices(text) == given


def test_the_rule_is_the_compression_s_but_for_what_was_given() -> None:
    usual = GradientExchange("terngrad").dense_rule
    assert usual is not None
    rule = choices("--compression terngrad --min-elements 7")["dense_rule"]
    assert (rule.min_elements, rule.names, rule.last_layer) == (7, usual.names, usual.last_layer)
    rule = choices("--compression terngrad --dense *.emb --dense a")["dense_rule"]
    assert (rule.min_elements, rule.names) == (usual.min_elements, ("*.emb", "a"))
    before = GradientExchange("terngrad", dense_rule=DenseRule(min_elements=3, names=("x",)))
    assert choices("--dense y", before)["dense_rule"].min_elements == 3
    other, own = choices("--compression int8 --dense y", before)["dense_rule"], GradientExchange("int8").dense_rule
    assert own is not None and (other.min_elements, other.last_layer) == (own.min_elements, own.last_layer)


@pytest.mark.parametrize(
    ("text", "words"), [("--clip wide", "--clip wide; give standard deviations"), ("--option bound", "is not NAME=NUMBER")]
)
def test_a_mistake_names_the_option(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choices(text)
