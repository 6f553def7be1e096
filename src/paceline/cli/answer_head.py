"""What stands at the head of a prediction: what was taken where nothing was said, and what would fit where it does not fit."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill, wrap
from typing import Any

from paceline import hardware
from paceline.cli.parser import Answer, Parser
from paceline.cli.prediction_inputs import Inputs, plain_predictor
from paceline.hardware import Cluster, Link
from paceline.planning.nearest_fit import Fitting, nearest_fit
from paceline.prediction import Prediction, Predictor
from paceline.strategy.usual_precision import usual_precision
from paceline.units import format_memory, format_seconds
from paceline.verbs import LARGEST_BATCH

WIDTH = 80
_OPTIONS = {"global_batch_size": "global_batch", "grad_accum_steps": "grad_accum"}
"""Choices of a strategy whose options are called otherwise."""
_NOT_CARRIED = {"report": None, "trace": None, "beside": None}
"""Options of a command that the offered one leaves out: files that it writes or reads."""
_TIE = "\xa0"
Offer = tuple[Fitting, Sequence[str], Sequence[str]]
"""What would fit, the options that change, and the whole command, as words."""


def with_head(
    o: argparse.Namespace, inputs: Inputs, model: Predictor, prediction: Prediction, data: dict[str, Any], text: str
) -> Answer:
    """The answer with what would fit, and below the first paragraph of its text what was taken where nothing was said.

    Raises:
        UserError: as ``nearest_fit``.
    """
    fitting = () if prediction.fit == "fits" else _nearest(o, inputs, model)
    offers = [(fit, *_command(o, inputs, fit)) for fit in fitting]
    first, _, rest = text.partition("\n\n")
    would_fit = [
        {"options": shlex.join(options), "command": shlex.join(command), **fit.to_json()} for fit, options, command in offers
    ]
    head = [first, "\n".join(_offered(inputs, prediction, offers)) if offers else "", _taken(o, inputs)]
    return {**data, "would_fit": would_fit}, "\n\n".join(filter(None, [*head, rest]))


def with_taken(o: argparse.Namespace, inputs: Inputs, text: str) -> str:
    """The text with what was taken where nothing was said below its first paragraph."""
    first, _, rest = text.partition("\n\n")
    return "\n\n".join(filter(None, [first, _taken(o, inputs), rest]))


def _nearest(o: argparse.Namespace, inputs: Inputs, model: Predictor) -> tuple[Fitting, ...]:
    most = LARGEST_BATCH if o.global_batch is None else 1
    return nearest_fit(*inputs, predictor=model, network=_between(o), most_batches=most)


def _between(o: argparse.Namespace) -> Link | None:
    """The network between more nodes than there are, where the options say it."""
    if o.network or not (o.device and hardware.instance(o.device)):
        return hardware.network(o.network) if o.network else None
    return hardware.cluster(o.device, o.devices_per_node, 2).network


def _offered(inputs: Inputs, prediction: Prediction, offers: Sequence[Offer]) -> Iterator[str]:
    """What would fit, a line each, and the command of the nearest."""
    has, needs = (format_memory(size) for size in (inputs[1].device.memory.value, prediction.memory_bytes))
    yield from wrap(f"As asked, a device needs {needs} and has {has}. What would fit, the nearest first:", WIDTH)
    for fit, options, _ in offers:
        p = fit.prediction
        figures = f"{format_memory(p.memory_bytes)}, {format_seconds(p.step_time_s)} a step, {p.samples_per_s:.3g} samples/s"
        yield from _wrapped([*_pairs(options), f"({figures})"], "  ")
    *lines, last = _wrapped(_pairs(offers[0][2]), "", WIDTH - 2)
    yield from (f"{line} \\" for line in lines)
    yield last


def _pairs(words: Sequence[str]) -> list[str]:
    """Words for a shell, each value with its option."""
    pairs: list[str] = []
    for word in map(shlex.quote, words):
        if pairs and pairs[-1].startswith("--") and not word.startswith("--"):
            pairs[-1] += f" {word}"
        else:
            pairs.append(word)
    return pairs


def _wrapped(parts: Sequence[str], indent: str, width: int = WIDTH) -> list[str]:
    """Lines that break between parts alone."""
    tied = " ".join(part.replace(" ", _TIE) for part in parts)
    deeper = f"{indent}    "
    lines = wrap(tied, width, initial_indent=indent, subsequent_indent=deeper, break_on_hyphens=False, break_long_words=False)
    return [line.replace(_TIE, " ") for line in lines]


def _command(o: argparse.Namespace, inputs: Inputs, fit: Fitting) -> tuple[list[str], list[str]]:
    """The options in which it differs from what was given, and the whole command with them."""
    workload, cluster, strategy = inputs
    old, new = strategy.settled(workload, cluster).to_json(), fit.strategy.to_json()
    changed = {_OPTIONS.get(name, name): new[name] for name in new if new[name] != old[name] and name != "world_size"}
    if o.global_batch is None:
        changed["global_batch"] = new["global_batch_size"]
    if o.precision is None and usual_precision(workload, fit.cluster.device).name != new["precision"]:
        changed["precision"] = new["precision"]
    machines: Mapping[str, Any] = {}
    if fit.cluster != cluster:
        before, machines = _cluster_options(o, cluster, cluster), _cluster_options(o, fit.cluster, cluster)
        changed |= {name: value for name, value in machines.items() if value != before[name]}
    parser: Parser = o.parser
    carried = {name: value for name, value in _NOT_CARRIED.items() if hasattr(o, name)}
    whole = argparse.Namespace(**{**vars(o), **carried, **({"cluster": None} if machines else {}), **machines, **changed})
    return parser.words(whole, changed), [*parser.prog.split(), *parser.words(whole)]


def _cluster_options(o: argparse.Namespace, machines: Cluster, asked: Cluster) -> dict[str, Any]:
    """The options of a cluster, where those of the one that was ``asked`` about are given."""
    network = machines.network.name if machines.num_nodes > 1 else None
    device, local = machines.device.name, machines.levels[0].size
    if machines.device == asked.device and o.cluster is None:  # perhaps an instance, or a probe
        device, local = o.device, local if local != asked.levels[0].size else o.devices_per_node
        network = network if network and not (o.device and hardware.instance(o.device)) else o.network
    return {"device": device, "devices_per_node": local, "nodes": machines.num_nodes, "network": network}


def _taken(o: argparse.Namespace, inputs: Inputs) -> str:
    """The precision and the batch that were taken where none was given; empty where both were."""
    workload, cluster, _ = inputs
    sentences = []
    if o.precision is None:
        usual = usual_precision(workload, cluster.device)
        sentences.append(f"Precision: {usual.name} ({usual.reason}; --precision).")
    if o.global_batch is None:
        sentences.append(_batch_taken(o, inputs))
    return fill(" ".join(sentences), WIDTH)


def _batch_taken(o: argparse.Namespace, inputs: Inputs) -> str:
    """Which batch was taken, and why."""
    workload, cluster, strategy = inputs
    micro = strategy.parallelism.micro_batches
    each = strategy.global_batch_size // (strategy.world_size * micro)
    share = f"{each:,} for each device{' and micro step' if micro > 1 else ''}"
    rule = "the largest power of two up to 1,024 that fits its memory"
    if each == 1 and not plain_predictor(o).many(workload, [(cluster, strategy)]).fits[0]:
        rule = "which does not fit its memory, and neither does any larger batch"
    return f"No --global-batch was given: {strategy.global_batch_size:,} samples were taken, {share}, {rule}."
