"""Choices of recomputation: their one name, and what is refused."""

from __future__ import annotations

import pytest

from facts import facts
from paceline.errors import UserError
from paceline.strategy import Parallelism
from wrong_types import wrong_types


def test_recompute_is_a_name_or_true_or_false() -> None:
    for recompute in (0, 1, *wrong_types(str)):
        with pytest.raises(UserError, match=facts("recompute=", "none", "selective", "full", "True", "False")):
            Parallelism(recompute=recompute)
    assert Parallelism(recompute=True) == Parallelism(recompute="full") != Parallelism(recompute=False) == Parallelism()
    assert Parallelism(recompute="selective:core_attn") == Parallelism(recompute="selective")
    assert [Parallelism(recompute=text).recompute.name for text in ("0", "1", "Full")] == ["none", "full", "full"]  # of tables
    named = Parallelism(recompute="Selective:Norm,mlp", recompute_layers=2)
    assert (named.recompute.name, named.recomputation.layers) == ("selective:mlp,layernorm", 2)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"recompute": "ful"}, r"unknown recomputation 'ful'.*did you mean full\?"),
        ({"recompute": "selective:mpl"}, r"unknown part to recompute 'mpl'.*did you mean mlp\?"),
        ({"recompute": "full:mlp"}, r"only selective recomputation names parts"),
        ({"recompute": "selective:op,mlp"}, r"op decides for the whole block"),
        ({"recompute_layers": 2}, facts("2 layers", "recompute='full'")),
        ({"recompute": "full", "recompute_layers": -1}, facts("-1 layers", "whole number", "0")),
    ],
)
def test_recomputation_that_does_not_exist_is_refused(choices: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Parallelism(**choices)  # type: ignore[arg-type]
