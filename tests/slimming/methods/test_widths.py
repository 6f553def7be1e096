"""Widths that meet a budget of latency."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paceline.errors import UserError
from paceline.slimming.methods.widths import widths_for
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import Transformer, tokens


def chain(*widths: int) -> Structures:
    layers = [nn.Linear(a, b) for a, b in zip((4, *widths), (*widths, 4), strict=True)]
    return structures_of(nn.Sequential(*layers), (torch.randn(2, 4),))


def linear_time(found: Structures, cost: dict[str, float]) -> object:
    owner = {each.number: each.layer for each in found.every}

    def seconds(removed: Collection[int]) -> float:
        return sum(cost[layer] for number, layer in owner.items() if number not in removed)

    return seconds


@pytest.mark.long
@given(st.lists(st.floats(0.01, 1.0), min_size=48, max_size=48), st.floats(0.35, 1.0))
def test_the_budget_is_met_by_the_least_important_in_multiples(norms: list[float], share: float) -> None:
    found = chain(16, 32)
    importance = {each.number: norm for each, norm in zip(found.every, norms, strict=True)}
    seconds = linear_time(found, {"0.weight": 1.0, "1.weight": 2.0})
    removed = widths_for(found, importance, seconds, share * 80.0, round_to=8)  # type: ignore[arg-type]
    assert seconds(removed) <= share * 80.0  # type: ignore[operator]
    for every in found.layers().values():
        gone = [each for each in every if each.number in removed]
        left = [each for each in every if each.number not in removed]
        assert len(left) % 8 == 0 or len(left) in (1, 2, 4)
        assert left
        if gone:
            assert max(importance[each.number] for each in gone) <= min(importance[each.number] for each in left)


def test_what_saves_more_for_as_much_goes_first() -> None:
    found = chain(16, 16)
    importance = {each.number: 1.0 for each in found.every}
    seconds = linear_time(found, {"0.weight": 1.0, "1.weight": 3.0})
    removed = widths_for(found, importance, seconds, 40.0, round_to=8)  # type: ignore[arg-type]
    assert {each.layer for each in found.every if each.number in removed} == {"1.weight"}


def test_heads_go_one_by_one() -> None:
    found = structures_of(Transformer(), tokens())
    heads = [layer for layer in found.layers() if "in_proj" in layer]
    seconds = linear_time(found, {layer: 1.0 if layer in heads else 0.0 for layer in found.layers()})
    removed = widths_for(found, {each.number: 1.0 for each in found.every}, seconds, 7.0, round_to=4)  # type: ignore[arg-type]
    assert len(removed) == 1


def test_what_has_no_importance_goes_where_the_budget_is_met() -> None:
    found = chain(16, 16)
    places = {each.number: place for every in found.layers().values() for place, each in enumerate(every)}
    seconds = linear_time(found, {"0.weight": 1.0, "1.weight": 1.0})
    importance = {number: float(place >= 9) for number, place in places.items()}
    removed = widths_for(found, importance, seconds, 40.0, round_to=8)  # type: ignore[arg-type]
    assert {places[number] for number in removed} == set(range(8)) and len(removed) == 16


def test_a_budget_that_cannot_be_met_names_the_least() -> None:
    found = chain(16, 16)
    seconds = linear_time(found, {"0.weight": 0.001, "1.weight": 0.001})
    with pytest.raises(UserError, match=r"a budget of 1.00 ms cannot be met; .*is 2.00 ms") as caught:
        widths_for(found, {each.number: 1.0 for each in found.every}, seconds, 0.001)  # type: ignore[arg-type]
    assert "free" not in caught.value.fix
    with pytest.raises(UserError, match="`widths` free, which removes more"):
        widths_for(found, {each.number: 1.0 for each in found.every}, seconds, 0.001, equal=[["0.weight"]])  # type: ignore[arg-type]
