"""Names as they are typed: folded for look-ups, the nearest legal one, and never its contrary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.names import did_you_mean, fold, is_likely, likeliest, look_up, near_names, negates

CODECS = ["fp16", "terngrad", "inceptionn", "topk", "qsgd", "signsgd", "powersgd", "randomk"]


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


def test_what_is_far_is_not_near() -> None:
    assert near_names("MacBook M3", ["Graphcore Bow IPU", "Gaudi 3"]) == [] != did_you_mean("MacBook M3", ["Gaudi 3"])
    assert near_names("terngard", CODECS)[0] == "terngrad" and near_names("80gb", ["A100 SXM 80GB", "T4"]) == ["A100 SXM 80GB"]


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


# Folding.


@given(st.text(max_size=20))
def test_folding_twice_is_folding_once(name: str) -> None:
    assert fold(fold(name)) == fold(name)


@pytest.mark.parametrize("text", ["zero3", "ZeRO-3", "zero 3", "Zero_3", " zero - 3 "])
def test_case_and_separators_do_not_count(text: str) -> None:
    assert look_up(text, ["zero1", "zero3"]) == "zero3"
    assert look_up(text, ["ddp"], {"Zero 3": "ddp"}) == "ddp"


def test_dots_count() -> None:
    assert look_up("gpt3-13b", ["gpt3-1.3b", "gpt3-13b"]) == "gpt3-13b"


def test_a_name_stands_before_an_alias() -> None:
    assert look_up("fsdp", ["fsdp", "zero3"], {"FSDP": "zero3"}) == "fsdp"
    assert look_up("fsdp", ["ddp"]) is None


# Contraries.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no-compile", "compile"),
        ("--no-compile", "--compile"),
        ("nocompile", "compile"),
        ("--without-sequence", "--sequence"),
        ("disable_sequence", "sequence"),
        ("async", "sync"),
        ("uncompressed", "compressed"),
        ("disconnected", "connected"),
        ("no-compil", "compile"),
    ],
)
def test_negations(one: str, other: str) -> None:
    assert negates(one, other) and negates(other, one)
    assert not is_likely(one, other)
    assert did_you_mean(one, [other, "something"]) == ["something"]


@pytest.mark.parametrize(
    ("one", "other"),
    [("nodes", "node"), ("none", "one"), ("--no-compile", "--no-compiler"), ("", "a"), ("async", "ring")],
)
def test_no_negations(one: str, other: str) -> None:
    assert not negates(one, other)


@pytest.mark.parametrize(("one", "other"), [("fp8", "fp32"), ("fp8", "fp16"), ("zero4", "zero3"), ("H20", "H200")])
def test_other_numbers_are_not_proposed(one: str, other: str) -> None:
    assert not is_likely(one, other)


@pytest.mark.parametrize(("one", "other"), [("fp61", "fp16"), ("netwrk", "network"), ("shard", "sharded"), ("fp16", "fp16")])
def test_slips_are_proposed(one: str, other: str) -> None:
    assert is_likely(one, other)


@given(st.text(max_size=12))
def test_a_name_is_no_contrary_of_itself(name: str) -> None:
    assert not negates(name, name)


def slips(name: str) -> set[str]:
    """What one slip of the keyboard makes of a name: a letter left out, doubled, or changed with the next."""
    places = range(len(name))
    return {
        *(name[:i] + name[i + 1 :] for i in places),
        *(name[: i + 1] + name[i:] for i in places),
        *(name[:i] + name[i + 1 : i + 2] + name[i] + name[i + 2 :] for i in places),
    } - {name, ""}


OPPOSITES = (
    ("fp16", "bf16"),
    ("fp8", "mxfp8"),
    ("fp32", "tf32"),
    ("zero1", "zero3"),
    ("zero2", "zero3"),
    ("H100 PCIe", "H100 SXM"),
    ("H100 NVL", "H100 PCIe"),
    ("A100 SXM 40GB", "A100 SXM 80GB"),
    ("H20", "H200"),
    ("RTX 4090", "RTX 5090"),
    ("MI300X", "MI325X"),
    ("allreduce", "allgather"),
    ("ordinary", "tuned"),
    ("compile", "no-compile"),
    ("synchronous", "asynchronous"),
    ("first-stage-layers", "last-stage-layers"),
    ("strong", "weak"),
    ("llama-2-7b", "llama-3-8b"),
)


@pytest.mark.parametrize("pair", OPPOSITES)
def test_no_slip_of_a_name_is_answered_with_its_opposite(pair: tuple[str, str]) -> None:
    for name, opposite in (pair, pair[::-1]):
        for slip in slips(name) - {opposite}:
            assert likeliest(slip, [opposite, name]) != opposite, slip


@pytest.mark.parametrize(
    ("typed", "legal", "proposed"),
    [
        ("fb16", ("fp16", "bf16"), ""),
        ("bf15", ("fp16", "bf16"), ""),
        ("fp61", ("fp16", "bf16", "fp8"), "fp16"),
        ("fp16x", ("bf16",), ""),
        ("zero", ("zero1", "zero2", "zero3"), ""),
        ("zeor1", ("zero1", "zero2", "zero3"), "zero1"),
        ("A100 SXM 60GB", ("A100 SXM 80GB", "A100 SXM 40GB", "V100 SXM 16GB"), ""),
        ("H100 SX", ("H100 PCIe", "H100 SXM", "H100 SXM5"), "H100 SXM"),
        ("denes", ("dense", "topk"), "dense"),
        ("", ("dense",), ""),
        ("dense", (), ""),
    ],
)
def test_one_name_is_proposed_where_no_other_is_as_near(typed: str, legal: tuple[str, ...], proposed: str) -> None:
    assert likeliest(typed, legal) == proposed
