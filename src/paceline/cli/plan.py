"""``paceline plan``: the best configuration for a goal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.cli.exchange_arguments import add_bits_arguments
from paceline.cli.parser import Answer, Parser
from paceline.cli.plan_clusters import add_plan_cluster_arguments, plan_clusters
from paceline.cli.prediction_arguments import (
    SERVERS,
    add_fabric_arguments,
    add_optimizer_argument,
    add_price_argument,
    add_records_argument,
    add_software_argument,
    add_wire_arguments,
    add_workload_arguments,
    with_fabric,
)
from paceline.cli.prediction_inputs import predictor, workload_of
from paceline.cli.report_argument import add_report_argument, with_report
from paceline.cli.training_target import add_training_target_arguments, workload_and_target
from paceline.errors import UserError, check_name, known_name
from paceline.hardware import PRECISIONS, Cluster
from paceline.hardware.precision import precision_on
from paceline.hardware.prices import listings_of_clusters, of_devices, parse_prices
from paceline.names import NO_ALIASES
from paceline.planning.compare.strategy_text import Wanted, parse_wanted
from paceline.planning.emit.emitted_plan import emitted_plan
from paceline.planning.emit.targets import TARGETS, Emitted
from paceline.planning.search.choice import Plan
from paceline.planning.search.goal import parse_goal
from paceline.planning.search.plan import plan
from paceline.planning.search.space import MAX_LOSS, Space
from paceline.prediction.exchange.transports import figures_by_transport, steps_by_transport
from paceline.reporting.pages import answer_page
from paceline.reporting.text.planning_text import plan_screen
from paceline.reporting.text.screen import GAP, Paragraph, Screen
from paceline.strategy import COMPRESSIONS, EXCHANGES, OPTIMIZERS, PLACES, SHARDINGS, GradientExchange
from paceline.strategy.codec_place import check_fabric
from paceline.strategy.parallelism import ALIASES as SHARDING_ALIASES
from paceline.strategy.parallelism import SCHEDULES
from paceline.workload.table import Workload

EXAMPLE = """example:
  paceline plan resnet-50 --cluster "8x8 A100" --network 100Gb/s --target mlperf"""


def add(parser: Parser) -> None:
    """Add what ``paceline plan`` takes."""
    parser.runs(_plan, EXAMPLE)
    add_workload_arguments(parser)
    add_optimizer_argument(parser)
    add_software_argument(parser)
    add_records_argument(parser)
    add_plan_cluster_arguments(parser)
    goals = "fastest, cheapest, deadline=6h or budget=500 (dollars)"
    parser.add_argument("--goal", metavar="G", default="fastest", help=goals)
    add_training_target_arguments(parser)
    parser.add_argument("--global-batch", metavar="B", type=int, action="append", help="only this one; may be repeated")
    for name, legal in (
        ("precision", PRECISIONS),
        ("compression", COMPRESSIONS),
        ("exchange", EXCHANGES),
        ("sharding", SHARDINGS),
    ):
        only = f"only this one of {', '.join(legal)}; may be repeated"
        parser.add_argument(f"--{name}", metavar=name[0].upper(), action="append", help=only)
    place = f"where the codec works, of what can work there: {', '.join(PLACES)} (default: where the gradients live)"
    parser.add_argument("--codec-at", metavar="PLACE", help=place)
    add_bits_arguments(parser)
    add_fabric_arguments(parser)
    several = "may be repeated; without any of tensor, context and pipeline, all are tried where no device holds the network"
    tensor = f"devices that divide each layer, within a node; {several}"
    parser.add_argument("--tensor", metavar="T", type=int, action="append", help=tensor)
    parser.add_argument("--context", metavar="C", type=int, action="append", help="devices that divide each sequence; likewise")
    parser.add_argument("--pipeline", metavar="P", type=int, action="append", help="stages that follow each other; likewise")
    virtual = "parts of the network on each stage; may be repeated (default 1 to 8)"
    parser.add_argument("--virtual-stages", metavar="V", type=int, action="append", help=virtual)
    expert = "devices of a stage that share the experts of a mixture; may be repeated (default: all that layouts can have)"
    parser.add_argument("--expert", metavar="E", type=int, action="append", help=expert)
    parser.add_argument(
        "--grad-accum", "--micro-batches", metavar="A", type=int, action="append", help="micro batches a step; may be repeated"
    )
    parser.add_argument("--servers", metavar="M", type=int, action="append", help=f"{SERVERS} (default 1); may be repeated")
    lost = f"points of accuracy that a compression may have lost where it was measured (default {MAX_LOSS})"
    parser.add_argument("--max-loss", metavar="POINTS", type=float, default=MAX_LOSS, help=lost)
    penalty = "a compression takes F times the samples to the target"
    parser.add_argument("--penalty", metavar="C=F", action="append", help=penalty)
    add_wire_arguments(parser)
    schedule = f"of a pipeline, one of {', '.join(SCHEDULES)}; may be repeated (default 1f1b and zero_bubble)"
    parser.add_argument("--schedule", metavar="S", action="append", help=schedule)
    add_price_argument(parser)
    why_not = "set a strategy beside the best: compression=terngrad,sharding=zero3"
    parser.add_argument("--why-not", metavar="C=V,...", help=why_not)
    emitted = f"print what runs the best strategy, for {', '.join(TARGETS)}; with FILE write it there, and print the plan"
    parser.add_argument("--emit", metavar=("TARGET", "FILE"), nargs="+", help=emitted)
    parser.add_argument("--out", metavar="FILE", help="the same as FILE of --emit")
    add_report_argument(parser)


def _plan(o: argparse.Namespace) -> Answer:
    target, place = _emitted(o)
    best, file, workload = _best(o, target)
    steps = steps_by_transport(predictor(o), workload, best.best.cluster, best.best.strategy)
    screen, data = plan_screen(best, steps), {**best.to_json(), "by_transport": figures_by_transport(steps)}
    if file:
        remark, launch = file.job.remark, file.launch(place or "FILE")
        data["options"] = {"target": target, "text": file.text, "launch": launch, "remark": remark, "left": file.left}
        data["options"]["placeholders"] = file.placeholders
        if place:
            screen = _written(file, place, screen)
        else:
            screen = Screen.verbatim(file.text, screen.brief)
            if not o.json:  # what reads the file has no use for these
                print(*filter(None, (remark, file.left)), sep="\n", end="\n" if remark or file.left else "", file=sys.stderr)
    return data, with_report(screen, o.report, lambda: answer_page.plan_page(best))


def _emitted(o: argparse.Namespace) -> tuple[str, str]:
    """The target of ``--emit`` and the place of its file, both empty where nothing is emitted. Raises UserError."""
    target, *places = o.emit or [""]
    if o.out and not target:
        raise UserError("--out without --emit", f"give --emit {' or '.join(TARGETS)}")
    places += [o.out] if o.out else []
    if len(places) > 1:
        raise UserError(f"--emit {target} is given {len(places)} places: {', '.join(places)}", "give one file")
    if target:
        check_name("target", target, TARGETS)
    return target, places[0] if places else ""


def _written(file: Emitted, place: str, screen: Screen) -> Screen:
    """The plan, where the file is, and how it is started. Raises UserError where it cannot be written."""
    try:
        Path(place).write_text(file.text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {place}: {error.strerror or error}", "choose another place for the file") from error
    left = [Paragraph(text) for text in (file.left, file.placeholders)]
    screen = screen.led_by(file.job.remark)
    return replace(screen, answer=(*screen.answer, GAP, *left)).writing(f"wrote {place}", f"Run: {file.launch(place)}")


def _best(o: argparse.Namespace, emitted: str) -> tuple[Plan, Emitted | None, Workload]:
    """The plan that the options ask for, what is written of it for the target ``emitted``, and what it trains.

    Raises:
        UserError: options that say nothing legal; as ``plan`` and ``emitted_plan``.
    """
    goal = parse_goal(o.goal)
    network, target = workload_and_target(o, goal)
    wanted = parse_wanted(o.why_not) if o.why_not else {}
    clusters = tuple(with_fabric(cluster, o) for cluster in plan_clusters(o))
    space = Space(
        clusters=clusters,
        batches=tuple(sorted(set(o.global_batch or ()))),
        precisions=_precisions(o, clusters),
        servers=_servers(o.servers or [1], wanted),
        virtual_stages=_sizes(o.virtual_stages),
        micro_batches=_sizes(o.grad_accum),
        accumulations=_sizes(o.grad_accum) or Space.accumulations,
        shardings=tuple(SHARDINGS),
        gather_bits=o.gather_bits,
        gradient_bits=o.gradient_bits,
        codec_at=known_name("place of the codec", o.codec_at, PLACES) if o.codec_at else "",
        **{name: value for name in ("residual_bits", "residuals_at", "dense_bits") if (value := getattr(o, name)) is not None},
        optimizer=known_name("optimizer", o.optimizer, OPTIMIZERS) if o.optimizer else "",
        max_loss=o.max_loss,
    )
    if not 0 <= o.max_loss < float("inf"):
        raise UserError(f"--max-loss {o.max_loss:g}", "give points of accuracy from 0 up, such as 0.5")
    for batch in space.batches:
        if batch < 1:
            raise UserError(f"global batch {batch}", "give a whole number from 1 up")
    named, model = _named(o), predictor(o)
    if "switch" in named.get("exchanges", ()):  # where the largest cluster has none that adds, no cluster has
        check_fabric(GradientExchange("dense", "switch"), max(clusters, key=lambda cluster: cluster.num_nodes))
    own = of_devices(parse_prices(o.price or ()), {cluster.device.name for cluster in clusters}) or {}
    prices = {**listings_of_clusters(o.cluster or ()), **own}

    def search(fields: Mapping[str, Any], offers: bool = True) -> Plan:
        return plan(
            network,
            replace(space, **{**fields, **named}),
            goal,
            target,
            prices=prices,
            why_not=wanted or None,
            predictor=model,
            progress=o.say,
            offers=offers,
        )

    workload = workload_of(o, target.tokens)
    if emitted:
        return *emitted_plan(emitted, workload, clusters, search, model), workload
    return search({}), None, workload


def _sizes(given: Sequence[int] | None) -> tuple[int, ...]:
    """What was given, each once."""
    return tuple(sorted(set(given or ())))


def _only(
    kind: str, given: Sequence[str] | None, legal: Iterable[str], aliases: Mapping[str, str] = NO_ALIASES
) -> tuple[str, ...]:
    """What was given, each once, or everything."""
    every = tuple(legal)
    return tuple(dict.fromkeys(known_name(kind, name, every, aliases) for name in given)) if given else every


def _precisions(o: argparse.Namespace, clusters: Sequence[Cluster]) -> tuple[str, ...]:
    """Those that were given; mixed precision is what the devices have."""
    devices = {cluster.device.name: cluster.device for cluster in clusters}
    meant = [precision_on(name, device.precisions) for name in o.precision or () for device in devices.values()]
    return _only("precision", meant, PRECISIONS) if meant else ()


def _named(o: argparse.Namespace) -> dict[str, Any]:
    """What is named of that which a framework otherwise narrows. Raises UserError."""
    named = {
        "tensors": _sizes(o.tensor),
        "contexts": _sizes(o.context),
        "pipelines": _sizes(o.pipeline),
        "experts": _sizes(o.expert),
        "shardings": _only("sharding", o.sharding, SHARDINGS, SHARDING_ALIASES) if o.sharding else (),
        "divided_shardings": _only("sharding", o.sharding, SHARDINGS, SHARDING_ALIASES) if o.sharding else (),
        "schedules": _only("schedule", o.schedule, SCHEDULES) if o.schedule else (),
        "compressions": _only("compression", o.compression, COMPRESSIONS) if o.compression else (),
        "exchanges": _only("exchange", o.exchange, EXCHANGES) if o.exchange else (),
    }
    return {name: values for name, values in named.items() if values}


def _servers(given: Sequence[int], wanted: Wanted) -> tuple[int, ...]:
    """Those that are given, and those of the strategy that is asked about."""
    for count in given:
        if count < 1:
            raise UserError(f"{count} servers", "give a whole number from 1 up")
    return tuple(sorted({*given, *(int(str(count)) for name, count in wanted.items() if name == "servers")}))
