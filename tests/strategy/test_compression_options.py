"""Parameters of a compression: what is legal, and how they are typed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import facts
from paceline.errors import UserError
from paceline.strategy import parse_options
from paceline.strategy.compression.compression_options import Option, resolve


def test_options_as_text():
    assert parse_options(["bound=2^-7", "block=256"]) == {"bound": 2**-7, "block": 256}
    for wrong in ("bound", "bound=x", "=3", "bound=2^x", "bound=", "b=0^-1", "b=9^9999"):
        with pytest.raises(UserError, match="is not NAME=NUMBER"):
            parse_options([wrong])


RANK = Option(name="rank", default=4, least=1, most=64, text="rank of the factors", whole=True)
BLOCK = Option(name="block", default=1024, least=64, most=65536, text="elements of a block", whole=True, power=True)
BOUND = Option(name="bound", default=0.01, least=0.001, most=0.5, text="largest error")
LEGAL = (RANK, BLOCK, BOUND)


@given(st.floats(0.001, 0.5))
def test_a_legal_number_is_kept(value):
    assert BOUND.check(value, "x") == value == BOUND.check(np.float64(value), "x")


@given(st.integers(6, 16), st.integers(1, 64))
def test_whole_numbers_come_back_as_such(power, rank):
    assert type(BLOCK.check(float(2**power), "x")) is type(RANK.check(np.int64(rank), "x")) is int
    with pytest.raises(UserError, match=facts("block", "x", "power of two", "64", "65536", "default 1024")):
        BLOCK.check(2**power + 1, "x")


@pytest.mark.parametrize("value", [0, 65, 1.5, math.nan, math.inf, True, None, "4", 10**400, 4j])
def test_an_illegal_value_is_refused(value):
    with pytest.raises(UserError, match=facts("rank", "x", "whole number", "1", "64")):
        RANK.check(value, "x")


@given(st.permutations([("rank", 2), ("block", 128), ("bound", 0.1)]))
def test_options_have_one_order(pairs):
    resolved = (("rank", 2), ("block", 128), ("bound", 0.1))
    assert resolve(dict(pairs), LEGAL, "x") == resolve(pairs, LEGAL, "x") == resolved
    assert resolve(pairs[:1], LEGAL, "x") == (pairs[0],) and resolve({}, LEGAL, "x") == ()


@pytest.mark.parametrize(
    ("options", "legal", "words"),
    [
        ({"rnak": 2}, LEGAL, "did you mean rank"),
        ({"rank": 2}, (), "x takes no option"),
        ("rank=2", LEGAL, r"options of x: 'rank=2'; write \{'rank': 4\}"),
        (7, (), "options of x: 7; leave them out"),
        ([("rank",)], LEGAL, "options of x"),
    ],
)
def test_what_is_no_option_is_refused(options, legal, words):
    with pytest.raises(UserError, match=words):
        resolve(options, legal, "x")


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(("a", "block", "min-size")))
def test_a_number_is_read_as_it_is_written(value, name):
    assert parse_options([f" {name} ={value!r}"]) == {name: value}
