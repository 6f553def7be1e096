"""Sites that may share: devices, jobs, prices and limits of lending."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.errors import UserError, shorten, shown
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job

HOURS = "job-hours"
"""Unit of account if no price is stated: an hour that a job waits counts 1."""
LONGEST_NAME = 200
"""Most characters in the name of a site or a job, as in the ledger."""
LONGEST_CURRENCY = 20
MOST_SITES = 60
"""Most sites: a coalition is a mask of 64 bits."""


def _check_name(what: str, name: str) -> None:
    if not name.isprintable():
        raise UserError(f"the name {what} has characters that cannot be printed", "use letters, digits and signs")
    if len(name) > LONGEST_NAME:
        raise UserError(f"the name {what} has {len(name):,} letters", f"give at most {LONGEST_NAME}")


@dataclass(frozen=True, kw_only=True)
class Site:
    """One owner's cluster.

    Attributes:
        jobs: its own, in order of arrival.
        lends, borrows: most devices at a time; None: all.
        notice_s: from its owner's notice until guests leave its devices; infinite: guests run to their end.
        waiting_price: price of an hour that a job waits. ``energy_price``: price of a kWh; ``pue``: energy of the building over
            energy of the devices. ``cloud_price``: price of a device and hour in the public cloud. All in the federation's
            currency; 0: not counted.
        cloud_after_s: wait after which a job goes to the public cloud; infinite: never.

    Raises:
        UserError: a site without jobs or a name, a job that is larger than the site, a negative price.
    """

    name: str
    fleet: Fleet
    jobs: tuple[Job, ...]
    lends: int | None = None
    borrows: int | None = None
    notice_s: float = math.inf
    waiting_price: float = 1.0
    energy_price: float = 0.0
    pue: float = 1.0
    cloud_price: float = 0.0
    cloud_after_s: float = math.inf

    def __post_init__(self) -> None:
        where = f"site {shorten(self.name, 40)!r}"
        if not self.name.strip():
            raise UserError("a site without a name", "name each site")
        _check_name(where[5:], self.name)
        if not self.jobs:
            raise UserError(f"{where} has no jobs", "give its trace, or leave the site out")
        odd = next((job.name for job in self.jobs if not job.name.isprintable() or len(job.name) > LONGEST_NAME), None)
        if odd is not None:
            _check_name(f"{shorten(odd, 40)!r} of a job at {where}", odd)
        for what, price in (
            ("waiting price", self.waiting_price),
            ("energy price", self.energy_price),
            ("cloud price", self.cloud_price),
            ("notice", self.notice_s),
            ("wait before the cloud", self.cloud_after_s),
        ):
            if math.isnan(price) or price < 0:
                raise UserError(f"{where}: {what} {shown(price)}", "give a number from 0 up")
        if not 1 <= self.pue < 10:
            raise UserError(
                f"{where}: a PUE of {shown(self.pue)}", "give energy of the building / energy of the devices, from 1 up"
            )
        for limit, number in (("lends", self.lends), ("borrows", self.borrows)):
            if number is not None and number < 0:
                raise UserError(f"{where}: {limit} {number} devices", "give a whole number from 0 up")
        largest = max(group.devices for group in self.fleet.groups)
        over = next((job for job in self.jobs if job.devices > largest), None)
        if over is not None:
            raise UserError(
                f"{where}: job {shorten(over.name, 40)!r} asks for {over.devices} devices, and its largest type has {largest}",
                "give the site more nodes, or leave the job out",
            )


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Sites, and the links between them.

    Attributes:
        currency: currency of all prices; ``HOURS`` if only waiting counts.
        wan_bytes_per_s: from one site to another; 0: unknown, and data sets arrive at once. ``wan_price``: price of a GB.
        data_bytes: bytes of a job's data set by its model, ``""`` for the others; unknown models count as 0.
        checkpoint_bytes: bytes of a checkpoint, which moves to another site with its job; ``restart_s`` includes its transfer.
        speeds: speeds of a model by device type, in any unit of work a second; other models are predicted or unknown.
        checkpoint_s: between two checkpoints of a job. ``save_s``: to write one. ``restart_s``: to start again from it.
    """

    sites: tuple[Site, ...]
    currency: str = HOURS
    wan_bytes_per_s: float = 0.0
    wan_price: float = 0.0
    data_bytes: Mapping[str, float] = field(default_factory=dict)
    checkpoint_bytes: Mapping[str, float] = field(default_factory=dict)
    speeds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    checkpoint_s: float = 1800.0
    save_s: float = 30.0
    restart_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.sites:
            raise UserError("a federation without sites", "give at least one [[site]]")
        if len(self.sites) > MOST_SITES:
            raise UserError(f"{len(self.sites)} sites", f"at most {MOST_SITES} are simulated")
        names = [site.name for site in self.sites]
        twice = next((name for name in names if names.count(name) > 1), "")
        if twice:
            raise UserError(f"two sites are named {shorten(twice, 40)!r}", "give each site a different name")
        if not self.currency.strip():
            raise UserError("the currency is empty", 'name it, such as currency = "$", or leave it out')
        if not self.currency.isprintable() or len(self.currency) > LONGEST_CURRENCY:
            raise UserError(
                f"the currency {shorten(self.currency, 40)!r}", f"give at most {LONGEST_CURRENCY} letters, such as $ or EUR"
            )
        if not 0 <= self.wan_price < math.inf:
            raise UserError(f"a wan_price of {shown(self.wan_price)}", "give the price of a GB between sites, from 0 up")
        if not self.checkpoint_s > 0:
            raise UserError(f"a checkpoint every {shown(self.checkpoint_s)} s", "give a time above 0")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its sites."""
        return tuple(site.name for site in self.sites)


def amount(value: float, sign: bool = False) -> str:
    """Format an amount: an integer from 100 on, else three digits. ``sign`` writes a plus before positive amounts."""
    plus = "+" if sign else ""
    text = f"{value:{plus},.0f}" if abs(value) >= 99.95 else f"{value:{plus}.3g}"
    return "0" if text in ("+0", "-0") else text


def priced(value: float, currency: str) -> str:
    """Format an amount with its currency: ``$1,200`` or ``1,200 job-hours``."""
    text = amount(value)
    if len(currency) > 1:
        return f"{text} {currency}"
    return f"-{currency}{text[1:]}" if text.startswith("-") else f"{currency}{text}"
