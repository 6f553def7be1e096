"""Options of ``whatif`` for several sites: their number, the bandwidth and latency between them, failures, and a picture."""

from __future__ import annotations

import argparse
import math
import re

from paceline.cli.arguments.failure_arguments import add_failure_arguments
from paceline.cli.guide.sections import common, section
from paceline.errors import UserError
from paceline.units import parse_bandwidth, parse_seconds

PER_DECADE = 4
"""Bandwidths of a range for each factor of ten."""
MOST_SITES = 4096
EXAMPLE = "write 2..64, or 2,4,6"
_RANGE = re.compile(r"\s*([\d.]+)\s*([A-Za-z/]*)\s*\.\.\s*([\d.]+)\s*([A-Za-z/]+)\s*")


def add_site_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for several sites."""
    sites = section(parser, "sites")
    number = "compare ways to train on so many sites, each a node of --cluster: 2, or 2..64 for a map by bandwidth"
    common(sites.add_argument("--sites", metavar="N", help=number))
    bandwidth = "with --sites: of a site in one direction, 1Gb/s or 0.1..100Gb/s (default 0.1..100Gb/s)"
    common(sites.add_argument("--bandwidth", metavar="B", help=bandwidth))
    latency = "with --sites: of a message from site to site, such as 30ms (default: that of a network in one room)"
    sites.add_argument("--latency", metavar="T", help=latency)
    sites.add_argument("--picture", metavar="FILE", default="", help="with --sites: also write the map to FILE.svg or FILE.png")
    add_failure_arguments(parser)


def parse_sites(text: str) -> tuple[int, ...]:
    """Parse ``2``, ``2,4,6`` or ``2..64``, whose numbers double. Raises UserError."""
    try:
        if ".." in text:
            least, most = (int(part) for part in text.split(".."))
            doubled = (least * 2**k for k in range(MOST_SITES.bit_length()))
            numbers = (least, *(n for n in doubled if least < n < most), *([most] if most != least else []))
        else:
            numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"sites {text!r}", EXAMPLE) from None
    if min(numbers) < 2 or max(numbers) > MOST_SITES or list(numbers) != sorted(set(numbers)):
        raise UserError(f"sites {text!r}", f"{EXAMPLE}: from 2 to {MOST_SITES:,}, the fewest first")
    return numbers


def parse_bandwidths(text: str) -> tuple[float, ...]:
    """Parse ``1Gb/s`` or ``0.1..100Gb/s`` to bytes/s, evenly by factors. Raises UserError."""
    if ".." not in text:
        return (parse_bandwidth(text),)
    match = _RANGE.fullmatch(text)
    if match is None:
        raise UserError(f"bandwidths {text!r}", "write 1Gb/s, or 0.1..100Gb/s")
    low, high = parse_bandwidth(match[1] + (match[2] or match[4])), parse_bandwidth(match[3] + match[4])
    if not low < high:
        raise UserError(f"bandwidths {text!r}", "give the least first: 0.1..100Gb/s")
    steps = max(1, round(PER_DECADE * math.log10(high / low)))
    return tuple(low * (high / low) ** (k / steps) for k in range(steps + 1))


def parse_latency(text: str | None) -> float | None:
    """Parse the latency between sites to seconds; None if not given. Raises UserError."""
    return None if text is None else parse_seconds(text, zero=True)


def refuse_site_options(o: argparse.Namespace) -> None:
    """Raise UserError for an option of several sites without ``--sites``."""
    given = [name for name in ("bandwidth", "latency", "picture", "mtbf") if getattr(o, name)]
    if given:
        raise UserError(f"--{given[0]} without --sites", "give --sites 2, or 2..64")
