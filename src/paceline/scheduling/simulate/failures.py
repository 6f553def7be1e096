"""Outages of nodes: stated by a user, or drawn at random."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from paceline.errors import UserError, shorten
from paceline.scheduling.fleet import Outage
from paceline.scheduling.job import LONGEST_S
from paceline.units import format_seconds, parse_seconds

_OUTAGE = re.compile(r"^\s*(\d{1,6})\s*:\s*(\S.*?)\s*-\s*(\S.*?)\s*$")
EXAMPLE = "write NODE:START-END, such as 3:2h-5h"
BEYOND_S = 30 * 86400.0
"""Failures are drawn until this long after the last arrival."""


def parse_outages(texts: Iterable[str], planned: bool) -> list[Outage]:
    """Parse an outage such as ``3:2h-5h``: node 3 is away from two to five hours after the trace starts. Raises UserError."""
    outages = []
    for text in texts:
        match = _OUTAGE.match(text)
        if match is None:
            raise UserError(f"an outage {shorten(text, 40)!r}", EXAMPLE)
        start, end = (0.0 if moment.strip("s ") == "0" else parse_seconds(moment) for moment in match.group(2, 3))
        if end > LONGEST_S:
            raise UserError(f"an outage {shorten(text, 40)!r}", "it ends after at most 31 years")
        outages.append(Outage(int(match[1]), start, end, planned))
    return outages


def drawn_outages(nodes: int, between_s: float, repair_s: float, until_s: float, seed: int) -> list[Outage]:
    """Draw the failures of each node from an exponential distribution.

    Args:
        between_s: mean time of a node from a repair to the next failure. ``repair_s``: length of an outage.

    Raises:
        UserError: a time that is not above 0, or more than a million failures.
    """
    if not (between_s > 0 and repair_s > 0):
        raise UserError(
            f"failures every {format_seconds(between_s)}, repairs of {format_seconds(repair_s)}", "give times above 0"
        )
    if nodes * until_s / (between_s + repair_s) > 1e6:
        raise UserError(
            f"failures every {format_seconds(between_s)} are more than a million in {format_seconds(until_s)}",
            "give a longer time between them",
        )
    random = np.random.default_rng(seed)
    outages = []
    for node in range(nodes):
        moment = random.exponential(between_s)
        while moment < until_s:
            outages.append(Outage(node, float(moment), float(moment + repair_s)))
            moment += repair_s + random.exponential(between_s)
    return outages
