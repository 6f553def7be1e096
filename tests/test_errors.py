"""The one error a user can cause, and the guess at what they meant."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError, did_you_mean, unknown

CODECS = ["fp16", "terngrad", "inceptionn", "topk", "qsgd", "signsgd", "powersgd", "randomk"]


def test_message_and_fix_are_one_line() -> None:
    error = UserError("batch is 0", "give a whole number from 1 up")
    assert str(error) == "batch is 0; give a whole number from 1 up"
    assert (error.message, error.fix) == ("batch is 0", "give a whole number from 1 up")


def test_without_a_fix_nothing_is_added() -> None:
    assert str(UserError("batch is 0")) == "batch is 0"


@pytest.mark.parametrize("error", [UserError("a", "b"), UserError("a"), unknown("codec", "x", ["y"])])
def test_it_survives_the_way_from_a_worker(error: UserError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.message, copy.fix) == (str(error), error.message, error.fix)


@pytest.mark.parametrize(
    ("given_name", "meant"), [("terngard", "terngrad"), ("TERNGRAD", "terngrad"), ("top-k", "topk"), ("sgd", "qsgd")]
)
def test_nearest_first(given_name: str, meant: str) -> None:
    assert did_you_mean(given_name, CODECS)[0] == meant


def test_a_part_of_a_name_finds_it() -> None:
    assert "A100 SXM 80GB" in did_you_mean("80gb", ["A100 SXM 80GB", "K80", "T4"])


def test_names_keep_the_case_they_have() -> None:
    assert did_you_mean("nvlink3", ["NVLink 3", "PCIe 3"], limit=1) == ["NVLink 3"]


def test_any_iterable_will_do() -> None:
    assert did_you_mean("fp61", (name for name in CODECS), limit=1) == ["fp16"]
    assert did_you_mean("fp61", dict.fromkeys(CODECS), limit=1) == ["fp16"]


def test_nothing_legal_means_nothing_near() -> None:
    assert did_you_mean("x", []) == []


@given(st.text(max_size=12), st.lists(st.text(max_size=12), min_size=1, max_size=12, unique=True), st.integers(1, 5))
def test_never_empty_never_too_many_never_invented(name: str, legal: list[str], limit: int) -> None:
    near = did_you_mean(name, legal, limit)
    assert 1 <= len(near) <= limit
    assert len(set(near)) == len(near)
    assert set(near) <= set(legal)


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=12, unique_by=str.casefold), st.data())
def test_a_legal_name_is_nearest_to_itself(legal: list[str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(legal))
    assert did_you_mean(name, legal)[0] == name


def test_few_choices_are_all_named() -> None:
    error = unknown("exchange", "rings", ["ring", "allreduce"])
    assert str(error) == "unknown exchange 'rings'; legal: ring, allreduce; did you mean ring?"


def test_many_choices_are_narrowed_to_the_nearest() -> None:
    error = unknown("codec", "terngard", CODECS, fix="list them with paceline list")
    assert error.message.startswith("unknown codec 'terngard'; nearest: terngrad")
    assert error.message.count(",") <= 2
    assert error.fix == "list them with paceline list"


def test_no_choice_at_all_is_said() -> None:
    assert str(unknown("record", "x", [], fix="run paceline train")) == (
        "unknown record 'x'; legal: none; run paceline train"
    )
