"""Games by their coalitions."""

import pytest

from paceline.errors import UserError
from paceline.market.game.game import MOST_ENUMERATED, Game


def glove() -> Game:
    return Game(("left", "right", "other right"), lambda mask: float(mask & 1 and mask & 6 and 1))


def test_coalitions_are_asked_once_and_never_nobody() -> None:
    asked: list[int] = []
    game = Game(("a", "b"), lambda mask: asked.append(mask) or float(mask))  # type: ignore[func-returns-value]
    assert game.table.tolist() == [0, 1, 2, 3]
    assert game.value(3) == 3
    assert sorted(asked) == [1, 2, 3]


def test_masks_and_names() -> None:
    game = glove()
    assert game.members(game.everyone) == game.players
    assert game.coalition(["other right", "left"]) == 0b101
    assert game.members(0b101) == ("left", "other right")
    with pytest.raises(UserError, match=r"unknown site 'lefd'.*left"):
        game.coalition(["lefd"])


def test_mistakes() -> None:
    with pytest.raises(UserError, match="without sites"):
        Game((), lambda mask: 0.0)
    with pytest.raises(UserError, match="two sites are named 'a'"):
        Game(("a", "b", "a"), lambda mask: 0.0)
    many = Game(tuple(map(str, range(MOST_ENUMERATED + 1))), lambda mask: 0.0)
    with pytest.raises(UserError, match=r"13 sites have 8,192 coalitions.*sample"):
        many.table  # noqa: B018
