"""Screens of runs: one prediction, and predictions compared with measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from paceline import hardware
from paceline.errors import UserError
from paceline.hardware.placement import nodes_text, parse_sizes
from paceline.hardware.prices import Price, price
from paceline.record import Metrics, RunRecord
from paceline.reporting.learning import sentences
from paceline.reporting.text.screen import (
    GAP,
    USUAL_WIDTH,
    Bar,
    Block,
    Pair,
    Paragraph,
    Screen,
    Style,
    Table,
    heading,
    item,
    text_of,
)
from paceline.reporting.values import (
    HEADLINE,
    TOLERANCE,
    UNKNOWN,
    accuracy_of,
    clean,
    count,
    memory,
    parts_text,
    percent,
    rate,
    rate_range,
    ratio,
    relative_error,
    seconds,
    size,
    step_range,
    strategy_text,
    unusual_choices,
)
from paceline.trust_history import TrustHistory

NOTE = (
    f"( ) range: predicted, or from fast to slow steps measured. "
    f"Error: (predicted - measured) / measured; ok within {TOLERANCE * 100:.0f} %."
)
DOUBTS = ("fit", "coverage", "uncalibrated", "accuracy", "payload")
"""Kinds of assumptions that would change the answer, so that they stand in it."""


def comparison(predictions: Mapping[str, Metrics], records: Mapping[str, RunRecord]) -> list[Block]:
    """Return a table of predicted and measured values by run label: in columns for two runs, one below the other for more."""
    labels = list(dict.fromkeys([*records, *predictions]))
    groups = [labels] if len(labels) <= 2 else [[label] for label in labels]
    blocks: list[Block] = []
    for group in groups:
        pairs = [(label, predictions.get(label), records.get(label)) for label in group]
        blocks += [_comparison_table(pairs), GAP]
    return [*blocks, Paragraph(NOTE, "faint")]


def _comparison_table(pairs: Sequence[tuple[str, Metrics | None, RunRecord | None]]) -> Table:
    head = [f"{clean(label, 40)}\n{kind}" for label, _, _ in pairs for kind in ("predicted", "measured")]
    rows = [(row.name, *(_cell(row.text(run)) if run else UNKNOWN for _, *both in pairs for run in both)) for row in HEADLINE]
    errors = [cell for _, predicted, measured in pairs for cell in ("", _error_cell(predicted, measured))]
    return Table(("", *head), [*rows, ("step time error", *errors)])


def render(predictions: Mapping[str, Metrics], records: Mapping[str, RunRecord], width: int = USUAL_WIDTH) -> str:
    """Format ``comparison`` as plain text of at most ``width`` columns."""
    return text_of(comparison(predictions, records), width)


def step_time_error(predicted: Metrics | None, measured: Metrics | None) -> tuple[float, str]:
    """Return the relative error of the predicted step time and its verdict: ``ok``, ``off`` or ``unknown``."""
    if predicted is None or measured is None:
        return math.nan, UNKNOWN
    error = relative_error(predicted.step_time_s, measured.step_time_s)
    return error, UNKNOWN if math.isnan(error) else "ok" if abs(error) <= TOLERANCE else "off"


def _cell(text: tuple[str, str]) -> str:
    value, spread = text
    return f"{value}\n({spread})" if spread else value


def _error_cell(predicted: Metrics | None, measured: Metrics | None) -> str:
    error, verdict = step_time_error(predicted, measured)
    return UNKNOWN if verdict == UNKNOWN else f"{percent(error, signed=True)}\n{verdict}"


def prediction_screen(prediction: Metrics) -> Screen:
    """Return the screen of a predicted step: time, its parts, memory and cost, with the assumptions behind ``--why``."""
    p = prediction
    waits = clean(p.bottleneck) or UNKNOWN
    return Screen(
        title=f"{run_title(p)}, predicted",
        answer=tuple(_answer(p, waits)),
        brief=f"{run_title(p)}: {seconds(p.step_time_s)} a step ({step_range(p)}), {_memory(p)}, waits for {waits}",
        why=tuple(_reason_blocks(p)),
        why_holds=f"{count(len(p.assumptions), 'assumption')} with sources, the whole strategy, memory by use",
        alarm=getattr(p, "headline", ""),
    )


def run_title(run: Metrics) -> str:
    """Describe a run: ``resnet-50 on 8 x 1 V100 SXM2 16GB, batch 1024, fp32, momentum``."""
    on, s = _cluster(run), run.strategy
    where = _device_name(run)
    if where.startswith("this machine"):
        nodes = int(on.get("num_nodes", 1))
        where = f"{nodes} nodes like {where}" if nodes > 1 else where
    elif where:
        where = f"{nodes_text(str(on.get('devices_per_node', 1)), int(on.get('num_nodes', 1)))} {where}"
    elif "world_size" in s:
        where = count(int(s["world_size"]), "worker")
    batch = f"batch {s['global_batch_size']:,}" if "global_batch_size" in s else ""
    choices = [clean(s[name]) for name in ("precision", "optimizer") if s.get(name)]
    names = filter(None, (batch, *choices, *unusual_choices(s)))
    return ", ".join([f"{clean(run.workload)} on {where}" if where else clean(run.workload), *names])


def _cluster(run: Metrics) -> Mapping[str, Any]:
    return getattr(run, "cluster", {})


def _device_name(run: Metrics) -> str:
    """Return the device's name in a prediction, or in a record, which stores the whole device."""
    device: Any = _cluster(run).get("device", "")
    return clean(device.get("name", "") if isinstance(device, Mapping) else device)


def _memory(run: Metrics) -> str:
    """Format the memory: ``61.2 GiB of 80.0 GiB a device``, without the second part for a device outside the catalogue."""
    with suppress(UserError):
        return f"{memory(run.memory_bytes)} of {memory(hardware.device(_device_name(run)).memory.value)} a device"
    return f"{memory(run.memory_bytes)} a device"


def _answer(p: Metrics, waits: str) -> Iterator[Block]:
    yield Pair("step time", f"{seconds(p.step_time_s)} ({step_range(p)})")
    yield Pair("throughput", f"{rate(p.samples_per_s)} samples/s ({rate_range(p)})")
    if useful := getattr(p, "useful_tokens_per_s", 0.0):
        yield Pair("tokens", f"{rate(useful)} tokens/s that count, without padding")
    if (counted := getattr(p, "counted", 1.0)) < 1:
        yield Pair("late workers", f"{counted:.0%} of the steps count; the rest are lost")
    yield Pair("parts", parts_text(p))
    yield Pair("waits for", waits)
    yield Pair("memory", _memory(p), "" if getattr(p, "fit", "fits") == "fits" else "bad")
    if p.wire_bytes_per_device:
        less = f", {ratio(p.compression_ratio)} less than dense" if p.compression_ratio != 1 else ""
        yield Pair("exchange", f"{size(p.wire_bytes_per_device)} per step per worker{less}")
    if hourly := hourly_cost(p):
        each = f"${hourly.usd:,.2f} an hour for {count(int(p.strategy['world_size']), 'device')}"
        yield Pair("cost", f"{each} ({hourly.listed}){hourly.terms}")
    yield GAP
    yield from _breakdown(p)
    yield GAP
    for assumption in p.assumptions:
        if getattr(assumption, "kind", "") in DOUBTS:
            yield Paragraph(assumption, "warning")


def _listing(p: Metrics) -> tuple[Price | None, tuple[int, ...]]:
    """Return the listing of a prediction's devices, None without one, and the devices of each node."""
    if not _cluster(p).get("device"):
        return None, ()
    each = parse_sizes(str(_cluster(p)["devices_per_node"]))
    nodes = each if isinstance(each, tuple) else (each,) * int(_cluster(p)["num_nodes"])
    return price(_device_name(p), node_sizes=nodes), nodes


@dataclass(frozen=True)
class HourlyCost:
    """Dollars of an hour on the machines of a run. ``listed``: provider and date. ``terms``: how it is let."""

    usd: float
    listed: str
    terms: str


def hourly_cost(p: Metrics) -> HourlyCost | None:
    """Return what the machines of a run cost by the listings; None if no price of the device is listed."""
    listing, nodes = _listing(p)
    if not listing:
        return None
    terms = f", {listing.terms}" if sum(nodes) * listing.usd_per_device_hour < listing.usd_per_hour(nodes) * 0.99 else ""
    return HourlyCost(listing.usd_per_hour(nodes), listing.listed, terms)


def machines_text(p: Metrics) -> str:
    """Describe the machines of a run: ``2 x 8 H100 SXM, InfiniBand NDR between nodes``."""
    on = _cluster(p)
    nodes = int(on.get("num_nodes", 1))
    text = f"{nodes_text(str(on.get('devices_per_node', 1)), nodes)} {_device_name(p)}"
    network = on.get("network")
    return f"{text}, {clean(network)} between nodes" if nodes > 1 and network else text


def _reason_blocks(p: Metrics) -> Iterator[Block]:
    yield Pair("strategy", strategy_text(p.strategy))
    uses: Mapping[str, float] = getattr(p, "memory", {})
    if uses:
        yield GAP
        yield heading("Memory of a device:")
        yield from (Bar(name, used / p.memory_bytes, (memory(used),), style="work") for name, used in uses.items() if used)
    listing, _ = _listing(p)
    yield GAP
    yield heading("It rests on:")
    yield from map(item, p.assumptions)
    if listing:
        yield item(f"{listing}.")


def _breakdown(run: Metrics) -> Iterator[Block]:
    """Return bars of a step's time: parts that add up to it, then the resources of the exchange. None if all is compute."""
    exposed: Mapping[str, float] = getattr(run, "exposed", {})  # of a prediction
    bubble = exposed.get("pipeline bubble", 0.0)
    lost: float = getattr(run, "overlap_loss_s", 0.0)
    rows: tuple[tuple[str, float, str, Style], ...] = (
        ("compute", run.compute_s - bubble, "#", "work"),
        ("bubble", bubble, "=", "wait"),
        ("exposed comm.", run.exposed_comm_s - lost, "=", "wait"),
        ("overlap loss", lost, "=", "wait"),
        ("network, busy", run.comm_s, "-", "faint"),
        ("codec, busy", run.codec_s, "-", "faint"),
    )
    if run.compute_s - bubble == run.step_time_s:
        return
    parts = ["compute", *(["bubble"] if bubble else []), *(["exposed communication"] if lost else [])]
    last = "overlap loss" if lost else "exposed communication"
    yield heading(f"The step: {', '.join(parts)} and {last} add up to it")
    for name, value, mark, style in rows:
        hidden = mark == "-" and value < 0.01 * run.step_time_s
        if (value == 0 and name != "compute") or hidden:
            continue
        # a busy time can exceed the step where several devices or streams work at once
        share = value / run.step_time_s if run.step_time_s > 0 else math.nan
        yield Bar(name, share, (seconds(value), percent(share)), mark, "·" if mark in "#=" else " ", style)


def _estimated(p: Metrics) -> Iterator[Block]:
    """Yield the range of predicted bytes whose number depends on the gradients."""
    from paceline.strategy.compression.formats import DEPENDS

    begins = DEPENDS.format(name=p.strategy["compression"])
    yield from (Paragraph(f"Predicted wire bytes are an estimate. {each}") for each in p.assumptions if each.startswith(begins))


def training_screen(prediction: Metrics, record: RunRecord, trust: TrustHistory | None) -> Screen:
    """Return the screen of a completed run: predicted and measured, its learning rate, batch and layers."""
    name, error = str(record.strategy["compression"]), step_time_error(prediction, record)[0]
    measured = f"{seconds(record.step_time_s)} a step measured, the prediction is off by {percent(error, signed=True)}"
    return Screen(
        title=f"{run_title(record)}, predicted and measured",
        answer=(
            *comparison({name: prediction}, {name: record}),
            *_estimated(prediction),
            GAP,
            *map(Paragraph, sentences(record, trust)),
        ),
        brief=f"{run_title(record)}: {measured}; accuracy {percent(accuracy_of(record))}",
        why=(
            Pair("strategy", strategy_text(record.strategy)),
            GAP,
            heading("The prediction rests on:"),
            *map(item, prediction.assumptions),
        ),
        why_holds=f"the whole strategy, {count(len(prediction.assumptions), 'assumption')} of the prediction",
    )
