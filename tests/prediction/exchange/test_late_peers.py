"""Simulated rounds of peers: by hand where nothing overlaps, and as measured between emulated hosts."""

from __future__ import annotations

from statistics import NormalDist

import pytest

from paceline.prediction.exchange.late_peers import PeerRounds, peer_rounds


def ring(members: int) -> tuple[float, float]:
    """Return an all-reduce of 4 MB at 12.5 MB/s."""
    sent = 2 * (members - 1) / members * 4e6
    return sent / 12.5e6, sent


def rounds(
    *work_s: float, deadline_s: float | None = None, max_age: int = 0, fetch_s: float = 0.7, **more: float
) -> PeerRounds:
    return peer_rounds(work_s, deadline_s=deadline_s, max_age=max_age, exchange=ring, fetch_s=fetch_s, **more)


def test_without_a_deadline_all_wait_for_the_slowest() -> None:
    found = rounds(2, 2, 2, 3)
    assert found.round_s == pytest.approx(3 + ring(4)[0]) and found.sent_bytes == 6e6
    assert (found.counted, found.age, found.members, found.fetches) == (1, 0, 4, 0)
    most = NormalDist().inv_cdf((4 - 0.375) / 4.25)  # the expected maximum of four
    assert rounds(2, 2, 2, 2, spread=0.1).round_s == pytest.approx(2 * (1 + 0.1 * most) + ring(4)[0])
    assert rounds(2, 2, 2, 3, deadline_s=5.0) == found, "a deadline that all meet changes nothing"


def test_a_late_peer_without_an_age_loses_its_round_and_begins_with_the_newest_weights() -> None:
    """The others: work, deadline, exchange of three. The slow one trains 6 s, fetches, and never is in time."""
    found = rounds(2, 2, 2, 6, deadline_s=0.3, fetch_s=0.1)
    usual, late = 2 + 0.3 + ring(3)[0], 6 + 0.1 + 0.08  # the third: its mean wait for an exchange without it
    rates = [1 / usual] * 3 + [1 / late]
    assert found.round_s == pytest.approx(4 / sum(rates), rel=0.02) and found.members == 3
    assert found.counted == pytest.approx(3 / usual / sum(rates), rel=0.02)
    assert found.fetches == pytest.approx(1 / late / sum(rates), rel=0.15)


def test_decoupled_learners_wait_for_nobody_and_old_changes_are_lost() -> None:
    """With instant fetches a learner takes its rounds alone. The slow one's change is as old as the others' rounds are many."""
    free = rounds(2, 2.01, 2.02, 20, deadline_s=0.0, max_age=50, fetch_s=0.0)
    rate = 1 / 2 + 1 / 2.01 + 1 / 2.02 + 1 / 20
    assert free.round_s == pytest.approx(4 / rate, rel=0.01) and free.members < 1.1
    assert (free.counted, free.wait_s, free.sent_bytes) == (1, pytest.approx(0, abs=0.05), pytest.approx(0, abs=1e5))
    young = rounds(2, 2.01, 2.02, 20, deadline_s=0.0, max_age=5, fetch_s=0.0)
    assert young.counted == pytest.approx(1 - (1 / 20) / rate, abs=0.01), "only the slow one's changes are older than 5"
    none = rounds(2, 2.01, 2.02, 20, deadline_s=0.0, fetch_s=0.0)
    assert none.counted < 0.7, "the more a learner is alone, the older are the others"


def test_transfers_of_one_outer_step_share_the_senders_line() -> None:
    """Three peers that missed it fetch at once, each in three times the seconds; the age lets all count in the next one."""
    found = rounds(2, 2, 2, 2.1, deadline_s=0.0, max_age=9)
    assert found.counted == 1 and found.fetch_s / found.fetches > 1.5 * 0.7
    parts = found.work_s + found.exchange_s + found.fetch_s + found.wait_s
    assert parts == pytest.approx(found.round_s) and found.wait_s > 0


def test_measured_rounds_between_four_emulated_hosts() -> None:
    """Seconds, fetches and counted shares of a first run at 100 Mb/s, 40 steps of 50 ms, by no constant of this model."""
    for slow, deadline_s, age, measured_s, fetches, counted in (
        (3.0, None, 0, 3.602, 0.0, 1.0),
        (3.0, 0.3, 0, 3.170, 0.25, 0.81),
        (3.0, 0.3, 2, 4.430, 0.53, 1.0),
        (3.0, 0.0, 8, 4.490, 0.58, 1.0),
    ):
        size = 12e6 if age else 8e6
        found = rounds(2, 2, 2, slow, deadline_s=deadline_s, max_age=age, fetch_s=size / 11.8e6, spread=0.01)
        assert found.round_s == pytest.approx(measured_s, rel=0.08)
        assert (found.fetches, found.counted) == (pytest.approx(fetches, abs=0.06), pytest.approx(counted, abs=0.03))
