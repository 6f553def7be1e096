"""Page of a federation: gains, loans between sites over time, prices, and stability."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paceline.array_types import Array
from paceline.market.federation.federation_answer import FederationAnswer
from paceline.market.federation.site import amount, priced
from paceline.market.game.rule_properties import WHY_NOT_ALL, properties_of
from paceline.market.game.settlement import RULES
from paceline.market.prices.job_auction import INTERVAL_S
from paceline.reporting.figures.plot import Plot, Scale, tick
from paceline.reporting.figures.schedule_figures import over_time
from paceline.reporting.pages.answer_page import Page, Section
from paceline.reporting.text.market_text import waited
from paceline.reporting.values import clean

MOST_LINES = 5
"""Number of sites with a line over time: those that lend most."""


def market_page(answer: FederationAnswer) -> Page:
    """Render the page. Equal answers give equal bytes."""
    words = answer.verdict.words(answer.rule, answer.currency)
    page = Page("market", f"{len(answer.sites)} sites that share", f"settled by {answer.rule}: {RULES[answer.rule].about}")
    page.findings = [_saved_text(answer), *words[:2]]
    page.ranges = "From one trace; paceline market gain has ranges."
    waits = [(site.jobs, site.wait_alone_s, site.wait_together_s) for site in answer.sites]
    jobs = sum(each[0] for each in waits)
    alone, together = (sum(each[0] * each[n] for each in waits) / jobs for n in (1, 2))
    page.card("saved", amount(answer.saved), answer.currency)
    page.card("mean wait of a job", waited(together), f"{waited(alone)} alone")
    page.sections = [*_gains(answer), *_flows(answer), *_prices(answer), *_holding(answer), *_rule(answer)]
    if answer.notes:
        page.sections.append(Section("It rests on", items=list(answer.notes)))
    return page


def _saved_text(answer: FederationAnswer) -> str:
    worse = [answer.sites[number].site for number in answer.settlement.worse_off]
    loses = f"Worse off than alone: {', '.join(worse)}." if worse else "No site is worse off than alone."
    return f"Sharing saves {priced(answer.saved, answer.currency)}. {loses}"


def _gains(answer: FederationAnswer) -> Iterator[Section]:
    heads = ("site", "devices", "jobs", "load", "wait alone", "together", "saves", "receives", "gains", "lends", "borrows")
    rows = [
        (
            site.site,
            f"{site.devices:,}",
            f"{site.jobs:,}",
            f"{site.load:.0%}",
            waited(site.wait_alone_s),
            waited(site.wait_together_s),
            amount(site.cost_alone - site.cost_together),
            amount(site.received, sign=True),
            amount(site.share),
            amount(site.lent_hours),
            amount(site.borrowed_hours),
        )
        for site in answer.sites
    ]
    text = f"Saves, receives and gains in {answer.currency}; lends and borrows in device-hours."
    bars = [(site.site, site.cost_alone - site.cost_together, site.share) for site in answer.sites]
    yield Section("Who gains what", text, pictures=[_gain_bars(bars, answer.currency)], wide=True, heads=heads, rows=rows)


def _gain_bars(bars: list[tuple[str, float, float]], currency: str) -> str:
    """Draw bars of each site's saving, and of its gain after payments."""
    values = [value for _, saved, gained in bars for value in (saved, gained)]
    x = Scale(min(0.0, *values), 1.05 * max(1e-9, *values))
    plot, row = Plot(), 40.0
    bottom = row * len(bars) + 2
    height = plot.x_axis(bottom, 0, [(x.share(mark), tick(mark)) for mark in x.ticks(6)], currency)
    for n, (name, saved, gained) in enumerate(bars):
        plot.text(0, n * row + 20, clean(name, 14), "axis", "end", -6)
        for value, kind, top, what in ((saved, "network", 4, "saves"), (gained, "compute", 18, "gains")):
            left, right = sorted((x.share(0.0), x.share(value)))
            plot.rect(left, n * row + top, right - left, 13, kind, f"{clean(name)} {what} {priced(value, currency)}")
    for kind, text in (("network", "saves, before anybody pays"), ("compute", "gains, after payments")):
        plot.key(height, kind, text)
        height += 18
    said = "; ".join(f"{name}: saves {amount(saved)}, gains {amount(gained)}" for name, saved, gained in bars)
    return plot.svg(height + 4, f"Gain of each site. {said}", "lanes")


def _flows(answer: FederationAnswer) -> Iterator[Section]:
    flows, names = answer.flows, [site.site for site in answer.sites]
    lent = flows.hours.sum(axis=1) - np.diag(flows.hours)
    if lent.any():
        order = np.argsort(-lent, kind="stable")
        lines: dict[str, Array] = {f"{names[n]} lends": flows.lent[n] for n in order[:MOST_LINES].tolist() if lent[n]}
        if len(order) > MOST_LINES:
            lines = {**lines, "the others lend": flows.lent[order[MOST_LINES:]].sum(axis=0)}
        picture = over_time(flows.edges_s, lines, "devices lent")
        yield Section("Devices lent over time", pictures=[picture], wide=True)
    rows = [
        (name, *(amount(hours) if n != m else "" for m, hours in enumerate(row)))
        for n, (name, row) in enumerate(zip(names, flows.hours.tolist(), strict=True))
    ]
    text = "Device-hours: the site of a row lends to the site of a column."
    yield Section("Who lends to whom", text, heads=("lends", *names), rows=rows)


def _prices(answer: FederationAnswer) -> Iterator[Section]:
    auction, prices = answer.settlement.auction, answer.settlement.prices
    if auction is not None and len(auction.moment_s):
        until = np.append(auction.moment_s, auction.moment_s[-1] + INTERVAL_S)
        lines = {name: np.nan_to_num(line) for name, line in zip(auction.types, auction.cleared, strict=True)}
        text = f"At which devices were traded, in {answer.currency}; 0: nothing of that type was."
        yield Section(
            "Prices over time", text, pictures=[over_time(until, lines, f"{answer.currency} a device-hour")], wide=True
        )
    if prices is None:
        return
    edges = np.arange(prices.prices.shape[1] + 1, dtype=np.float64) * 3600.0
    by_type = dict(zip(prices.types, prices.prices, strict=True))
    text = f"Price of a device and hour, in {answer.currency}: what one more device would save if work were divisible."
    yield Section("Prices over time", text, pictures=[over_time(edges, by_type, f"{answer.currency} a device-hour")], wide=True)


def _holding(answer: FederationAnswer) -> Iterator[Section]:
    game = answer.verdict.game
    rows = [(", ".join(game.members(one.coalition)), amount(one.gain)) for one in answer.verdict.leaving]
    heads = ("sites that would leave together", f"would gain, {answer.currency}") if rows else ()
    yield Section("Does it hold?", heads=heads, rows=rows, items=list(answer.verdict.words(answer.rule, answer.currency)))


def _rule(answer: FederationAnswer) -> Iterator[Section]:
    rows = properties_of(answer.rule).rows()
    yield Section(
        f"Properties of {answer.rule} in theory",
        f"As a mechanism for one period, not as simulated here. {WHY_NOT_ALL}",
        heads=("property", "kept", "how", "source"),
        rows=rows,
    )
