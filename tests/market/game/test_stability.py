"""Whether a federation holds, in words."""

import numpy as np
import pytest

from paceline.market.game.game import Game
from paceline.market.game.stability import judge


def glove() -> Game:
    return Game(("left", "right", "other"), lambda mask: float(mask & 1 and mask & 6 and 100))


def test_nobody_leaves() -> None:
    verdict = judge(glove(), np.array([100.0, 0, 0]))
    assert verdict.stable and verdict.can_be_stable and not verdict.leaving
    assert verdict.words("least-core", "$")[0].startswith(
        "Nobody gains by leaving: under least-core, none of the 6 groups of sites would"
    )


def test_somebody_leaves() -> None:
    verdict = judge(glove(), np.array([200 / 3, 100 / 6, 100 / 6]))
    assert not verdict.stable and verdict.can_be_stable and verdict.how_many == 2
    assert verdict.game.members(verdict.leaving[0].coalition) == ("left", "right")
    first, second, *_ = verdict.words("shapley", "$")
    assert first.startswith("Under shapley, 2 groups of sites would do better by themselves: left and right most clearly")
    assert first.endswith("with $16.7 more than here.")
    assert second.startswith("A division exists that keeps everyone: least-core.")


def test_no_division_holds() -> None:
    majority = Game(("a", "b", "c"), lambda mask: float(mask.bit_count() >= 2) * 90)
    verdict = judge(majority, np.array([30.0, 30, 30]))
    assert not verdict.can_be_stable
    assert verdict.least.eps == pytest.approx(30)
    assert "No division keeps everyone: some group always gains $30 or more by leaving." in verdict.words("shapley", "$")
    assert verdict.words("shapley", "$")[-1].startswith("Another question: sites that merge and split")


def test_many_sites_are_judged_by_a_sample() -> None:
    players = tuple(f"s{i}" for i in range(14))
    verdict = judge(Game(players, lambda mask: float(mask.bit_count() - 1)), np.full(14, 13 / 14))
    assert not verdict.least.whole and verdict.coalitions is None
    assert verdict.compared >= verdict.least.checked > 14
    assert f"none of the {verdict.compared:,} groups of sites that were compared would" in verdict.words("equal", "$")[0]


def test_a_group_that_the_search_finds_is_no_secret() -> None:
    """Of many sites, the groups that show that no division holds are those that leave."""
    players = tuple(f"s{i}" for i in range(14))
    majority = Game(players, lambda mask: float(mask.bit_count() > 7) * 14)
    verdict = judge(majority, np.ones(14))
    assert not verdict.can_be_stable and not verdict.stable and verdict.how_many > 0
