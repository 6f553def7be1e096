"""Max-min fairness against its definition, and links that carry every byte once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.prediction.asynchronous.sharing import SharedLinks, fair_shares


@given(st.integers(1, 5), st.integers(1, 4), st.data())
def test_shares_are_max_min_fair(senders: int, receivers: int, data: st.DataObject) -> None:
    """Every connection has a full link on which nobody has more than it (Bertsekas, Gallager 1992, section 6.5.2)."""
    bits = data.draw(st.lists(st.booleans(), min_size=senders * receivers, max_size=senders * receivers))
    sending = np.array(bits).reshape(senders, receivers)
    rates = fair_shares(sending, 10.0)
    assert (rates[~sending] == 0).all()
    out, into = rates.sum(axis=1), rates.sum(axis=0)
    assert (out <= 10 + 1e-6).all() and (into <= 10 + 1e-6).all()
    for a, b in zip(*np.nonzero(sending), strict=True):
        own = rates[a, b] + 1e-6
        assert (out[a] > 10 - 1e-6 and own >= rates[a].max()) or (into[b] > 10 - 1e-6 and own >= rates[:, b].max())


def drain(fabric: SharedLinks, pieces: list[tuple[float, int, int, float]]) -> list[tuple[float, int, int, float]]:
    """Send (when, sender, receiver, bytes) and see when each is through."""
    todo, through, now = sorted(pieces, reverse=True), [], 0.0
    while todo or fabric.changed or np.isfinite(fabric.next_time):
        soon = min(fabric.next_time, todo[-1][0] if todo else np.inf)
        if fabric.changed and soon > now:
            fabric.settle(now)
            continue
        now = soon
        if todo and todo[-1][0] == now:
            _, sender, receiver, size = todo.pop()
            fabric.send(sender, receiver, size, 0, now)
        else:
            sender, receiver, _, size, _ = fabric.pop()
            through.append((now, sender, receiver, size))
    return through


def test_two_share_and_the_rest_is_alone() -> None:
    """10 and 20 bytes into one link of 10 bytes/s: both at 5 until 2 s, then the rest at 10."""
    assert drain(SharedLinks(2, 1, 10.0), [(0.0, 0, 0, 10.0), (0.0, 1, 0, 20.0)]) == [(2.0, 0, 0, 10.0), (3.0, 1, 0, 20.0)]


def test_pieces_of_a_connection_follow_each_other() -> None:
    through = drain(SharedLinks(1, 1, 10.0), [(0.0, 0, 0, 10.0), (0.1, 0, 0, 5.0), (0.2, 0, 0, 10.0)])
    assert np.allclose([at for at, *_ in through], [1.0, 1.5, 2.5])


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 2), st.integers(0, 1), st.floats(0.1, 50)), min_size=1, max_size=20))
def test_every_piece_comes_through_once_and_no_link_is_overfull(pieces: list[tuple[float, int, int, float]]) -> None:
    through = drain(SharedLinks(3, 2, 10.0), pieces)
    assert sorted(size for *_, size in through) == sorted(size for *_, size in pieces)
    last = max(at for at, *_ in through)
    for host in range(2):
        mine = [size for _, _, receiver, size in through if receiver == host]
        assert sum(mine) <= 10.0 * last * (1 + 1e-9)
    alone = sum(size for *_, size in pieces) / 10.0
    assert last <= max(when for when, *_ in pieces) + alone + 1e-6, "a link with something to send never rests"
