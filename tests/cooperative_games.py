"""Games with known answers, for the tests of what divides savings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import factorial

import numpy as np
from hypothesis import strategies as st

from paceline.market.game.game import Game

GLOVES = Game(("left", "right", "other right"), lambda mask: float(bool(mask & 1) and bool(mask & 6)))
"""One left glove, two right ones; a pair is worth 1."""

POOLS = ((8, 6.0), (16, 12.0), (32, 24.0))
"""Servers and load, in jobs that are served at once on average."""


def named(values: Sequence[float] | np.ndarray) -> Game:
    """The game of a table."""
    players = tuple(f"site{i}" for i in range(len(values).bit_length() - 1))
    return Game(players, lambda mask: float(values[mask]))


def membership(game: Game) -> np.ndarray:
    """1 where player i (column) is in a coalition (row), shape (2^n, n)."""
    return (np.arange(len(game.table))[:, None] >> np.arange(len(game.players)) & 1).astype(float)


def in_mask(mask: int, amounts: Sequence[float]) -> list[float]:
    """The amounts of the members."""
    return [amount for i, amount in enumerate(amounts) if mask >> i & 1]


def of_members(amounts: Sequence[float], worth: Callable[[list[float]], float]) -> Game:
    """The game whose value depends on the amounts of the members."""
    players = [f"site{i}" for i in range(len(amounts))]
    return Game(tuple(players), lambda mask: float(worth(in_mask(mask, amounts))))


def airport(costs: Sequence[float]) -> Game:
    """What airlines save that share one runway: it costs what the longest one costs (Littlechild and Owen 1973)."""
    return of_members(costs, lambda members: sum(members) - max(members))


def airport_shapley(costs: Sequence[float]) -> list[float]:
    """What each pays, costs ascending: each piece of the runway is shared by those that need it."""
    pieces = [after - before for before, after in pairwise([0.0, *costs])]
    return [sum(piece / (len(costs) - j) for j, piece in enumerate(pieces[: i + 1])) for i in range(len(costs))]


def airport_nucleolus(costs: Sequence[float]) -> list[float]:
    """What each pays, costs ascending (Littlechild 1974): the smallest possible rate from here to each longer runway."""
    paid: list[float] = []
    for i in range(len(costs) - 1):
        paid.append(min((costs[j] - sum(paid)) / (j - i + 2) for j in range(i, len(costs) - 1)))
    return [*paid, costs[-1] - sum(paid)]


def bankruptcy(estate: float, claims: Sequence[float]) -> Game:
    """What creditors can get without a court: what the others' claims leave of the estate (Aumann and Maschler 1985)."""
    return of_members(claims, lambda members: max(0.0, estate - (sum(claims) - sum(members))))


def erlang_c_queue(servers: int, load: float) -> float:
    """The mean number of jobs that wait in an M/M/c queue."""
    busy = load**servers / factorial(servers) * servers / (servers - load)
    waits = busy / (sum(load**k / factorial(k) for k in range(servers)) + busy)
    return waits * load / (servers - load)


def erlang_pools() -> Game:
    """What pools of servers save of their queues when they join."""
    alone = [erlang_c_queue(*pool) for pool in POOLS]

    def saved(mask: int) -> float:
        pools = [pool for i, pool in enumerate(POOLS) if mask >> i & 1]
        pooled = erlang_c_queue(sum(servers for servers, _ in pools), sum(load for _, load in pools))
        return sum(in_mask(mask, alone)) - pooled

    return Game(("small", "middle", "large"), saved)


def tables(least: int = 2, most: int = 5) -> st.SearchStrategy[list[int]]:
    """Tables of whole numbers, in which values often repeat."""
    players = st.integers(least, most)
    return players.flatmap(
        lambda n: st.lists(st.integers(-20, 60), min_size=(1 << n) - 1, max_size=(1 << n) - 1).map(lambda rest: [0, *rest])
    )


@st.composite
def convex_tables(draw: st.DrawFn) -> list[float]:
    """Convex games: sums of nonnegative unanimity games, and of anything for one player."""
    players = draw(st.integers(2, 5))
    carriers = draw(st.lists(st.tuples(st.integers(1, (1 << players) - 1), st.integers(0, 100)), min_size=1, max_size=8))
    own = draw(st.lists(st.integers(-50, 50), min_size=players, max_size=players))
    return [
        float(sum(worth for carrier, worth in carriers if carrier & mask == carrier) + sum(in_mask(mask, own)))
        for mask in range(1 << players)
    ]
