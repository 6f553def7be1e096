"""``paceline ask``: one question, one screen."""

from __future__ import annotations

import argparse
from datetime import datetime

from paceline.cli.parser import Answer, Parser
from paceline.cli.prediction_arguments import (
    add_price_argument,
    add_records_argument,
    add_software_argument,
    add_workload_arguments,
)
from paceline.cli.prediction_inputs import predictor
from paceline.cli.training_target import add_training_target_arguments, workload_and_target
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.prices import of_devices, parse_prices
from paceline.hardware.saved_clusters import saved_cluster
from paceline.planning.ask import FASTEST, ask
from paceline.planning.deadline import seconds_until
from paceline.prediction.transports import figures_by_transport, steps_by_transport
from paceline.reporting.asked_text import asked_screen
from paceline.reporting.transport_text import with_steps
from paceline.units import parse_count

EXAMPLE = """example:
  paceline ask llama-3-8b --on "2x8 A100, 100Gb/s" --samples 10k
  paceline ask resnet-50 --data 1.2M --epochs 90 --by 3d"""


def add(parser: Parser) -> None:
    """Add what ``paceline ask`` takes."""
    parser.runs(_ask, EXAMPLE)
    add_workload_arguments(parser)
    on = "'2x8 A100, 100Gb/s', '4 RTX 4090', '2x p5.48xlarge', or a saved cluster (default: what can be rented)"
    parser.add_argument("--on", metavar="CLUSTER", help=on)
    add_training_target_arguments(parser)
    parser.add_argument("--by", metavar="WHEN", help="when it must be done: 3d, 36h, friday or 2026-12-01")
    parser.add_argument("--budget", metavar="USD", help="what it may cost, in dollars: $500")
    add_price_argument(parser)
    add_software_argument(parser)
    add_records_argument(parser)
    parser.set_defaults(global_batch=None, penalty=None)


def _ask(o: argparse.Namespace) -> Answer:
    network, target = workload_and_target(o, FASTEST)
    cluster = Cluster.named(o.on) if o.on is not None else None
    own = saved_cluster(o.on) if o.on is not None else None
    prices = of_devices(parse_prices(o.price or ()), {cluster.device.name} if cluster else ()) or {}
    if cluster and own and own.usd_per_device_hour is not None:
        prices = {cluster.device.name: own.usd_per_device_hour, **prices}
    model = predictor(o)
    asked = ask(
        network,
        cluster,
        target,
        by_s=seconds_until(o.by, datetime.now().astimezone()) if o.by else None,
        budget_usd=_dollars(o.budget) if o.budget else None,
        prices=prices,
        predictor=model,
    )
    steps = steps_by_transport(model, network, asked.choice.cluster, asked.choice.strategy)
    data = {**asked.to_json(), "by_transport": figures_by_transport(steps)}
    return data, with_steps(asked_screen(asked, o.on or ""), steps)


def _dollars(text: str) -> float:
    """``$500``, ``500`` or ``1.5k``. Raises UserError."""
    try:
        amount = parse_count(text.strip().removeprefix("$").removesuffix("$").casefold().removesuffix("usd"))
    except UserError:
        amount = 0.0
    if amount <= 0:
        raise UserError(f"budget {text!r} is not an amount of dollars", "write it as 500 or $1.5k")
    return amount
