"""``paceline whatif``: the gain of an upgrade, or ways to train on several sites."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence

from paceline.cli.answer_head import taken, with_head
from paceline.cli.arguments.prediction_arguments import add_prediction_arguments, add_price_argument
from paceline.cli.arguments.prediction_inputs import prediction_inputs, predictor
from paceline.cli.arguments.report_argument import add_report_argument, with_report
from paceline.cli.arguments.site_arguments import add_site_arguments, refuse_site_options
from paceline.cli.guide.sections import common, section
from paceline.cli.parser import Answer, Parser
from paceline.cli.site_answer import site_answer
from paceline.errors import UserError, unknown
from paceline.hardware import Cluster, network
from paceline.hardware.instances import network_of
from paceline.hardware.prices import parse_prices
from paceline.hardware.upgrade_price import FORMS
from paceline.planning.compare.changes import Change, parse_change
from paceline.planning.compare.whatif import whatif
from paceline.reporting.pages import answer_page
from paceline.reporting.text.planning_text import whatif_screen

EXAMPLE = """example:
  paceline whatif resnet-50 --device V100 --nodes 8 --network 10Gb/s --global-batch 1024 --change network=100Gb/s"""


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline whatif``."""
    changes = section(parser, "changes")
    limits = section(parser, "limits")
    parser.runs(_whatif, EXAMPLE)
    add_prediction_arguments(parser)
    change = (
        "nodes+1, nodesx2, devices-per-node=8, network=100Gb/s, device=H100-SXM, host-link='PCIe 5', or any choice as "
        "NAME=VALUE; may be repeated"
    )
    common(changes.add_argument("--change", metavar="CHANGE", action="append", help=change))
    scaling = "with more devices the global batch stays (strong, default) or grows with them (weak)"
    changes.add_argument("--scaling", metavar="S", default="strong", help=scaling)
    add_price_argument(parser)
    upgrade = f"of a change of the network: {FORMS.removeprefix('write ')} (default: unknown, so that no saving is claimed)"
    limits.add_argument("--upgrade-price", metavar="P", default="", help=upgrade)
    add_site_arguments(parser)
    add_report_argument(parser)


def _whatif(o: argparse.Namespace) -> Answer:
    if o.scaling not in ("strong", "weak"):
        raise unknown("scaling", o.scaling, ["strong", "weak"])
    if o.sites:
        o.sync_every, every = None, o.sync_every  # an argument of the map: some of its methods take local steps
        between = {name: value for name in ("exchange", "servers") if (value := getattr(o, name))}
        o.exchange, o.servers = "", None  # those of a site alone
        inputs = prediction_inputs(o)
        data, screen = site_answer(o, inputs, predictor(o, o.loader), every, between)
        return data, screen.noting(*taken(o, inputs))
    refuse_site_options(o)
    if not o.change:
        raise UserError("no --change is given", "give one, such as --change nodes+1 or network=100Gb/s, or --sites 2..64")
    changes = [parse_change(text) for text in o.change]
    prices = parse_prices(o.price or ())
    inputs, model = prediction_inputs(o), predictor(o, o.loader, o.worker_times)
    gains = whatif(
        *inputs,
        changes,
        scaling=o.scaling,
        prices=prices,
        upgrade_price=o.upgrade_price,
        predictor=model,
        precision_given=o.precision is not None,
    )
    data, screen = with_head(o, inputs, model, gains.base.prediction, gains.to_json(), whatif_screen(gains))
    screen = screen.noting(*_slower_networks(changes, inputs[1]))
    return data, with_report(screen, o.report, lambda: answer_page.whatif_page(gains, data["would_fit"]))


def _slower_networks(changes: Sequence[Change], cluster: Cluster) -> Iterator[str]:
    """Yield a sentence on each network that is slower than the present one because it is stated for a whole node."""
    now = cluster.network
    for change in changes:
        if change.name != "network" or cluster.num_nodes == 1 or re.match(r"\d+\s*x", change.value):
            continue
        after = network(network_of(change.value, cluster.device.name, cluster.devices_per_node), like=now)
        if after.bandwidth.value < now.bandwidth.value:
            each = f"write network='{max(cluster.node_sizes)}x {change.value}' for {max(cluster.node_sizes)} such links"
            yield f"{change} is the speed of a whole node, which has {now.name} now: {each}."
