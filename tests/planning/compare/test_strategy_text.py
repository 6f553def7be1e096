"""Choices are read as they are typed; a strategy in words names all that is not the default."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import facts
from paceline.errors import UserError
from paceline.planning.compare.strategy_text import EXAMPLES, NAMES, describe, matches, parse_wanted, saves_memory
from paceline.strategy import Strategy
from prediction_toys import make_cluster, make_workload


@pytest.mark.parametrize(
    "text",
    ["colour=red", "compression", "nodes=many", "recompute=maybe", "device=H1000", "precision=fp9", "nodes=", "seq-len=3"],
)
def test_a_choice_that_is_none(text: str) -> None:
    with pytest.raises(UserError):
        parse_wanted(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("compression=zip", "unknown compression 'zip'; legal: dense, bf16, bf16-coded, terngrad"),
        ("precision=fp9", "unknown precision 'fp9'"),
        ("optimizer=adan", "did you mean adam"),
        ("nodes", facts("nodes", "no value", "nodes=4")),
        ("seq-len=512", "changes the network"),
    ],
)
def test_a_choice_that_is_none_says_what_is(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_wanted(text)


def test_choices_have_the_words_of_the_options() -> None:
    assert parse_wanted("grad-accum=2, recompute=true") == {"accumulation": 2, "recompute": "full"}
    assert parse_wanted("recompute=no,optimizer=adam") == {"recompute": "none", "optimizer": "adam"}


PLAIN = Strategy.of(world_size=4, global_batch_size=64)
CLUSTER = make_cluster(2, 2)


def test_a_description_has_what_is_not_the_default() -> None:
    assert describe(make_cluster(1, 1), PLAIN.changed(world_size=1)) == "1 toy, batch 64, fp32"
    plain = describe(CLUSTER, PLAIN)
    assert plain == f"2 x 2 toy, batch 64, fp32, {PLAIN.gradient_exchange}"
    assert describe(make_cluster(4, 1), PLAIN) == plain.replace("2 x 2", "4")
    whole = PLAIN.changed(sharding="zero3", grad_accum_steps=2, recompute=True, bucket_bytes=2**20, precision="bf16")
    assert describe(CLUSTER, whole) == "2 x 2 toy, batch 64, bf16, zero3, 2 micro steps, recomputing, buckets of 1.05 MB"
    narrow = describe(CLUSTER, PLAIN.changed(sharding="zero2", compression="int8", gather_bits=8))
    assert narrow == "2 x 2 toy, batch 64, fp32, zero2, int8 over sharded, weights gathered in 8 bits"
    assert describe(CLUSTER, PLAIN.changed(sharding="zero1", gradient_bits=16)).endswith("zero1, gradients reduced in 16 bits")
    assert describe(CLUSTER, PLAIN.changed(exchange="parameter_server", servers=2)).endswith(" of 2")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", True),
        ("nodes=2,device=A100", False),
        ("nodes=2, workers=4, global-batch=64", True),
        ("workers=8", False),
        ("bucket=25MiB", True),
        ("bucket=1MiB", False),
        ("recompute=false", True),
        ("compression=topk", False),
    ],
)
def test_a_candidate_has_every_choice_that_is_wanted(text: str, match: bool) -> None:
    assert matches((CLUSTER, PLAIN), parse_wanted(text)) == match


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_each_choice_is_legal(name: str) -> None:
    assert list(parse_wanted(f"{name}={EXAMPLES[name]}")) == [name]


@given(st.text(max_size=12))
def test_any_text_is_choices_or_a_mistake(text: str) -> None:
    with suppress(UserError):
        assert set(parse_wanted(text)) <= set(NAMES)


def test_recomputing_pays_only_where_blocks_repeat() -> None:
    assert not saves_memory(make_workload()) and saves_memory(make_workload(layers=8, blocks=4))
