"""Fair shares, against the values that Slurm's documentation and a cluster publish."""

from __future__ import annotations

import math

import pytest

from paceline.scheduling.queues.fair_share import DecayedUsage, fair_share_factors
from paceline.scheduling.queues.slurm_settings import Account, SlurmSettings

EXAMPLE = {
    "A": Account(shares=40),
    "D": Account(shares=60),
    "B": Account(parent="A", shares=30, users={"1": 1}),
    "C": Account(parent="A", shares=10, users={"2": 1, "3": 1}),
    "E": Account(parent="D", shares=25, users={"4": 1}),
    "F": Account(parent="D", shares=35, users={"5": 1}),
}
"""Accounts of the example of classic_fair_share.html, figure 3."""
USAGE = {("B", "1"): 0.2, ("C", "2"): 0.25, ("E", "4"): 0.25, ("other", "6"): 0.3}


def test_the_classic_factors_are_those_of_the_documentation() -> None:
    """The users of the example use 0.7 of the machine; the rest has no shares there."""
    accounts = {**EXAMPLE, "other": Account(shares=0)}
    factors = fair_share_factors(SlurmSettings(fair_tree=False, accounts=accounts), USAGE)
    expected = {("B", "1"): 0.408479, ("C", "2"): 0.022097, ("C", "3"): 0.125, ("E", "4"): 0.5, ("F", "5"): 0.749154}
    assert {user: factors[user] for user in expected} == pytest.approx(expected, abs=1e-4)


def test_the_dampened_factor_is_that_of_a_log() -> None:
    """slurmctld.log of brooks.chem.lsa.umich.edu/gollum/priority.php: 2**(-0.111913/0.002453) = 0.042337, damped by 10."""
    settings = SlurmSettings(
        fair_tree=False, dampening=10, accounts={"a": Account(shares=0.002453), "b": Account(shares=1 - 0.002453)}
    )
    assert fair_share_factors(settings, {("a", "x"): 0.111913, ("b", "y"): 1 - 0.111913})["a", "x"] == pytest.approx(
        0.042337, abs=2e-5
    )


def test_the_fair_tree_ranks_users_by_the_first_account_in_which_they_differ() -> None:
    """Accounts A and D have Level FS 0.4/0.643 and 0.6/0.357, so the users of D come first."""
    usage = {user: used for user, used in USAGE.items() if user[0] != "other"}
    factors = fair_share_factors(SlurmSettings(accounts=EXAMPLE), usage)
    assert [user for (_, user), _ in sorted(factors.items(), key=lambda pair: -pair[1])] == ["5", "4", "1", "3", "2"]
    assert sorted(factors.values()) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_level_fairshare_and_ranks_are_those_that_sshare_printed() -> None:
    """sshare -l of an account of 23 users at EPFL (scitas-data.epfl.ch): three with usage rank last, 1/300 apart."""
    users = {f"idle{n}": 1.0 for n in range(20)} | {"eroche": 1.0, "qubit": 1.0, "rezzonic": 1.0}
    settings = SlurmSettings(accounts={"scitas-ge": Account(users=users)})
    raw = {"eroche": 344.0, "qubit": 351.0, "rezzonic": 681.0}
    factors = fair_share_factors(settings, {("scitas-ge", user): used for user, used in raw.items()})
    assert [round(factors["scitas-ge", user] * 23) for user in ("idle7", "eroche", "qubit", "rezzonic")] == [23, 3, 2, 1]
    levels = [1 / 23 / (used / 1376) for used in raw.values()]
    assert levels == pytest.approx([0.173913, 0.170455, 0.087848], abs=2e-5), "raw usage is printed in whole seconds"


def test_usage_halves_with_every_half_life() -> None:
    usage = DecayedUsage(100.0, {("a", "x"): 8.0})
    usage.pass_to(0.0)
    usage.hold({("a", "y"): 2.0})
    usage = DecayedUsage(100.0, {}, usage.to_json())
    usage.pass_to(200.0)
    held = sum(2.0 * 0.5 ** ((200 - second) / 100) for second in [0.5 + n for n in range(200)])
    assert usage.usage == pytest.approx({("a", "x"): 2.0, ("a", "y"): held}, rel=1e-5)
    kept = DecayedUsage(0.0, {("a", "x"): 8.0}, None)
    kept.pass_to(0.0)
    kept.hold({("a", "x"): 1.0})
    kept.pass_to(50.0)
    assert kept.usage == {("a", "x"): 58.0} and not math.isnan(kept.usage["a", "x"])
