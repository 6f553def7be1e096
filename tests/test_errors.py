"""The one error a user can cause, and the guess at what they meant."""

from __future__ import annotations

import pickle

import pytest

from paceline.errors import UserError, missing_extra, unknown

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


def test_few_choices_are_all_named() -> None:
    error = unknown("exchange", "rings", ["ring", "allreduce"])
    assert str(error) == "unknown exchange 'rings'; legal: ring, allreduce; did you mean ring?"


def test_many_choices_are_narrowed_to_the_nearest() -> None:
    error = unknown("codec", "terngard", CODECS, fix="list them with paceline list")
    assert error.message.startswith("unknown codec 'terngard'; nearest: terngrad")
    assert error.message.count(",") <= 2
    assert error.fix == "list them with paceline list"


@pytest.mark.parametrize("name", ["fp8", "int8"])
def test_another_number_of_bits_is_not_proposed(name: str) -> None:
    error = unknown("precision", name, ["fp32", "tf32", "bf16", "fp16"])
    assert error.fix == ""
    assert "fp32, tf32, bf16, fp16" in error.message


def test_what_negates_is_not_proposed() -> None:
    error = unknown("option", "--no-compile", ["--compile", "--context", "--json"], few=0)
    assert "--compile" not in str(error).replace("--no-compile", "")


def test_nothing_near_is_said() -> None:
    few = unknown("codec", "MacBook", CODECS, fix="list them")
    assert str(few) == f"unknown codec 'MacBook'; legal: {', '.join(CODECS)}; list them"
    many = [f"{codec}-{n}" for codec in CODECS for n in range(4)]
    assert str(unknown("codec", "MacBook", many, fix="list them")) == "unknown codec 'MacBook'; nothing is near; list them"


def test_no_choice_at_all_is_said() -> None:
    assert str(unknown("record", "x", [], fix="run paceline train")) == ("unknown record 'x'; legal: none; run paceline train")


@pytest.mark.parametrize(("module", "extra"), [("scipy.optimize", "schedule"), ("matplotlib", "report"), ("torch", "train")])
def test_a_missing_module_names_its_extra(module: str, extra: str) -> None:
    assert missing_extra(ModuleNotFoundError(name=module)).endswith(f"pip install 'paceline[{extra}]'")
    assert missing_extra(ModuleNotFoundError(name="other")) == ""
