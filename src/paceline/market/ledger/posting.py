"""Make ledger entries from a simulation: every stretch of a job on another site's devices, and the settlement."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paceline.market.federation.costs import moved_bytes
from paceline.market.federation.demand import jobs_in_order
from paceline.market.federation.federation_state import lenders
from paceline.market.game.savings import Savings
from paceline.market.game.settlement import RULES, Settlement
from paceline.market.ledger.ledger import LedgerEntry, Unit

MICRO = 1_000_000


def entries_of(savings: Savings, settlement: Settlement) -> Iterator[LedgerEntry]:
    """Yield the entries in order of their starts, and the settlement of the whole last.

    Under ``credits`` each stretch moves one credit per device-second, under ``prices`` and ``auction`` the price of its
    device-hours. The other rules post stretches without amounts, and then the payments. Amounts are whole millionths, so sums
    by site are exact.
    """
    federation, demand, outcome = savings.federation, savings.demand, settlement.outcome
    names = federation.names
    jobs = jobs_in_order(federation)
    devices = [group.device for site in federation.sites for group in site.fleet.groups]
    unit: Unit = "micro-credits" if settlement.rule == "credits" else "micro-currency"
    pool, home, owner = outcome.run_pool, demand.site[outcome.run_job], lenders(demand, outcome)
    moved = moved_bytes(demand, outcome)
    ended = outcome.run_end_s == outcome.end_s[outcome.run_job]
    starts = np.zeros(len(outcome.end_s), np.int64)
    order = np.zeros(len(pool), np.int64)
    for run, job in enumerate(outcome.run_job.tolist()):
        order[run] = starts[job]
        starts[job] += 1
    for run in np.flatnonzero(owner >= 0).tolist():
        job, where = int(outcome.run_job[run]), int(pool[run])
        start, end = round(float(outcome.run_start_s[run]) * MICRO), round(float(outcome.run_end_s[run]) * MICRO)
        used = (end - start) * int(demand.devices[job])
        speed = float(demand.speed[demand.kind[job], where])
        yield LedgerEntry(
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
            amount=used if settlement.rule == "credits" else round(float(settlement.charges[run]) * MICRO),
            unit=unit,
        )
    end = round(float(np.nanmax(outcome.end_s)) * MICRO)
    if RULES[settlement.rule].whole_game:
        yield from _settled(settlement, names, unit, end)


def _settled(settlement: Settlement, names: tuple[str, ...], unit: Unit, moment: int) -> Iterator[LedgerEntry]:
    """Match payers and receivers: the largest payer pays the largest receiver, and so on."""
    due = [round(amount * MICRO) for amount in settlement.received.tolist()]
    due[int(np.argmax(np.abs(settlement.received)))] -= sum(due)  # rounding: the sum must be 0
    while any(due):
        payer, receiver = due.index(min(due)), due.index(max(due))
        amount = min(-due[payer], due[receiver])
        due[payer] += amount
        due[receiver] -= amount
        yield LedgerEntry(
            start_us=0,
            end_us=moment,
            job="",
            owner=names[payer],
            lender=names[receiver],
            reason="settlement",
            amount=amount,
            unit=unit,
        )
