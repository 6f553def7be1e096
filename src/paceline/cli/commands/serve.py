"""``paceline serve``: the what-if page on this machine."""

from __future__ import annotations

import argparse

from paceline.cli.parser import Answer, Parser
from paceline.cli.schedule_start import add_sources, queue_asker
from paceline.reporting.text.screen import Screen
from paceline.serve.server import PORT, run

EXAMPLE = """example:
  paceline serve --port 0"""


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline serve``."""
    parser.runs(_serve, EXAMPLE, shapes=())
    parser.set_defaults(streams=True)
    host = "the address to listen on (default 127.0.0.1: this machine alone; beyond it a token in the address is needed)"
    parser.add_argument("--host", metavar="H", default="127.0.0.1", help=host)
    parser.add_argument("--schedule", metavar="DIR", default="", help="also show the live schedule whose state is in DIR")
    queue = "also show when the jobs of a live queue start, at /queue and /metrics: as for paceline schedule start"
    parser.add_argument("--queue", metavar="QUEUE", default="", help=queue)
    add_sources(parser, "with --queue: ")
    parser.add_argument("--port", metavar="N", type=int, default=PORT, help=f"default {PORT}; 0 takes a free one")


def _serve(o: argparse.Namespace) -> Answer:
    from paceline.scheduling.live.view import journal_path

    schedule = journal_path(o.schedule) if o.schedule else None
    queue = (queue_asker(o), o.queue) if o.queue else None
    addresses: list[str] = []

    def say(address: str) -> None:
        addresses.append(address)
        live = f"\nLive schedule: {address}schedule" if schedule else ""
        shown = f"\nLive queue: {address}queue (metric: {address}metrics)" if queue else ""
        print(f"Paceline: {address}{live}{shown}\nCtrl-C ends it.", flush=True)

    run(o.host, o.port, say, schedule, queue)
    return {"address": addresses[0]}, Screen.plain("stopped")
