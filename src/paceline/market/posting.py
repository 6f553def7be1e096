"""Entries of the ledger from a simulation: every stretch that a job ran on another site's devices, and what was settled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paceline.array_types import Ints
from paceline.market.costs import moved_bytes
from paceline.market.demand import jobs_in_order
from paceline.market.federation_state import CLOUD, Outcome
from paceline.market.hourly_auction import HourlyAuction
from paceline.market.ledger import Entry, Unit
from paceline.market.savings import Savings
from paceline.market.settlement import Settlement

MICRO = 1_000_000
AUCTIONEER = "the auctioneer"


def entries_of(savings: Savings, settlement: Settlement) -> Iterator[Entry]:
    """What to post, in the order of starts; the settlement of the whole last.

    Under ``credits`` each stretch moves one credit a device-second, under ``prices`` and ``auction`` what the device-hours
    cost; then each lender passes on what the auctioneer keeps. The other rules post stretches without amounts, and then who
    pays whom. Sums of amounts by site are exact: they are whole millionths.
    """
    federation, demand, outcome = savings.federation, savings.demand, settlement.outcome
    names = federation.names
    jobs = jobs_in_order(federation)
    devices = [group.device for site in federation.sites for group in site.fleet.groups]
    unit: Unit = "micro-credits" if settlement.rule == "credits" else "micro-currency"
    pool = outcome.run_pool
    owner = np.where(pool == CLOUD, -1, demand.pool_site[pool])
    home = demand.site[outcome.run_job]
    away = np.flatnonzero((owner >= 0) & (owner != home))
    moved = moved_bytes(demand, outcome)
    charges = _charges(savings, settlement, outcome, away)
    ended = outcome.run_end_s == outcome.end_s[outcome.run_job]
    starts = np.zeros(len(outcome.end_s), np.int64)
    order = np.zeros(len(pool), np.int64)
    for run, job in enumerate(outcome.run_job.tolist()):
        order[run] = starts[job]
        starts[job] += 1
    for run, amount in zip(away.tolist(), charges, strict=True):
        job, where = int(outcome.run_job[run]), int(pool[run])
        start, end = round(float(outcome.run_start_s[run]) * MICRO), round(float(outcome.run_end_s[run]) * MICRO)
        used = (end - start) * int(demand.devices[job])
        speed = float(demand.speed[demand.kind[job], where])
        yield Entry(
            start_us=start,
            end_us=end,
            job=jobs[job].name,
            owner=names[int(home[run])],
            lender=names[int(owner[run])],
            device=devices[where],
            device_us=used,
            normalised_us=round(used * speed),
            wan_bytes=round(float(moved[run])),
            restarts=int(order[run]),
            reason="ran" if ended[run] else "reclaimed",
            amount=used if settlement.rule == "credits" else amount,
            unit=unit,
        )
    end = round(float(np.nanmax(outcome.end_s)) * MICRO)
    if settlement.auction is not None:
        yield from _auctioneers(savings, settlement.auction, names, end)
    elif settlement.rule not in ("credits", "prices"):
        yield from _settled(settlement, names, unit, end)


def _charges(savings: Savings, settlement: Settlement, outcome: Outcome, away: Ints) -> list[int]:
    demand = savings.demand
    if settlement.auction is not None:
        paid = settlement.auction.charges(demand)[0][away]
    elif settlement.prices is not None:
        groups = [group.device for site in savings.federation.sites for group in site.fleet.groups]
        types = np.array([settlement.prices.types.index(device) for device in groups])
        paid = settlement.prices.charge(
            types[outcome.run_pool[away]],
            outcome.run_start_s[away],
            outcome.run_end_s[away],
            demand.devices[outcome.run_job[away]],
        )
    else:
        return [0] * len(away)
    return [round(amount * MICRO) for amount in paid.tolist()]


def _auctioneers(savings: Savings, auction: HourlyAuction, names: tuple[str, ...], moment: int) -> Iterator[Entry]:
    """What each lender passes on of what it was paid."""
    pays, gets = auction.charges(savings.demand)
    lender = np.maximum(savings.demand.pool_site[np.maximum(auction.outcome.run_pool, 0)], 0)
    kept = np.bincount(lender, pays - gets, len(names))
    for name, amount in zip(names, kept.tolist(), strict=True):
        if round(amount * MICRO):
            yield Entry(
                start_us=0,
                end_us=moment,
                job="",
                owner=name,
                lender=AUCTIONEER,
                reason="settlement",
                amount=round(amount * MICRO),
                unit="micro-currency",
            )


def _settled(settlement: Settlement, names: tuple[str, ...], unit: Unit, moment: int) -> Iterator[Entry]:
    """Who pays whom so that every site has received its part: the largest payer pays the largest receiver, and so on."""
    due = [round(amount * MICRO) for amount in settlement.received.tolist()]
    due[int(np.argmax(np.abs(settlement.received)))] -= sum(due)  # rounding, so that all is 0 in sum
    while any(due):
        payer, receiver = due.index(min(due)), due.index(max(due))
        amount = min(-due[payer], due[receiver])
        due[payer] += amount
        due[receiver] -= amount
        yield Entry(
            start_us=0,
            end_us=moment,
            job="",
            owner=names[payer],
            lender=names[receiver],
            reason="settlement",
            amount=amount,
            unit=unit,
        )


__all__ = ["AUCTIONEER", "entries_of"]
