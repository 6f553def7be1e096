"""Options of choices: each command has those that their declarations give it, and what is given comes back by name."""

from __future__ import annotations

import argparse

import pytest

from paceline.cli.arguments.choice_arguments import (
    PREDICTED,
    SEARCHED,
    TRAINED,
    add_choice_arguments,
    add_search_arguments,
    given_choices,
    narrowed_choices,
    usual_argument,
)
from paceline.cli.command_line import build_parser
from paceline.errors import UserError
from paceline.strategy.strategy import CHOICES, Strategy


def parser_of(*, only_given: bool = False) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_choice_arguments(parser, PREDICTED, only_given=only_given)
    return parser


def test_options_without_a_word_are_the_defaults() -> None:
    given = given_choices(parser_of().parse_args([]), PREDICTED)
    strategy = Strategy.of(world_size=1, global_batch_size=1)
    assert given and given == {name: strategy.choice(name) for name in given}
    assert given_choices(parser_of(only_given=True).parse_args([]), PREDICTED) == {}


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("--bucket 100MiB --micro-batches 4", {"bucket_bytes": 100 << 20, "grad_accum_steps": 4}),
        ("--recompute --sequence --no-compress-pull", {"recompute": "full", "sequence": True, "compress_pull": False}),
        ("--recompute selective --mixing 0.25", {"recompute": "selective", "mixing": 0.25}),
        (
            "--sharding zero3 --gather-bits 8 --gather-format fp8",
            {"sharding": "zero3", "gather_bits": 8, "gather_format": "fp8"},
        ),
    ],
)
def test_what_is_given_comes_back(text: str, given: dict[str, object]) -> None:
    assert given_choices(parser_of(only_given=True).parse_args(text.split()), PREDICTED) == given


def test_a_search_takes_several_values() -> None:
    parser = argparse.ArgumentParser()
    add_search_arguments(parser)
    options = parser.parse_args(["--tensor", "2", "--tensor", "4", "--gather-bits", "16", "--sharding", "zero3"])
    assert (options.tensor, options.gather_bits, options.sharding, options.pipeline) == ([2, 4], 16, ["zero3"], None)
    assert {item.name for item in SEARCHED} < {item.name for item in PREDICTED}


def test_training_has_options_for_what_it_runs() -> None:
    of_mesh = {item.name for item in TRAINED if item.part == "parallelism"}
    recomputed = {"recompute", "recompute_layers"}
    assert of_mesh == {
        "sharding",
        "shard_devices",
        "gather_bits",
        "gather_format",
        "gradient_bits",
        "grad_accum_steps",
        *recomputed,
    }
    assert "servers" not in {item.name for item in TRAINED}
    assert usual_argument(CHOICES["bucket_bytes"]) == "25MiB" and usual_argument(CHOICES["compression"]) is None


def test_an_offload_that_the_optimizer_lacks_is_refused_in_searches() -> None:
    parser = build_parser("ask").commands()["ask"]
    o = parser.parse_args(["gpt2", "--optimizer", "adamw_8bit", "--offload", "optimizer"])
    with pytest.raises(UserError, match="the host updates fp32 state"):
        narrowed_choices(o)
