"""Coalitions by merge and split."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cooperative_games as games
from paceline.errors import UserError
from paceline.market.game.core import blocking
from paceline.market.game.game import Game
from paceline.market.game.shapley import exact
from paceline.market.game.stable_coalitions import (
    MOST_DIVIDED,
    CapReached,
    CoalitionChange,
    Division,
    MergeSplitSearch,
    by_shapley,
    merge_and_split,
    subgame,
)


def equally(game: Game, coalition: int) -> np.ndarray:
    return np.full(coalition.bit_count(), game.value(coalition) / coalition.bit_count())


def in_proportion(weights: list[float]) -> Division:
    def divide(game: Game, coalition: int) -> np.ndarray:
        own = np.array([weight for i, weight in enumerate(weights) if coalition >> i & 1])
        return game.value(coalition) * own / own.sum() if own.sum() else equally(game, coalition)

    return divide


def change_of(
    game: Game, partition: tuple[int, ...], division: Division = by_shapley, most: int = MOST_DIVIDED
) -> CoalitionChange | None:
    """A merge or split that applies to a partition; None: it is stable."""
    return MergeSplitSearch(game, division, most).change(partition)


def partitions(mask: int) -> Iterator[tuple[int, ...]]:
    """All partitions of a coalition, the whole first."""
    if not mask:
        yield ()
        return
    first = mask & -mask
    rest = mask ^ first
    part = rest
    while True:
        for others in partitions(rest ^ part):
            yield first | part, *others
        if not part:
            return
        part = part - 1 & rest


def applies(values: list[int], before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether with equal shares nobody loses by the change and somebody gains, in exact numbers."""

    def payoffs(blocks: tuple[int, ...]) -> list[Fraction]:
        amounts = {i: Fraction(values[block], block.bit_count()) for block in blocks for i in range(8) if block >> i & 1}
        return [amounts[i] for i in sorted(amounts)]

    pairs = list(zip(payoffs(before), payoffs(after), strict=True))
    return all(new >= old for old, new in pairs) and any(new > old for old, new in pairs)


def lasts(values: list[int], partition: tuple[int, ...]) -> bool:
    """By trying every merge of some coalitions and every partition of one."""
    merges = [(blocks, (sum(blocks),)) for many in range(2, len(partition) + 1) for blocks in combinations(partition, many)]
    splits = [((block,), parts) for block in partition for parts in partitions(block) if len(parts) > 1]
    return not any(applies(values, before, after) for before, after in merges + splits)


def payoffs(game: Game, partition: tuple[int, ...], division: Division) -> np.ndarray:
    found = np.zeros(len(game.players))
    for block in partition:
        found[[i for i in range(len(found)) if block >> i & 1]] = division(game, block)
    return found


@given(games.tables(2, 5), st.data())
def test_a_partition_lasts_where_no_merge_and_no_split_applies(values: list[int], data: st.DataObject) -> None:
    game = games.named(values)
    for _ in range(3):
        partition = data.draw(st.sampled_from(list(partitions(game.everyone))))
        change = change_of(game, partition, equally)
        assert (change is None) == lasts(values, partition)
        if change:
            assert applies(values, change.before, change.after)
            assert set(change.before) <= set(partition)
            assert sum(change.before) == sum(change.after)


@given(games.tables(2, 5))
def test_what_forms_lasts_and_nobody_gets_less_than_alone(values: list[int]) -> None:
    game = games.named(values)
    formed = merge_and_split(game, equally)
    assert formed.stable
    assert lasts(values, formed.partition)
    assert sum(formed.partition) == game.everyone
    assert formed.payoffs == pytest.approx(payoffs(game, formed.partition, equally))

    weights = [float(i) for i in range(len(game.players))]
    alone = game.table[[1 << i for i in range(len(game.players))]]
    for division in (equally, by_shapley, in_proportion(weights)):
        formed = merge_and_split(game, division)
        assert (formed.payoffs >= alone - 1e-9).all()
        assert formed.payoffs == pytest.approx(payoffs(game, formed.partition, division))
        assert change_of(game, formed.partition, division) is None

    # The changes lead from the players alone to the partition.
    blocks = {1 << i for i in range(len(game.players))}
    for change in formed.changes:
        assert blocks >= set(change.before)
        blocks = blocks - set(change.before) | set(change.after)
    assert tuple(sorted(blocks)) == formed.partition
    assert formed.rounds == len(formed.changes)


@given(games.convex_tables())
def test_everyone_joins_where_to_join_pays_more_the_more_there_are(values: list[float]) -> None:
    game = games.named([value + mask.bit_count() ** 2 for mask, value in enumerate(values)])
    formed = merge_and_split(game)
    assert formed.partition == (game.everyone,)
    assert formed.payoffs == pytest.approx(exact(game).shares)


def test_pairs_where_a_third_one_spoils_it() -> None:
    game = games.of_members([1] * 4, lambda members: 2 if len(members) == 2 else 0)
    formed = merge_and_split(game)
    assert [block.bit_count() for block in formed.partition] == [2, 2]
    assert formed.payoffs == pytest.approx([1] * 4)
    assert formed.rounds == 2


def test_the_pair_that_gains_most_merges_first() -> None:
    game = games.named([0, 0, 0, 4, 0, 6, 5, 5])
    formed = merge_and_split(game, equally)
    assert formed.changes == (CoalitionChange((0b001, 0b100), (0b101,)),)
    assert formed.partition == (0b010, 0b101)
    assert formed.payoffs.tolist() == [3, 0, 3]


def test_groups_merge_that_no_pair_begins() -> None:
    game = games.of_members([1] * 4, lambda members: 8 if len(members) == 4 else 0)
    formed = merge_and_split(game)
    assert formed.changes == (CoalitionChange((1, 2, 4, 8), (15,)),)
    assert change_of(game, (3, 12)) == CoalitionChange((3, 12), (15,))


def test_a_split_may_have_many_parts_and_must_hurt_nobody() -> None:
    alone = games.of_members([1] * 3, lambda members: 3 if len(members) == 1 else 0)
    assert change_of(alone, (7,)) == CoalitionChange((7,), (1, 2, 4))
    # One would gain alone, and the two that are left would lose.
    selfish = games.named([0, 5, 0, 6, 0, 6, 0, 9])
    assert change_of(selfish, (7,), equally) is None


def test_gloves_merge_with_one_partner_who_then_gets_nothing_more() -> None:
    formed = merge_and_split(games.GLOVES)
    assert formed.partition == (0b011, 0b100)
    assert formed.payoffs == pytest.approx([0.5, 0.5, 0])


def test_division_by_shapley() -> None:
    game = games.airport([1.0, 2.0, 3.0, 7.0])
    assert by_shapley(game, game.everyone) == pytest.approx(exact(game).shares)
    assert by_shapley(game, 0b1010) == pytest.approx([1, 1])
    assert by_shapley(game, 0b0111) == pytest.approx(exact(games.airport([1.0, 2.0, 3.0])).shares)


def test_a_part_of_a_game() -> None:
    game = games.airport([1.0, 2.0, 3.0, 7.0])
    part = subgame(game, 0b1010)
    assert part.players == ("site1", "site3")
    assert part.table.tolist() == [game.value(mask) for mask in (0, 0b0010, 0b1000, 0b1010)]


def test_a_large_coalition_is_divided_by_samples() -> None:
    # Only pairs matter here, so that orders and their reverses are exact.
    weights = [float(i + 1) for i in range(15)]
    shares = by_shapley(games.of_members(weights, lambda members: sum(members) ** 2), (1 << 15) - 3)
    assert shares == pytest.approx([weight * 118 for weight in weights if weight != 2])


def test_each_coalition_is_divided_once_and_the_cap_is_said() -> None:
    divided: list[int] = []

    def division(game: Game, coalition: int) -> np.ndarray:
        divided.append(coalition)
        return equally(game, coalition)

    game = games.of_members([1.0] * 12, lambda members: len(members) ** 2)
    formed = merge_and_split(game, division, most=100)
    assert len(divided) == len(set(divided)) == 100
    assert not formed.stable
    assert formed.note == "stopped after 100 divided coalitions: other merges and splits were not tried"
    assert formed.rounds > 0
    assert (formed.payoffs >= 1).all()
    with pytest.raises(CapReached):
        change_of(game, (game.everyone,), equally, most=100)

    divided.clear()
    formed = merge_and_split(game, division)
    assert formed.stable
    assert formed.partition == (game.everyone,)
    assert len(divided) == len(set(divided)) <= 4095


def test_rounding_is_no_gain() -> None:
    # Sums of tenths are not associative: the same amounts differ in the last bits.
    game = games.of_members([0.1, 0.2, 0.3, 0.7, 1e6], sum)
    for division in (by_shapley, in_proportion([0.1, 0.2, 0.3, 0.7, 1e6])):
        formed = merge_and_split(game, division)
        assert (formed.rounds, formed.stable) == (0, True)


def test_rounding_is_no_loss() -> None:
    def division(game: Game, coalition: int) -> np.ndarray:
        return np.array({1: [0.1 + 0.2], 2: [0.5], 3: [0.3, 1.0]}[coalition])

    assert merge_and_split(games.named([0, 0.3, 0.5, 1.3]), division).partition == (3,)


def test_what_lasts_need_not_be_in_the_core() -> None:
    # Two of three decide: the pair that formed is stable by merge and split, and either other pair would gain.
    game = games.of_members([1, 1, 1], lambda members: len(members) >= 2)
    formed = merge_and_split(game)
    assert formed.stable
    assert blocking(game, formed.payoffs)


def test_mistakes() -> None:
    with pytest.raises(UserError, match="2 coalitions to divide"):
        merge_and_split(games.GLOVES, most=2)
    with pytest.raises(UserError, match="to 2 sites; let it give each a finite amount"):
        merge_and_split(games.GLOVES, lambda game, coalition: np.ones(1))
