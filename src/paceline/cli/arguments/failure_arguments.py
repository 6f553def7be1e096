"""Options for failures, checkpoints and restarts of long runs."""

from __future__ import annotations

import argparse

from paceline.cli.guide.sections import section
from paceline.planning.failures.failures import MANY, Failures, parse_mtbf
from paceline.units import parse_seconds

FAILURES = ("mtbf", "checkpoint_interval", "checkpoint_time", "restart_time")
"""Names of the options among parsed arguments."""


def add_failure_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for failures and checkpoints."""
    failures = section(parser, "failures")
    mtbf = (
        f"mean time of a device between failures: 50000h, of a node: node=6000h, or never (default: published above {MANY} "
        "devices, else never)"
    )
    failures.add_argument("--mtbf", metavar="T", help=mtbf)
    interval = "work between checkpoints, where failures count (default: what makes the run shortest)"
    failures.add_argument("--checkpoint-interval", metavar="T", help=interval)
    failures.add_argument("--checkpoint-time", metavar="T", help="how long a checkpoint stops the work (default 60s)")
    failures.add_argument("--restart-time", metavar="T", help="from a failure to the next step (default 15min)")


def failures_of(o: argparse.Namespace) -> Failures:
    """Return the failures that the options state. Raises UserError."""
    between_s, of_node = (None, False) if o.mtbf is None else parse_mtbf(o.mtbf)
    usual = Failures()
    return Failures(
        between_s=between_s,
        of_node=of_node,
        interval_s=None if o.checkpoint_interval is None else parse_seconds(o.checkpoint_interval),
        write_s=usual.write_s if o.checkpoint_time is None else parse_seconds(o.checkpoint_time, zero=True),
        restart_s=usual.restart_s if o.restart_time is None else parse_seconds(o.restart_time, zero=True),
    )
