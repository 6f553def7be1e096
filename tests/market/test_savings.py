"""Savings games of simulated federations."""

import pytest

from market.sites import two_sites
from paceline.market.savings import Savings, Sharing


@pytest.mark.parametrize("one_pool", [False, True])
def test_what_two_sites_save(one_pool: bool) -> None:
    savings = Savings.of(two_sites(), Sharing(one_pool=one_pool))
    assert savings.total(0b01) == pytest.approx(1000 / 3600)
    assert savings.worth(0b01) == savings.worth(0b10) == 0
    assert savings.worth(0b11) == pytest.approx(2000 / 3600)
    assert savings.mean_wait_s(0b11) == 0 and savings.mean_wait_s(0b10) == 500


def test_all_coalitions_are_simulated_once_with_progress() -> None:
    savings, told = Savings.of(two_sites()), []
    savings.simulate_all(progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    savings.simulate_all(progress=lambda done, of: told.append((done, of)))
    assert len(told) == 3
    assert savings.game().table.tolist() == pytest.approx([0, 0, 0, 2000 / 3600])


def test_delays_are_counted() -> None:
    free = Savings.of(two_sites(data_bytes={"": 1e9}))
    slow = Savings.of(two_sites(data_bytes={"": 1e9}, wan_bytes_per_s=1e7))
    assert free.worth(0b11) - slow.worth(0b11) == pytest.approx(2 * 100 / 3600)
