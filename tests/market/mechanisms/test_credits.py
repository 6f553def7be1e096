"""Credits: the authors' published cases, a slice-by-slice oracle, conservation, and what false demands bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.market.mechanisms.credits import Allocation, CreditState, open_accounts, quantum

ALPHAS = st.sampled_from([Fraction(0), Fraction(1, 3), Fraction(1, 2), Fraction(1)])
Trace = list[dict[str, int]]


@st.composite
def federations(draw: st.DrawFn, most_credits: int = 60) -> tuple[CreditState, Trace]:
    """Two to four sites, of one size or of several, with few credits or enough, and one to four quanta."""
    names = "ABCD"[: draw(st.integers(2, 4))]
    sizes = st.just(draw(st.integers(1, 4))) if draw(st.booleans()) else st.integers(1, 5)
    state = open_accounts({name: draw(sizes) for name in names}, draw(ALPHAS), draw(st.integers(0, most_credits)))
    demands = st.fixed_dictionaries({name: st.integers(0, 9) for name in names})
    return state, draw(st.lists(demands, min_size=1, max_size=4))


def run(state: CreditState, trace: Trace) -> tuple[CreditState, list[Allocation]]:
    allocations = []
    for demands in trace:
        state, allocation = quantum(state, demands)
        allocations.append(allocation)
    return state, allocations


def useful(state: CreditState, trace: Trace, site: str, reports: Sequence[int]) -> int:
    """Slices that the site can use when it reports other demands than its own."""
    told = [{**demands, site: report} for demands, report in zip(trace, reports, strict=True)]
    _, allocations = run(state, told)
    return sum(min(a.slices[site], demands[site]) for a, demands in zip(allocations, trace, strict=True))


PUBLISHED = [
    # credits, demands, slices that each site lends or borrows
    ((10, 100, 100, 100), (10, 0, 0, 0), (5, 2, 2, 1)),
    ((10, 1, 100, 100), (10, 4, 0, 0), (5, 1, 2, 2)),
    ((10, 100, 1, 1), (0, 10, 10, 10), (5, 5, 0, 0)),
    ((10, 100, 100, 1), (0, 10, 10, 10), (5, 3, 2, 0)),
    ((10, 100, 100, 100), (0, 10, 10, 10), (5, 2, 2, 1)),
    ((10, 100, 10, 10), (0, 6, 10, 10), (5, 1, 2, 2)),
    ((10, 4, 1, 0), (0, 10, 10, 10), (5, 4, 1, 0)),
]
"""Cases of the tests of the authors' implementation (github.com/resource-disaggregation/karma): shares of 5, all guaranteed."""


@pytest.mark.parametrize(("credits", "demands", "moved"), PUBLISHED)
def test_published_cases(credits: Sequence[int], demands: Sequence[int], moved: Sequence[int]) -> None:
    state = CreditState(dict.fromkeys("ABCD", 5), Fraction(1), dict(zip("ABCD", credits, strict=True)), sum(credits))
    after, done = quantum(state, dict(zip("ABCD", demands, strict=True)))
    expected = dict(zip("ABCD", moved, strict=True))
    assert {site: done.borrowed[site] + done.lent[site] for site in "ABCD"} == expected
    changes = {site: units if demands["ABCD".index(site)] < 5 else -units for site, units in expected.items()}
    assert after.credits == {site: state.credits[site] + change for site, change in changes.items()}


def test_published_shared_slices_go_last() -> None:
    """Donors of 2, 1 and 1 slices lend all before a shared slice goes (their case has five shared slices, this one four)."""
    state = CreditState(dict.fromkeys("ABCD", 6), Fraction(5, 6), {"A": 9, "B": 0, "C": 99, "D": 99}, 207)
    after, done = quantum(state, {"A": 10, "B": 3, "C": 4, "D": 4})
    assert (dict(done.lent), done.shared, done.slices["A"], done.idle) == ({"A": 0, "B": 2, "C": 1, "D": 1}, 1, 10, 3)
    assert after.credits == {"A": 5, "B": 3, "C": 101, "D": 101}


def test_published_trace() -> None:
    """Three users with equal mean demands end with equal totals, which max-min fairness does not give (the same source)."""
    demands = {"A": [6, 12, 0, 6, 6], "B": [6, 0, 12, 6, 6], "C": [0, 0, 0, 18, 12]}
    state = open_accounts(dict.fromkeys("ABC", 6), Fraction(1, 2), 1)
    trace = [{site: each[t] for site, each in demands.items()} for t in range(5)]
    _, allocations = run(state, trace)
    assert {site: sum(a.slices[site] for a in allocations) for site in "ABC"} == dict.fromkeys("ABC", 24)
    before_the_last, _ = run(state, trace[:4])
    # Theirs also hands out what was paid for shared slices, the same to all: the differences are the same, 18, 18 and 27.
    assert {site: before_the_last.credits[site] - before_the_last.credits["A"] for site in "ABC"} == {"A": 0, "B": 0, "C": 9}


def oracle(state: CreditState, demands: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Slices and credits, a slice at a time, straight from the steps."""
    demands = {site: demands[site] for site in state.fair_shares}  # between equally rich sites this order decides
    kept = {site: int(state.alpha * share) for site, share in state.fair_shares.items()}
    credits = {site: state.credits[site] + state.fair_shares[site] - kept[site] for site in demands}
    slices = {site: min(demands[site], kept[site]) for site in demands}
    donated = {site: kept[site] - slices[site] for site in demands}
    shared = sum(state.fair_shares.values()) - sum(kept.values())
    lenders = dict(credits)
    while shared or any(donated.values()):
        wanting = [site for site in demands if slices[site] < demands[site] and credits[site] > 0]
        if not wanting:
            break
        richest = max(wanting, key=lambda site: Fraction(credits[site], state.fair_shares[site]))
        slices[richest] += 1
        credits[richest] -= 1
        donors = [site for site in demands if donated[site]]
        if donors:
            poorest = min(donors, key=lambda site: Fraction(lenders[site], state.fair_shares[site]))
            donated[poorest] -= 1
            lenders[poorest] += 1
        else:
            shared -= 1
    # Both copies began at the same credits, so their sum counts them twice.
    began = {site: state.credits[site] + state.fair_shares[site] - kept[site] for site in demands}
    return slices, {site: credits[site] + lenders[site] - began[site] for site in demands}


@given(federations())
def test_a_slice_at_a_time(drawn: tuple[CreditState, Trace]) -> None:
    state, trace = drawn
    for demands in trace:
        slices, credits = oracle(state, demands)
        state, done = quantum(state, demands)
        assert done.slices == slices
        assert state.credits == credits


@given(federations())
def test_credits_and_slices_are_conserved(drawn: tuple[CreditState, Trace]) -> None:
    state, trace = drawn
    for demands in trace:
        before, (state, done) = state, quantum(state, demands)
        grant = sum(state.fair_shares.values()) - sum(state.guaranteed.values())
        assert state.granted == before.granted + grant
        assert state.retired == before.retired + done.shared
        assert sum(state.credits.values()) == state.granted - state.retired
        assert sum(done.borrowed.values()) == sum(done.lent.values()) + done.shared
        assert sum(done.slices.values()) + done.idle == sum(state.fair_shares.values())
        assert min(state.credits.values()) >= 0
        assert all(done.slices[site] <= demands[site] for site in demands)


@given(federations())
def test_the_guaranteed_share_is_sure_and_nothing_idles_in_vain(drawn: tuple[CreditState, Trace]) -> None:
    state, trace = drawn
    for demands in trace:
        state, done = quantum(state, demands)
        assert all(done.slices[site] >= min(demands[site], state.guaranteed[site]) for site in demands)
        if done.idle:
            assert all(done.slices[site] == demands[site] or state.credits[site] == 0 for site in demands)


@given(federations())
def test_with_alpha_one_nobody_has_less_than_alone(drawn: tuple[CreditState, Trace]) -> None:
    state, trace = drawn
    _, allocations = run(replace(state, alpha=Fraction(1)), trace)
    for allocation, demands in zip(allocations, trace, strict=True):
        assert all(allocation.slices[site] >= min(demands[site], state.fair_shares[site]) for site in demands)


def test_with_a_smaller_alpha_a_site_may_have_less_than_alone() -> None:
    """A has paid for what it borrowed before: B, which lent, now takes slices of A."""
    state = open_accounts({"A": 4, "B": 4}, Fraction(1, 2), 10)
    state, _ = quantum(state, {"A": 8, "B": 0})
    _, done = quantum(state, {"A": 4, "B": 8})
    assert done.slices == {"A": 2, "B": 6}


@settings(max_examples=10 * settings.default.max_examples)
@given(federations(), st.data())
def test_asking_for_more_never_helps(drawn: tuple[CreditState, Trace], data: st.DataObject) -> None:
    state, trace = drawn
    site = data.draw(st.sampled_from(sorted(trace[0])))
    truth = [demands[site] for demands in trace]
    lies = [demand + data.draw(st.integers(0, 6)) for demand in truth]
    assert useful(state, trace, site, lies) <= useful(state, trace, site, truth)


@settings(max_examples=10 * settings.default.max_examples)
@given(federations(), st.data())
def test_no_false_demand_helps_in_its_own_quantum(drawn: tuple[CreditState, Trace], data: st.DataObject) -> None:
    """Without knowledge of later demands a site therefore has no reason to lie."""
    state, trace = drawn
    site = data.draw(st.sampled_from(sorted(trace[0])))
    truth = [demands[site] for demands in trace]
    lies = [*truth[:-1], data.draw(st.integers(0, 15))]
    assert useful(state, trace, site, lies) <= useful(state, trace, site, truth)


def test_asking_for_less_helps_one_that_knows_the_future() -> None:
    """Why the rule is truthful online only: B saves a credit in the first quantum and has a slice more in the third."""
    state = open_accounts(dict.fromkeys("ABCD", 3), Fraction(1, 2), 50)
    trace = [dict(zip("ABCD", each, strict=True)) for each in ((2, 1, 2, 8), (6, 7, 1, 4), (2, 7, 4, 6))]
    assert useful(state, trace, "B", [1, 7, 7]) == 10
    assert useful(state, trace, "B", [0, 7, 7]) == 11


def test_riches_count_by_the_slice() -> None:
    """A site of ten slices with twenty credits is poorer than one of two slices with six."""
    state = CreditState({"large": 10, "small": 2, "idle": 3}, Fraction(1), {"large": 20, "small": 6, "idle": 0}, 26)
    _, done = quantum(state, {"large": 13, "small": 3})
    assert done.borrowed == {"large": 2, "small": 1, "idle": 0}
    _, done = quantum(state, {"large": 13, "small": 5, "idle": 2})
    assert done.borrowed == {"large": 0, "small": 1, "idle": 0}


def test_a_site_without_credits_borrows_nothing() -> None:
    state = open_accounts({"A": 2, "B": 2}, 1, 0)
    state, done = quantum(state, {"A": 4})
    assert (done.slices, done.idle) == ({"A": 2, "B": 0}, 2)
    assert open_accounts({"A": 2}).credits == {"A": 2_000_000}


def test_a_state_is_not_changed() -> None:
    state = open_accounts({"A": 2, "B": 2}, Fraction(1, 2), 5)
    assert quantum(state, {"A": 4}) == quantum(state, {"A": 4, "B": 0})
    assert state == open_accounts({"A": 2, "B": 2}, Fraction(1, 2), 5)


def test_mistakes() -> None:
    state = open_accounts({"paris": 2})
    with pytest.raises(UserError, match=r"unknown site 'pariss'.*paris"):
        quantum(state, {"pariss": 1})
    with pytest.raises(UserError, match="-1 slices asked by 'paris'"):
        quantum(state, {"paris": -1})
    with pytest.raises(UserError, match="0 slices of 'paris'; give a whole number from 1 up"):
        open_accounts({"paris": 0})
    with pytest.raises(UserError, match="credits between no sites"):
        open_accounts({})
    for alpha in (0.5, Fraction(3, 2), -1, True):
        with pytest.raises(UserError, match="a guaranteed part of"):
            open_accounts({"paris": 1}, alpha)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="-1 credits a slice"):
        open_accounts({"paris": 1}, 1, -1)
