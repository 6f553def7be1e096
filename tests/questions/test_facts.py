"""Facts of several sources: what is typed wins and is said, two files that contradict are an error."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.questions.asked import looked_up
from paceline.questions.facts import COMMAND, Reading, StatedFact, combined, facts_of, option


def test_what_is_typed_wins_and_is_said() -> None:
    facts = [
        StatedFact("sharding", "zero3", "ds.json", "stage = 3"),
        StatedFact("sharding", "zero2", COMMAND, "--sharding zero2"),
    ]
    found, notes = combined(facts)
    assert found["sharding"].value == "zero2" and notes == ["--sharding zero2 is taken, not ds.json: stage = 3."]
    assert combined([facts[0], StatedFact("sharding", "ZERO3", COMMAND, "--sharding ZERO3")])[1] == []


def test_files_that_contradict_are_an_error_that_names_both() -> None:
    facts = [StatedFact("tensor", 2, "a.json", "tp = 2"), StatedFact("tensor", 4, "b.sh", "--tp 4")]
    with pytest.raises(UserError, match=r"a\.json: tp = 2 and b\.sh: --tp 4 contradict each other.*--tensor"):
        combined(facts)
    assert combined([facts[0], StatedFact("tensor", "2", "b.sh", "--tp 2")])[0]["tensor"] is facts[0]
    assumed = StatedFact("tensor", 4, "b.sh", "by default", assumed=True)
    assert combined([assumed, facts[0]])[0]["tensor"] is facts[0] and combined([assumed])[0]["tensor"] is assumed


def test_in_one_source_the_highest_rank_holds_and_parts_add_up() -> None:
    low, high = StatedFact("precision", "bf16", "f", "bf16", rank=1), StatedFact("precision", "fp8", "f", "fp8", rank=3)
    assert combined([high, low])[0]["precision"] is high
    parts = [
        StatedFact("offload", value, "f", value, added=True) for value in ("weights+optimizer", "optimizer", "checkpoints")
    ]
    assert combined(parts)[0]["offload"].value == "weights+optimizer+checkpoints"
    others = [parts[0], StatedFact("offload", "checkpoints", "g", "c", added=True)]
    assert combined(others)[0]["offload"].value == "weights+optimizer+checkpoints"


def test_a_synonym_may_state_several_choices() -> None:
    entry = looked_up("hf", ["fsdp"])
    assert entry is not None
    stated = {fact.name: fact.value for fact in facts_of(entry, "full_shard offload", "args.json", "fsdp")}
    assert stated == {"sharding": "zero3", "offload": "weights+optimizer"}
    assert list(facts_of(entry, "", "args.json", "fsdp")) == []
    assert option("tensor") == "--tensor" and option("copies").startswith("groups")


def test_readings_add_up() -> None:
    both = Reading(unknown=["a"])
    both.add(Reading(facts=[StatedFact("tensor", 2, "f", "tp")], notes=["n"], ignored=["i"]))
    assert (len(both.facts), both.unknown, both.ignored, both.notes) == (1, ["a"], ["i"], ["n"])
