"""Screens of the answers of ``paceline market``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.market.federation.site import amount, priced
from paceline.reporting.text.screen import GAP, Block, Paragraph, Screen, Table, heading, item
from paceline.units import format_seconds

Answered = Mapping[str, Any]
MOST_EQUILIBRIA = 8
"""Equilibria of a game that are shown."""
WELFARE = "Welfare is what all sites save over no sharing: values minus costs"
ANARCHY = "Its largest value over that of the worst equilibrium is the price of anarchy (Koutsoupias and Papadimitriou 1999)."
RENTED = "Sites rent for the whole trace here, each by what its own jobs cost alone on fewer or more devices; below 0 it lets."


def market_screen(data: Answered) -> Screen:
    """Return the screen of a federation's answer."""
    currency, sites = data["currency"], data["sites"]
    head = ("site", "devices", "wait alone", "together", "saves", "receives", "gains")
    rows = [
        (
            site["site"],
            f"{site['devices']:,}",
            waited(site["wait_alone_s"]),
            waited(site["wait_together_s"]),
            amount(site["cost_alone"] - site["cost_together"]),
            amount(site["received"], sign=True),
            amount(site["share"]) + (f" ±{amount(site['standard_error'])}" if site["standard_error"] else ""),
        )
        for site in sites
    ]
    saved, one_pool = priced(data["saved"], currency), priced(data["one_pool"], currency)
    brief = f"sharing saves {saved}. {data['verdict'][0]}"
    worse = data["worse_off"]
    loses = f"Worse off than alone: {', '.join(worse)}." if worse else "No site is worse off than alone."
    blocks: list[Block] = [
        Paragraph(f"Sharing saves {saved}; one pool, first come first served, would save {one_pool}. {loses}"),
        GAP,
        Table(head, rows),
        Paragraph(f"Saves, receives and gains are in {currency}.", "faint"),
        GAP,
        heading("Does it hold?"),
        *(item(sentence) for sentence in data["verdict"]),
    ]
    if data["leaving"]:
        blocks += [GAP, heading("Who would leave"), leaving_table(data)]
    kept = [(name, kept, how) for name, kept, how, _ in data["mechanism"]]
    blocks += [
        GAP,
        heading(f"Properties of {data['rule']} in theory, as a mechanism for one period"),
        Table(("property", "kept", "how"), kept, frozenset({0, 1, 2})),
    ]
    title = f"{len(sites)} sites that share, settled by {data['rule']}: {data['about']}"
    return Screen(title=title, answer=tuple(blocks), brief=brief, notes=tuple(data["notes"]))


def leaving_table(data: Answered) -> Table:
    """Return a table of the groups that would do better by themselves."""
    rows = [(", ".join(group["sites"]), amount(group["gain"])) for group in data["leaving"]]
    return Table(("sites", f"would gain, {data['currency']}"), rows)


def stability_screen(data: Answered) -> Screen:
    """Return the screen of a federation's stability."""
    blocks: list[Block] = [item(sentence) for sentence in data["verdict"]]
    if data["leaving"]:
        blocks += [GAP, heading("Who would leave"), leaving_table(data)]
    shares = [
        (site["site"], amount(site["share"]), amount(least))
        for site, least in zip(data["sites"], data["least_core"], strict=True)
    ]
    blocks += [GAP, heading("What each gains"), Table(("site", f"{data['rule']}, {data['currency']}", "least-core"), shares)]
    word = "holds" if data["stable"] else "does not hold"
    counted = "one site" if len(data["sites"]) == 1 else f"{len(data['sites'])} sites"
    return Screen(
        title=f"Does a federation of {counted} hold, settled by {data['rule']}?",
        answer=tuple(blocks),
        brief=f"it {word}: {data['verdict'][0]}",
        notes=tuple(data["notes"]),
    )


def gain_screen(data: Answered) -> Screen:
    """Return the screen of one site's gain from joining."""
    currency = data["currency"]
    gain, low, high = (priced(data[name], currency) for name in ("gain", "low", "high"))
    does = f"loses {priced(-data['gain'], currency)}" if data["gain"] < 0 else f"gains {gain}"
    wait = f"{waited(data['wait_alone_s'])} alone, {waited(data['wait_together_s'])} together"
    of_what = "" if data["paid"] else " before anybody pays"
    saving = data["alone"] - data["together"]
    money = "receives" if data["received"] >= 0 else "pays"
    must = "more than it has" if data["must_lend"] is None else f"{data['must_lend']:,} devices at a time"
    asks = _price(data["ask_least"], currency, "at least", "it lends nothing")
    pays = _price(data["pay_most"], currency, "at most", "it borrows nothing")
    blocks: list[Block] = [
        Paragraph(f"Under {data['rule']} {data['site']} {does} (80 % of draws{of_what}: {low} to {high})."),
        GAP,
        Table(
            ("", ""),
            (
                ("saves before anybody pays", priced(saving, currency)),
                (f"{money} under {data['rule']}", priced(abs(data["received"]), currency)),
                ("mean wait of its jobs", wait),
                ("lends", f"{data['lent_hours']:,.0f} device-hours, at most {data['most_lent']:,} devices at a time"),
                ("borrows", f"{data['borrowed_hours']:,.0f} device-hours"),
                ("must lend, or the others lose by it before anybody pays", must),
                ("a fair price: asks for what it lends", asks),
                ("a fair price: pays for what it borrows", pays),
            ),
            frozenset({0, 1}),
        ),
        GAP,
        heading("Sensitivity"),
        Table(("if", f"gains{of_what}, {currency}"), [(each["what"], amount(each["gain"])) for each in data["depends"]]),
    ]
    notes = (
        f"The range holds 80 % of {data['draws']} draws of the trace's weeks, the same weeks for all sites.",
        "It asks for at least what it loses by lending alone, and pays at most what it saves by borrowing alone.",
    )
    brief = f"{data['site']} {does} under {data['rule']} ({low} to {high}{of_what}); {wait}"
    return Screen(title=f"Gain of {data['site']} from joining", answer=tuple(blocks), brief=brief, notes=notes)


def _price(price: float | None, currency: str, bound: str, none: str) -> str:
    if price is None:
        return none
    if price < 0 and bound == "at most":
        return f"nothing: it loses {priced(-price, currency)} a device-hour"
    return f"{bound} {priced(max(price, 0.0), currency)} a device-hour"


def audit_screen(data: Answered) -> Screen:
    """Return the screen of lenders that deliver less than predicted."""
    throttling = data["throttling"]
    if not data["judged"]:
        brief = f"no lender can be judged: {data['words'][-1]}"
    else:
        brief = f"throttles: {', '.join(throttling)}" if throttling else "no lender delivers less than chance explains"
    lines = tuple(item(f"{words[:1].upper()}{words[1:]}.") for words in data["words"])
    return Screen(
        title=f"Do lenders deliver what was predicted, beyond {data['k']:.3g} standard errors?", answer=lines, brief=brief
    )


def equilibrium_screen(data: Answered) -> Screen:
    """Return the screen of each site's lending if each decides for itself."""
    currency = data["currency"]
    rows = [
        (
            site["site"],
            f"{site['devices']:,}",
            f"{site['shares']:,}",
            amount(site["utility"]),
            f"{site['best_shares']:,}",
        )
        for site in data["sites"]
    ]
    shared, best = (sum(site[name] for site in data["sites"]) for name in ("shares", "best_shares"))
    price = f"at {priced(data['price'], currency)} a device and hour"
    if data["equilibrium"]:
        first = f"Where each decides for itself, {price}, the sites share {shared:,} devices; nobody gains by another choice."
    else:
        first = f"Where each decides for itself, {price}, no choice is the last: best responses go on or in a circle."
    search = "" if data["best_is_of_all"] else ", as far as a search found"
    second = f"The largest saving of all together shares {best:,}{search}."
    blocks: list[Block] = [
        Paragraph(f"{first} {second}"),
        GAP,
        Table(("site", "devices", "shares", "utility", "best for all"), rows),
        Paragraph(f"Utility is in {currency} an hour, divided by extra use where --gamma is above 0.", "faint"),
        GAP,
        heading("What selfishness costs"),
        *(item(sentence) for sentence in _anarchy(data)),
        Paragraph(f"{WELFARE} in {currency} an hour, payments between sites cancel. {ANARCHY}", "faint"),
    ]
    many = len(data["equal_equilibria"])
    cut = f"; {MOST_EQUILIBRIA} of {many:,}, the last is the worst" if many > MOST_EQUILIBRIA else ""
    if len(data["equilibria"]) > 1:
        blocks += [GAP, heading(f"Equilibria, the largest saving first{cut}"), _equilibria_table(data)]
    brief = f"{first} {_anarchy(data)[0]}"
    if "dynamic_price" in data:
        found = data["dynamic_price"]
        sentence = _dynamic_price(found, currency)
        blocks += [GAP, heading("A price that follows demand"), Paragraph(sentence)]
        if found["converged"]:
            bought = zip(data["sites"], found["bought"], strict=True)
            rents = [(site["site"], amount(number, sign=True)) for site, number in bought]
            blocks += [GAP, Table(("site", "devices that it rents"), rents)]
        blocks.append(Paragraph(RENTED, "faint"))
        brief = f"{brief} {sentence}"
    return Screen(title=f"Devices that {len(rows)} sites share by themselves", answer=tuple(blocks), brief=brief)


def _anarchy(data: Answered) -> list[str]:
    """Describe the prices of anarchy and of stability, and how the equilibria were found."""
    found, anarchy, profiles = data["equilibria"], data["price_of_anarchy"], f"{data['profiles']:,} profiles"
    currency = data["currency"]
    count = f"{len(found):,} pure {'equilibrium' if len(found) == 1 else 'equilibria'}"
    if data["equilibria_are_all"]:
        how = f"All {profiles} were tried: the game has {count}."
    else:
        starts = "nothing, half and everything shared, and the largest weighted welfare"
        how = f"Best responses from {starts} find {count}; not all {profiles} were tried."
    if not found:
        return ["The price of anarchy is unknown: no equilibrium was found.", how]
    if anarchy != anarchy:
        return [f"The price of anarchy is unknown: no profile saves any {currency}.", *_weighted(data), how]
    worst = "the only equilibrium found" if len(found) == 1 else f"the worst of {len(found):,} equilibria found"
    if anarchy == float("inf"):
        return [f"The price of anarchy has no bound: {worst} saves no {currency}.", *_weighted(data), how]
    most, least = (priced(saved, currency) for saved in (data["best_saving_per_hour"], found[-1]["saving_per_hour"]))
    price = f"Price of anarchy in {currency}: {anarchy:.4g}."
    sentences = [f"{price} All sites could save {most} an hour; at {worst} they save {least}."]
    if len(data["equal_equilibria"]) > 1:
        sentences.append(f"Price of stability in {currency}: {data['price_of_stability']:.4g}, at the best equilibrium found.")
    return [*sentences, *_weighted(data), how]


def _weighted(data: Answered) -> list[str]:
    """Describe the price of anarchy of the weighted welfare, which is no amount of money."""
    anarchy, fair = data["weighted_price_of_anarchy"], f" and alpha {data['alpha']:g}" if data["alpha"] else ""
    if anarchy != anarchy:
        return []
    ratio = "has no bound" if anarchy == float("inf") else f"is {anarchy:.3g}"
    weighted = f"with each site's utility weighted by the devices that it offers (SC-Share){fair}"
    return [f"Not in {data['currency']}, {weighted}, the ratio {ratio}."]


def _dynamic_price(found: Answered, currency: str) -> str:
    """Describe whether the price converges, and its limit."""
    if found["converged"] and not found["price"]:
        return "The price falls to 0: no site needs more devices than are offered."
    if found["converged"]:
        return f"The price comes to rest at {priced(found['price'], currency)} a device and hour: demand equals supply."
    if found["oscillates"]:
        return f"The price oscillates with a period of {found['period_steps']:.3g} steps: no price holds."
    return f"The price has not come to rest in {found['steps']:,} steps: it is unknown."


def _equilibria_table(data: Answered) -> Table:
    """Return a table of the best and the worst equilibria; those of equal utilities are one row."""
    every, found = data["equal_equilibria"], data["equilibria"]
    shown = every if len(every) <= MOST_EQUILIBRIA else [*every[: MOST_EQUILIBRIA - 1], every[-1]]
    rows = []
    for group in shown:
        starts = dict.fromkeys(start for index in group for start in found[index]["reached_from"])
        shares = ", ".join(f"{number:,}" for number in found[group[0]]["shares"])
        saving = amount(found[group[0]]["saving_per_hour"])
        rows.append((shares, f"{len(group):,}", saving, ", ".join(starts) or "none of the starts"))
    head = ("shares of the sites", "equal ones", f"saves, {data['currency']} an hour", "best responses end there from")
    return Table(head, rows, frozenset({0, 3}))


def waited(seconds: float | None) -> str:
    """Format a mean wait; ``unknown`` if no job ran."""
    return "unknown" if seconds is None or seconds != seconds else "0 s" if seconds < 1e-9 else format_seconds(seconds)
