"""Entries of a simulation: complete, in whole millionths, and the same again."""

from __future__ import annotations

from collections import Counter

import pytest

from market.sites import job, site, two_sites
from paceline.market.federation.site import Federation
from paceline.market.game.settlement import savings_under, settle
from paceline.market.ledger.posting import entries_of


def posted(federation: Federation, rule: str) -> list:  # type: ignore[type-arg]
    savings = savings_under(federation, rule)
    return list(entries_of(savings, settle(savings, rule)))


def test_each_stretch_on_borrowed_devices_is_an_entry() -> None:
    first, second = posted(two_sites(data_bytes={"": 7e9}), "credits")
    assert (first.owner, first.lender, first.start_us, first.end_us) == ("A", "B", 0, 1_000_000_000)
    assert first.device_us == first.normalised_us == first.amount == 8_000_000_000 and first.wan_bytes == 7_000_000_000
    assert (second.owner, second.lender, second.job) == ("B", "A", "b2")
    assert first.reason == second.reason == "ran" and first.unit == "micro-credits"


def test_reclaimed_stretches_say_so() -> None:
    a = site("A", [job("a1", 0, 100), job("a2", 0, 100)])
    b = site("B", [job("b", 50, 40)], notice_s=10.0)
    entries = posted(Federation(sites=(a, b), save_s=5.0), "credits")
    assert [entry.reason for entry in entries] == ["reclaimed"] and entries[0].end_us == 60_000_000


@pytest.mark.parametrize("rule", ["shapley", "least-core", "prices", "auction"])
def test_balances_are_what_was_settled(rule: str) -> None:
    busy = site("busy", [job(f"a{i}", 0, 3600) for i in range(5)])
    federation = Federation(sites=(busy, site("idle", [job("b", 50_000, 60)]), site("rest", [job("c", 50_000, 60)])))
    savings = savings_under(federation, rule)
    settled = settle(savings, rule)
    balances: Counter[str] = Counter()
    for entry in entries_of(savings, settled):
        balances[entry.lender] += entry.amount
        balances[entry.owner] -= entry.amount
    assert sum(balances.values()) == 0
    for name, received in zip(federation.names, settled.received.tolist(), strict=True):
        assert balances[name] / 1e6 == pytest.approx(received, abs=1e-5)
