"""``paceline ask``: answer a question about one training on one screen."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime

from paceline.cli.arguments.choice_arguments import SEARCHED, add_search_arguments, narrowed_choices
from paceline.cli.arguments.failure_arguments import FAILURES
from paceline.cli.arguments.prediction_arguments import (
    add_from_argument,
    add_price_argument,
    add_records_argument,
    add_software_argument,
    add_workload_arguments,
)
from paceline.cli.arguments.prediction_inputs import job_of, predictor
from paceline.cli.arguments.training_target import add_training_target_arguments, workload_and_target
from paceline.cli.guide.sections import common, section
from paceline.cli.parser import Answer, Parser
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.prices import GIVEN, Price, listing_of_cluster, of_devices, parse_prices, price
from paceline.hardware.saved_clusters import saved_cluster
from paceline.planning.ask.advice import LIKELY
from paceline.planning.ask.answer import Asked, cluster_name, cluster_text
from paceline.planning.ask.ask import ask
from paceline.planning.ask.training_question import FASTEST
from paceline.planning.search.deadline import seconds_until
from paceline.reporting.text.ask_text import asked_screen
from paceline.units import parse_dollars

EXAMPLE = """example:
  paceline ask llama-3-8b --on "2x8 A100, 100Gb/s" --samples 10k
  paceline ask resnet-50 --data 1.2M --epochs 90 --by 3d"""

AMOUNTS = ("target", "epochs", "samples", "tokens")
_NO_AMOUNT = "Nothing says how much is trained: a million samples are taken (--samples, --tokens, or --epochs with --data)."
_SHARED = (
    *("workload", "seq_len", "args", "input", "lora", *AMOUNTS, "data", *FAILURES),
    *(
        "price",
        "framework",
        "compile",
        "attention",
        "software_year",
        "records",
        "micro_batch_size",
        *(item.dest for item in SEARCHED),
    ),
)
"""Options that ``plan`` takes too."""


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline ask``."""
    machines = section(parser, "machines")
    limits = section(parser, "limits")
    parser.runs(_ask, EXAMPLE)
    add_workload_arguments(parser)
    add_from_argument(parser)
    on = "'2x8 A100, 100Gb/s', '4 RTX 4090', '2x p5.48xlarge', or a saved cluster (default: what can be rented)"
    common(machines.add_argument("--on", "--cluster", metavar="CLUSTER", help=on))
    between = "between nodes, if --on does not say it: 100Gb/s RoCE, or a link's name"
    machines.add_argument("--network", metavar="LINK", help=between)
    add_training_target_arguments(parser)
    common(limits.add_argument("--by", metavar="WHEN", help="when it must be done: 3d, 36h, friday or 2026-12-01"))
    common(limits.add_argument("--budget", metavar="USD", help="most cost, in dollars: $500"))
    add_price_argument(parser)
    add_software_argument(parser)
    add_records_argument(parser)
    add_search_arguments(parser)
    parser.set_defaults(penalty=None)


def _ask(o: argparse.Namespace) -> Answer:
    network, target = workload_and_target(o, FASTEST)
    if o.network is not None and o.on is None:
        raise UserError(f"--network {o.network} of no cluster", "give the cluster too: --on '2x8 A100'")
    cluster = Cluster.named(o.on, o.network) if o.on is not None else None
    own = saved_cluster(o.on) if o.on is not None else None
    prices: dict[str, float | Price] = dict(
        of_devices(parse_prices(o.price or ()), {cluster.device.name} if cluster else ()) or {}
    )
    if cluster and own and own.usd_per_device_hour is not None:
        prices = {cluster.device.name: own.usd_per_device_hour, **prices}
    elif cluster and (listing := listing_of_cluster(o.on)):
        prices = {cluster.device.name: listing, **prices}
    asked = ask(
        network,
        cluster,
        target,
        by_s=seconds_until(o.by, datetime.now().astimezone()) if o.by else None,
        budget_usd=parse_dollars(o.budget) if o.budget else None,
        prices=prices,
        predictor=predictor(o),
        progress=o.say,
        choices=narrowed_choices(o),
        micro_batch_sizes=o.micro_batch_size or (),
        job=job_of(o, network),
    )
    notes = [*network.notes, *(cluster.notes if cluster else ())]
    notes += [_NO_AMOUNT] if target.curve is None and not any(getattr(o, name) for name in AMOUNTS) else []
    command = deeper(o, asked)
    if "deadline=" in command and asked.budget_usd is not None:
        notes.append(f"Deeper weighs only the date: --goal budget={asked.budget_usd:.6g} instead weighs the budget.")
    return {**asked.to_json(), "deeper": command}, asked_screen(asked, command).noting(*notes).missing(*_missed(asked))


def _missed(asked: Asked) -> Iterator[str]:
    """Yield what the answer misses: the memory of the named cluster, the date, the budget."""
    if asked.named is not None and not asked.fits:
        yield f"DOES NOT FIT on {cluster_text(asked.named)}"
    if asked.in_time is not None and asked.in_time < LIKELY:
        yield "TOO LATE"
    if asked.in_budget is not None and asked.in_budget < LIKELY:
        yield "OVER BUDGET"


def deeper(o: argparse.Namespace, asked: Asked) -> str:
    """Return the ``plan`` command for the same cluster and training, with the limit that can be kept."""
    fits = o.on is not None and asked.fits
    cluster = o.on if fits else cluster_name(asked.choice.cluster)
    parser: Parser = o.parser
    shared = {name: getattr(o, name) for name in _SHARED}
    shared["price"] = _priced(asked, o.price or [], listing_of_cluster(cluster))
    words = parser.words(argparse.Namespace(**shared))
    goal = []
    if asked.by_s is not None and (asked.in_time or 0) >= LIKELY and not math.isnan(asked.choice.usd):
        goal = ["--goal", f"deadline={o.by.strip()}"]
    elif asked.budget_usd is not None and (asked.in_budget or 0) >= LIKELY:
        goal = ["--goal", f"budget={asked.budget_usd:.6g}"]
    name, *options = words
    between = ["--network", o.network] if fits and o.network else []
    return shlex.join(["paceline", "plan", name, "--cluster", cluster, *between, *options, *goal])


def _priced(asked: Asked, given: Sequence[str], of_instance: Price | None) -> list[str]:
    """Return texts for ``--price``: the user's prices, and the price of the choice unless ``plan`` would use it anyway. By
    default ``plan`` uses the listing of the instance, or the cheapest."""
    named = asked.named.device.name if asked.named else ""
    texts = [text if "=" in text or not named else f"{named}={text}" for text in given]
    device, listing = asked.choice.cluster.device.name, asked.listing
    if (
        listing is None
        or listing == (of_instance or price(device, node_sizes=asked.choice.cluster.node_sizes))
        or (listing.provider == GIVEN and given)
    ):
        return texts
    each = listing.usd_per_hour(asked.choice.cluster.node_sizes) / asked.choice.cluster.world_size
    return [*texts, f"{device}={each:.6g}"]
