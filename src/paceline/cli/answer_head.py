"""Head of an answer: the defaults that were chosen, and clusters or options that would fit if the job does not."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

from paceline import hardware
from paceline.cli.arguments.exchange_arguments import COMPOUND, recipe_notes
from paceline.cli.arguments.prediction_inputs import Inputs, job_of, plain_predictor
from paceline.cli.parser import Parser
from paceline.hardware import Cluster, Link
from paceline.hardware.instances import network_of
from paceline.hardware.phrases.node_links import counted_text
from paceline.planning.search.lighter_jobs import with_lighter
from paceline.planning.search.nearest_fit import DENSE, Fitting, nearest_fit, smaller_steps
from paceline.prediction import Prediction, StepPredictor
from paceline.reporting.text.screen import GAP, USUAL_WIDTH, Block, Paragraph, Screen, Table, Verbatim, heading
from paceline.strategy.frameworks import framework_of
from paceline.strategy.strategy import CHOICES, Strategy
from paceline.strategy.usual_precision import RECOMPUTED, usual_choices, usual_precision
from paceline.units import format_count, format_memory, format_seconds
from paceline.verbs import LARGEST_BATCH
from paceline.workload.builders.adapters.lora import parse_lora
from paceline.workload.table import Workload

_NOT_CARRIED = ("report", "trace", "beside", "brief", "why", "rank", "picture", "snapshot")
"""Options left out of an offered command: those of files, and of the form of the answer."""
_OF_EXCHANGE = (
    *(item.dest or item.name for item in CHOICES.values() if item.follows),
    *(option.dest for values in COMPOUND.values() for option in values.options),
)
"""Options and choices of a compression and of its exchange."""
SHOWN = 3
"""Number of offers in the answer; ``--why`` shows further ones."""
_TIE = "\xa0"
Offer = tuple[Fitting, Sequence[str], Sequence[str]]
"""A fitting case, its changed options, and its whole command, as words."""


def with_head(
    o: argparse.Namespace,
    inputs: Inputs,
    model: StepPredictor,
    prediction: Prediction,
    data: dict[str, Any],
    screen: Screen,
    *,
    behind: bool = False,
) -> tuple[dict[str, Any], Screen]:
    """Add the head to an answer: notes on chosen defaults, and if the job does not fit, the offers that would.

    Args:
        behind: if the job does not fit, show the offers instead of the answer, which moves behind ``--why``.

    Raises:
        UserError: as ``nearest_fit``.
    """
    screen = screen.noting(*taken(o, inputs)).missing(*unfit(prediction))
    if prediction.fit == "fits":
        return {**data, "would_fit": []}, screen
    offers = [(fit, *_command(o, inputs, fit)) for fit in _nearest(o, inputs, model)]
    would_fit = [
        {"options": shlex.join(options), "command": shlex.join(command), **fit.to_json()} for fit, options, command in offers
    ]
    brief = f"{screen.brief}; what would fit: {would_fit[0]['options']}" if offers else screen.brief
    head = tuple(_offered(inputs, prediction, offers))
    screen = replace(screen, answer=(*head, GAP, *screen.answer), brief=brief)
    return {**data, "would_fit": would_fit}, _head_alone(screen, head, prediction, offers) if behind else screen


def with_smaller(
    o: argparse.Namespace,
    inputs: Inputs,
    model: StepPredictor,
    prediction: Prediction,
    data: dict[str, Any],
    screen: Screen,
) -> tuple[dict[str, Any], Screen]:
    """Add the single changes that lower the memory of a job that fits. If it does not, ``with_head`` names what would fit."""
    if prediction.fit == "does not fit":
        return {**data, "smaller": []}, screen
    offers = [(fit, *_command(o, inputs, fit)) for fit in smaller_steps(*inputs, prediction, predictor=model)]
    smaller = [{"options": shlex.join(options), **fit.to_json()} for fit, options, _ in offers]
    blocks = (heading("Changes that lower it:"), _offer_table(offers), GAP) if offers else ()
    return {**data, "smaller": smaller}, replace(screen, answer=(*screen.answer, GAP, *blocks))


def unfit(prediction: Prediction) -> tuple[str, ...]:
    """Return what the answer misses if the job does not fit; empty if it does, or may."""
    return (prediction.headline,) if prediction.fit == "does not fit" else ()


def _head_alone(screen: Screen, head: Sequence[Block], p: Prediction, offers: Sequence[Offer]) -> Screen:
    """Show the head as the answer, and move the rest behind ``--why``."""
    as_if = f"As if it fitted: {format_seconds(p.step_time_s)} a step, {p.samples_per_s:.3g} samples/s."
    others = (heading("What would fit too:"), _offer_table(offers[SHOWN:])) if len(offers) > SHOWN else ()
    return replace(
        screen,
        answer=(*head, GAP, Paragraph(as_if)),
        why=(*others, GAP, *screen.answer[len(head) :], GAP, *screen.why),
        why_holds=f"the step as if it fitted, {screen.why_holds}",
    )


def _nearest(o: argparse.Namespace, inputs: Inputs, model: StepPredictor) -> tuple[Fitting, ...]:
    most = LARGEST_BATCH if o.global_batch is None else 1
    found = nearest_fit(*inputs, predictor=model, network=_node_network(o, inputs[1]), most_batches=most)
    return with_lighter(found, job_of(o, inputs[0]), *inputs[1:], model) if o.lora else found


def _node_network(o: argparse.Namespace, machines: Cluster) -> Link | None:
    """Return the network between nodes that the options name, for a cluster of more nodes."""
    if o.network or not (o.device and hardware.instance(o.device)):
        sizes = machines.devices_per_node
        return hardware.network(network_of(o.network, machines.device.name, sizes)) if o.network else None
    return hardware.cluster(o.device, o.devices_per_node, 2).network


def _offered(inputs: Inputs, prediction: Prediction, offers: Sequence[Offer]) -> Iterator[Block]:
    """Yield the lines on options that would fit, and the command of the nearest one."""
    if not offers:
        yield Paragraph(f"{_needed(inputs, prediction)} No change that was tried makes it fit.")
        return
    yield Paragraph(f"{_needed(inputs, prediction)} What would fit, the nearest first:")
    yield _offer_table(offers[:SHOWN])
    *lines, last = wrapped(pairs_of(offers[0][2]))
    yield Verbatim("\n".join((*(f"{line} \\" for line in lines), last)))


def _offer_table(offers: Sequence[Offer]) -> Table:
    rows = [(" ".join(pairs_of(options)), *_figures(fit.prediction)) for fit, options, _ in offers]
    return Table(("", "memory", "step", "samples/s"), rows)


def _needed(inputs: Inputs, prediction: Prediction) -> str:
    has, needs = (format_memory(size) for size in (inputs[1].device.memory.value, prediction.memory_bytes))
    return f"As asked, a device needs {needs} and has {has}."


def _figures(p: Prediction) -> tuple[str, ...]:
    return format_memory(p.memory_bytes), format_seconds(p.step_time_s), f"{p.samples_per_s:.3g}"


def pairs_of(words: Sequence[str]) -> list[str]:
    """Join each option with its value, as words for a shell."""
    pairs: list[str] = []
    for word in map(shlex.quote, words):
        if pairs and pairs[-1].startswith("--") and not word.startswith("--"):
            pairs[-1] += f" {word}"
        else:
            pairs.append(word)
    return pairs


def wrapped(parts: Sequence[str]) -> list[str]:
    """Break lines only between parts, with room for a backslash."""
    tied = " ".join(part.replace(" ", _TIE) for part in parts)
    lines = wrap(tied, USUAL_WIDTH - 2, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
    return [line.replace(_TIE, " ") for line in lines]


def _command(o: argparse.Namespace, inputs: Inputs, fit: Fitting) -> tuple[list[str], list[str]]:
    """Return an offer's changed options, and the whole command with them."""
    workload, cluster, strategy = inputs
    old, new = strategy.settled(workload, cluster).to_json(), fit.strategy.to_json()
    changed = {CHOICES[name].dest or name: new[name] for name in new if new[name] != old.get(name) and name != "world_size"}
    carried: dict[str, Any] = dict.fromkeys(_NOT_CARRIED)
    if DENSE in fit.kinds:
        changed = {name: value for name, value in changed.items() if name not in _OF_EXCHANGE}
        carried |= dict.fromkeys(_OF_EXCHANGE)
        changed |= {name: new[name] for name in ("compression", "exchange")}
    changed |= {name: value for name, value in (("lora", fit.lora), ("seq_len", fit.tokens)) if value}
    if o.global_batch is None:
        changed["global_batch"] = new["global_batch_size"]
    if o.precision is None and usual_precision(workload, fit.cluster.device).name != new["precision"]:
        changed["precision"] = new["precision"]
    machines: Mapping[str, Any] = {}
    if fit.cluster != cluster:
        before, machines = _cluster_options(o, cluster, cluster), _cluster_options(o, fit.cluster, cluster)
        changed |= {name: value for name, value in machines.items() if value != before[name]}
    parser: Parser = o.parser
    whole = argparse.Namespace(**{**vars(o), **carried, **({"cluster": None} if machines else {}), **machines, **changed})
    return parser.words(whole, changed), [*parser.prog.split(), *parser.words(whole)]


def _cluster_options(o: argparse.Namespace, machines: Cluster, asked: Cluster) -> dict[str, Any]:
    """Return options for a cluster in the form that the user chose for the cluster ``asked`` about."""
    network = counted_text(machines.network) if machines.num_nodes > 1 else None
    device, local = machines.device.name, machines.levels[0].size
    if machines.device == asked.device and o.cluster is None:  # the name may be an instance or a probe
        device, local = o.device, local if local != asked.levels[0].size else o.devices_per_node
        network = network if network and not (o.device and hardware.instance(o.device)) else o.network
    nodes = machines.num_nodes if machines.num_nodes > 1 else None
    return {"device": device, "devices_per_node": local, "nodes": nodes, "network": network}


def taken(o: argparse.Namespace, inputs: Inputs) -> Iterator[str]:
    """Return sentences about what the cluster's words left open, the default precision, and the default batch."""
    workload, cluster, strategy = inputs
    yield from workload.notes
    yield from cluster.notes
    if o.lora:
        yield from _adapters(o, workload)
    if o.precision is None:
        usual = usual_precision(workload, cluster.device)
        yield f"Precision: {usual.name} ({usual.reason}; --precision)."
    yield from _usual_taken(o, workload, strategy)
    yield from recipe_notes(o, strategy.sync_every, strategy.optimizer)
    if o.global_batch is None:
        yield _batch_taken(o, inputs)


def _usual_taken(o: argparse.Namespace, workload: Workload, strategy: Strategy) -> Iterator[str]:
    """Return sentences about choices that were taken as the framework's examples or PEFT have them."""
    framework = framework_of(o.framework)
    given = [name for name, item in CHOICES.items() if item.option and getattr(o, item.dest, None) is not None]
    usual = usual_choices(workload, given, framework)
    values = {name: strategy.choice(name) for name, value in usual.items() if strategy.choice(name) == value}
    peft = {name: values.pop(name) for name in list(values) if name not in framework.examples}
    if peft:
        yield f"Blocks are recomputed ({RECOMPUTED}; --recompute)."
    if not workload.frozen_bits:
        values = {name: value for name, value in values.items() if value != CHOICES[name].default}
    if values:
        options = " ".join(f"--{CHOICES[name].option} {value}" for name, value in values.items())
        yield f"As {framework}'s examples do: {options}."


def _adapters(o: argparse.Namespace, workload: Workload) -> Iterator[str]:
    """Return sentences about the adapters and the form of the frozen weights."""
    lora = parse_lora(o.lora)
    trained, frozen = (format_count(count) for count in (workload.num_parameters, workload.frozen))
    scales = " (rsLoRA and alpha only scale results)" if lora.rslora or lora.alpha else ""
    yield f"{lora.kind} {lora.text}: {trained} numbers are trained, {frozen} are frozen{scales}."
    if lora.bits:
        yield (
            f"Linear layers are held in {lora.bits} bits, embeddings, output layer and norms in {lora.others}: "
            f"{workload.frozen_bits:.3g} bits a frozen weight with scales."
        )


def _batch_taken(o: argparse.Namespace, inputs: Inputs) -> str:
    """Return a sentence about the default batch and its reason."""
    workload, cluster, strategy = inputs
    micro = strategy.parallelism.micro_batches
    each = strategy.global_batch_size // (strategy.world_size * micro)
    share = f"{each:,} for each device{' and micro step' if micro > 1 else ''}"
    rule = "the largest power of two up to 1,024 that fits its memory"
    fit = plain_predictor(o).step(workload, cluster, strategy).fit if each == 1 else "fits"
    if fit != "fits":
        rule = f"the smallest batch, which {fit} its memory"
    return f"No --global-batch was given: {strategy.global_batch_size:,} samples were taken, {share}, {rule}."
