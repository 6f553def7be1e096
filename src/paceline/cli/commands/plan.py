"""``paceline plan``: find the best configuration for a goal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.cli.answer_head import pairs_of, wrapped
from paceline.cli.arguments.choice_arguments import SEARCHED, add_search_arguments, narrowed_choices
from paceline.cli.arguments.plan_clusters import add_plan_cluster_arguments, plan_clusters
from paceline.cli.arguments.prediction_arguments import (
    add_fabric_arguments,
    add_from_argument,
    add_price_argument,
    add_records_argument,
    add_software_argument,
    add_workload_arguments,
    with_fabric,
)
from paceline.cli.arguments.prediction_inputs import predictor, workload_of
from paceline.cli.arguments.report_argument import add_report_argument, with_report
from paceline.cli.arguments.training_target import add_training_target_arguments, workload_and_target
from paceline.cli.guide.sections import common, section
from paceline.cli.parser import Answer, Parser
from paceline.errors import UserError, check_name
from paceline.hardware import Cluster
from paceline.hardware.prices import listings_of_clusters, of_devices, parse_prices
from paceline.planning.compare.changes import Change, changed_predictor
from paceline.planning.compare.strategy_text import Wanted, parse_wanted
from paceline.planning.emit.emitted_plan import emitted_plan, targets_with
from paceline.planning.emit.targets import TARGETS, Emitted
from paceline.planning.search.choice import Choice, DecidingRun, Plan
from paceline.planning.search.goal import parse_goal
from paceline.planning.search.growing_batch import growing_batch
from paceline.planning.search.plan import plan
from paceline.planning.search.space import MAX_LOSS, Space, space_fields
from paceline.prediction.learning.branched_batch import read_rows
from paceline.prediction.transports import figures_by_transport, steps_by_transport
from paceline.reporting.pages import answer_page
from paceline.reporting.text.critical_batch_text import growth_blocks
from paceline.reporting.text.planning_text import plan_screen
from paceline.reporting.text.screen import GAP, Paragraph, Screen
from paceline.strategy import EXCHANGES, GradientExchange
from paceline.strategy.choices.values import plain
from paceline.strategy.codec_place import check_fabric
from paceline.strategy.exchanges.switch import SWITCH
from paceline.strategy.frameworks import FRAMEWORKS, framework_of
from paceline.strategy.parallelism import MODEL
from paceline.strategy.strategy import CHOICES
from paceline.units import format_memory
from paceline.workload.table import Workload

EXAMPLE = """example:
  paceline plan resnet-50 --cluster "8x8 A100" --network 100Gb/s --target mlperf"""


OF_FRAMEWORK = "framework"
"""Target that means the one of ``--framework``."""


def add(parser: Parser) -> None:
    """Add the arguments of ``paceline plan``."""
    limits = section(parser, "limits")
    changes = section(parser, "changes")
    answers = section(parser, "answer")
    parser.runs(_plan, EXAMPLE)
    add_workload_arguments(parser)
    add_from_argument(parser)
    add_software_argument(parser)
    add_records_argument(parser)
    add_plan_cluster_arguments(parser)
    goals = "fastest, cheapest, deadline=6h or budget=500 (dollars)"
    common(limits.add_argument("--goal", metavar="G", default="fastest", help=goals))
    add_training_target_arguments(parser)
    add_search_arguments(parser)
    add_fabric_arguments(parser)
    lost = f"points of accuracy that a compression may have lost where it was measured (default {MAX_LOSS})"
    limits.add_argument("--max-loss", metavar="POINTS", type=float, default=MAX_LOSS, help=lost)
    penalty = "a compression takes F times the samples to the target"
    limits.add_argument("--penalty", metavar="C=F", action="append", help=penalty)
    add_price_argument(parser)
    why_not = "compare a strategy with the best: compression=terngrad,sharding=zero3"
    changes.add_argument("--why-not", metavar="C=V,...", help=why_not)
    emitted = (
        f"print what runs the best strategy, for {', '.join(TARGETS)}, or framework for that of --framework; with FILE write "
        "it there, and print the plan"
    )
    common(answers.add_argument("--emit", metavar=("TARGET", "FILE"), nargs="+", help=emitted))
    answers.add_argument("--out", metavar="FILE", help="the same as FILE of --emit")
    grows = "let the batch grow with the critical batch: a CSV file of samples,critical_batch, as train --branches writes it"
    section(parser, "training").add_argument("--critical-batches", metavar="FILE", help=grows)
    add_report_argument(parser)


def _plan(o: argparse.Namespace) -> Answer:
    target, place = _emitted(o)
    best, file, workload = _best(o, target)
    steps = steps_by_transport(predictor(o), workload, best.best.cluster, best.best.strategy)
    commands = [_command(o, run) for run in best.deciding]
    screen = plan_screen(best, steps, commands).noting(*workload.notes, *best.best.cluster.notes)
    screen = screen.noting(*_in_framework(o, target, best, workload))
    growing = None
    if o.critical_batches:
        growing = growing_batch(workload, best.best, read_rows(o.critical_batches), predictor(o))
        screen = replace(screen, answer=(*screen.answer, GAP, *growth_blocks(growing)))
    data = {**best.to_json(), "by_transport": figures_by_transport(steps)}
    data["deciding"] = [{**run, "command": command} for run, command in zip(data["deciding"], commands, strict=True)]
    if growing is not None:
        data["growing_batch"] = growing.to_json()
    if file:
        remark, launch = file.job.remark, file.launch(place or "FILE")
        data["options"] = {"target": target, "text": file.text, "launch": launch, "remark": remark, "left": file.left}
        data["options"]["placeholders"] = file.placeholders
        if place:
            screen = _written(file, place, screen)
        else:
            screen = Screen.verbatim(file.text, screen.brief)
            if not o.json:  # readers of the file have no use for these
                print(*filter(None, (remark, file.left)), sep="\n", end="\n" if remark or file.left else "", file=sys.stderr)
    return data, with_report(screen, o.report, lambda: answer_page.plan_page(best))


_PINNED = tuple(item for item in SEARCHED if item.of_layout or item.name in ("precision", "recompute", "sharding"))
"""Choices that a command for one layout names."""
_OF_STAGES = ("virtual_stages", "schedule")
"""Choices of a pipeline."""


def _command(o: argparse.Namespace, run: DecidingRun) -> str:
    """Return the command that plans one layout alone, and writes it for the framework of the run."""
    strategy = run.choice.strategy
    pinned: dict[str, Any] = {"global_batch": [strategy.global_batch_size]}
    for item in _PINNED:
        value = plain(strategy.choice(item.name))
        if (
            item.name in MODEL
            or value != plain(item.default)
            or (strategy.parallelism.pipeline > 1 and item.name in _OF_STAGES)
        ):
            pinned[item.dest] = value if item.plan and item.plan.single else [value]
    form = {"emit": [run.target] if run.target else None, "report": None, "brief": False, "why": False, "out": None}
    parser: Parser = o.parser
    words = [*parser.prog.split(), *parser.words(argparse.Namespace(**{**vars(o), **pinned, **form}))]
    return " \\\n".join(wrapped(pairs_of(words)))


def _in_framework(o: argparse.Namespace, target: str, best: Plan, workload: Workload) -> Iterator[str]:
    """Yield a sentence if the best strategy does not fit in the framework that the target's file runs in."""
    names = [name for name, framework in FRAMEWORKS.items() if target and framework.emits == target]
    if not names or o.framework != o.parser.get_default("framework") or o.framework in names or not best.best.prediction.fits:
        return
    name = target if target in names else names[0]
    model = changed_predictor([Change("framework", "=", name)], predictor(o))
    step = model.step(workload, best.best.cluster, best.best.strategy)
    if not step.fits:
        needs = f"{format_memory(step.memory_bytes)} a device"
        yield f"In {name} the best strategy needs {needs} and does not fit: add --framework {name}, which plans for it."


def _emitted(o: argparse.Namespace) -> tuple[str, str]:
    """Return the target of ``--emit`` and the path of its file, both empty without ``--emit``. Raises UserError."""
    target, *places = o.emit or [""]
    if target and o.critical_batches:
        raise UserError(
            f"--emit {target} with --critical-batches: the batch of a file does not grow",
            "leave --emit out, and give the plan's stages to paceline train; or leave --critical-batches out",
        )
    if o.out and not target:
        raise UserError("--out without --emit", f"give --emit {' or '.join(TARGETS)}")
    places += [o.out] if o.out else []
    if len(places) > 1:
        raise UserError(f"--emit {target} is given {len(places)} places: {', '.join(places)}", "give one file")
    if target == OF_FRAMEWORK:
        framework = framework_of(o.framework)
        if not framework.emits:
            raise UserError(f"--emit framework: no file is written for {framework}", f"give --emit {' or '.join(TARGETS)}")
        target = framework.emits
    elif target:
        check_name("target", target, (*TARGETS, OF_FRAMEWORK))
    return target, places[0] if places else ""


def _written(file: Emitted, place: str, screen: Screen) -> Screen:
    """Return the plan, the path of the file, and the command that starts it. Raises UserError if the file cannot be written."""
    try:
        Path(place).write_text(file.text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {place}: {error.strerror or error}", "choose another place for the file") from error
    left = [Paragraph(text) for text in (file.left, file.placeholders)]
    screen = screen.led_by(file.job.remark)
    return replace(screen, answer=(*screen.answer, GAP, *left)).writing(f"wrote {place}", f"Run: {file.launch(place)}")


def _best(o: argparse.Namespace, emitted: str) -> tuple[Plan, Emitted | None, Workload]:
    """Return the plan for the options, its file for the target ``emitted``, and its workload.

    Raises:
        UserError: illegal options; as ``plan`` and ``emitted_plan``.
    """
    goal = parse_goal(o.goal)
    network, target = workload_and_target(o, goal)
    wanted = parse_wanted(o.why_not) if o.why_not else {}
    clusters = tuple(with_fabric(cluster, o) for cluster in plan_clusters(o))
    named = _named(o, clusters, wanted)
    space = Space(clusters=clusters, **named, micro_batch_sizes=tuple(o.micro_batch_size or ()), max_loss=o.max_loss)
    if not 0 <= o.max_loss < float("inf"):
        raise UserError(f"--max-loss {o.max_loss:g}", "give points of accuracy from 0 up, such as 0.5")
    model = predictor(o)
    if any(EXCHANGES[name].uses_switch for name in named.get("exchanges", ())):
        # if the largest cluster has no switch that adds, no cluster has
        check_fabric(GradientExchange(exchange=SWITCH), max(clusters, key=lambda cluster: cluster.num_nodes))
    own = of_devices(parse_prices(o.price or ()), {cluster.device.name for cluster in clusters}) or {}
    prices = {**listings_of_clusters(o.cluster or ()), **own}

    workload = workload_of(o, target.tokens)

    def able(choice: Choice) -> list[str]:
        every = targets_with(workload, choice)
        return [name for name in every if name == emitted] if emitted else every

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
            targets=able,
        )

    if emitted:
        return *emitted_plan(emitted, workload, clusters, search, model), workload
    return search({}), None, workload


def _named(o: argparse.Namespace, clusters: Sequence[Cluster], wanted: Wanted) -> dict[str, Any]:
    """Return the fields of ``Space`` that options set.

    Args:
        wanted: strategy of ``--why-not``, whose number of servers is tried too.

    Raises:
        UserError: an illegal value.
    """
    values, servers = narrowed_choices(o), CHOICES["servers"]
    if asked := [count for word, count in wanted.items() if word == servers.word]:
        values[servers.name] = [*values.get(servers.name, [servers.default]), *asked]
    if servers.name in values:
        values[servers.name] = [servers.values.check(count, servers.name) for count in values[servers.name]]
    return space_fields(values, (cluster.device for cluster in clusters))
