"""A synonym reads other tools' values, leaves choices open where they do, and refuses what has no meaning."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.strategy.choices.synonyms import HF, Synonym, by_tool, flag, folded, name_in, names_of

STAGE = Synonym("zero_optimization.stage", (HF,), {"3": "zero3"})


def test_values_are_read_as_words() -> None:
    assert [STAGE.read(value) for value in (3, 3.0, "3", "auto", None)] == ["zero3"] * 3 + [None] * 2
    assert [Synonym("bf16", (), flag("bf16")).read(value) for value in (True, "True", "yes", False, "no")] == [
        *["bf16"] * 3,
        *[None] * 2,
    ]
    assert Synonym("n").read(4) == 4 and Synonym("n").read("auto") is None
    assert Synonym("n", (), lambda value: int(value) * 2).read("4") == 8


def test_what_has_no_meaning_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"zero_optimization\.stage '4'.*3"):
        STAGE.read(4)
    with pytest.raises(UserError, match="give one value"):
        Synonym("n").read([1, 2])
    assert not STAGE.takes(4) and STAGE.takes(3) and Synonym("n").takes("anything")


def test_names() -> None:
    every = tuple(names_of("per_device size", (HF,)))
    assert (name_in(HF, every), name_in("nemo", every), by_tool(every)) == ("per_device", "", {HF: ["per_device", "size"]})
    assert folded("--Per-Device_batch") == "per_device_batch"
    assert Synonym("b", remarks={"": "all", "x": "one"}).remark("x") == "all" and Synonym("b").remark(1) == ""
    assert Synonym("bf16", (), flag(1)).is_flag and not STAGE.is_flag
