"""``paceline hardware``: the catalogue of devices and links."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from paceline import hardware
from paceline.cli.parser import Answer, Parser
from paceline.hardware.prices import listings
from paceline.reporting.text.catalogue_text import (
    device_screen,
    hardware_screen,
    instance_screen,
    link_screen,
    machine_screen,
)


def add(parser: Parser) -> None:
    """Add the actions of ``paceline hardware``."""
    action = parser.group("example:\n  paceline hardware list")
    action("list", "every device, link and instance").runs(_list, "example:\n  paceline hardware list")
    show = action("show", "one of them, with sources")
    show.runs(_show, "example:\n  paceline hardware show H100")
    show.add_argument("name", metavar="NAME")
    probe = action("probe", "measure this machine")
    probe.runs(_probe, "example:\n  paceline hardware probe --workers 4")
    probe.add_argument("--workers", metavar="N", type=int, default=2, help="ranks measured at once (default 2)")


def _list(o: argparse.Namespace) -> Answer:
    devices, links, instances = hardware.devices(), hardware.links(), hardware.instances()
    data = {
        "devices": [asdict(device) for device in devices],
        "links": [asdict(link) for link in links],
        "instances": [asdict(instance) for instance in instances],
    }
    return data, hardware_screen(devices, links, instances)


def _show(o: argparse.Namespace) -> Answer:
    rented = hardware.instance(o.name)
    if rented is not None:
        return asdict(rented), instance_screen(rented)
    entry = hardware.find(o.name)
    if isinstance(entry, hardware.Link):
        return asdict(entry), link_screen(entry)
    return {**asdict(entry), "prices": [asdict(price) for price in listings(entry.name)]}, device_screen(entry)


def _probe(o: argparse.Namespace) -> Answer:
    from paceline.training.runs.launcher import probe

    machines = probe(o.workers)
    return asdict(machines), machine_screen(machines.device, machines.network)
