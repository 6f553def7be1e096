"""Screens of devices, links and layer tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from paceline.hardware import Device, Fact, Instance, Link
from paceline.hardware.device_rows import RECALLED
from paceline.hardware.prices import Price, dollars_text, listings
from paceline.reporting.text.screen import GAP, Block, Pair, Paragraph, Screen, Table, heading, item
from paceline.reporting.values import count
from paceline.strategy import COMPRESSIONS
from paceline.units import (
    format_bandwidth,
    format_byte_rate,
    format_bytes,
    format_count,
    format_flops,
    format_memory,
    format_seconds,
)
from paceline.workload import Workload
from paceline.workload.hub.kept import Kept

_NONE: Mapping[str, Kept] = MappingProxyType({})
DENSE_SHOWN = 12
"""Tensors that stay dense by name; the others are counted."""
_MARK = "*"
_COLUMNS = "workload", "parameters", "FLOPs forward", "activations", "one sample"
Facts = list[tuple[str, Fact, str]]


def hardware_screen(devices: Iterable[Device], links: Iterable[Link], instances: Iterable[Instance] = ()) -> Screen:
    """Return tables of all devices with their main numbers, all links and all instances. Recalled numbers have a mark."""
    devices, links, rented = list(devices), list(links), list(instances)
    sourced: list[Sequence[Fact | Instance]] = [*map(_facts_of, devices), *map(_link_facts, links), rented]
    counted = [count(len(x), noun) for x, noun in ((devices, "device"), (links, "link"), (rented, "instance")) if x]
    return Screen(
        title=", ".join(counted),
        answer=(
            _device_table(devices),
            GAP,
            Table(("link", "one direction", "latency"), [_link_row(x) for x in links]),
            GAP,
            *([_instance_table(rented)] if rented else []),
            GAP,
            *([Paragraph(f"{_MARK} {RECALLED} on the page of its source", "faint")] if any(map(_recalled, sourced)) else []),
            Paragraph("TFLOP/s of dense products. Sources and prices of one: paceline hardware show NAME"),
        ),
        brief=", ".join(counted),
        why=(heading("Sources:"), *_sources(devices, links, rented)),
        why_holds="the source of every number",
    )


def _device_table(devices: Iterable[Device]) -> Table:
    rows = []
    for d in devices:
        peaks = [d.peak_flops.get("fp32"), d.peak_flops.get("bf16") or d.peak_flops.get("fp16")]
        rates = [f"{fact.value / 1e12:.4g}" if fact else "-" for fact in peaks]
        memory = format_memory(d.memory.value), format_byte_rate(d.memory_bandwidth.value)
        rows.append((_marked(d.name, _facts_of(d)), *rates, *memory, d.link))
    return Table(("device", "fp32", "16 bit", "memory", "bandwidth", "link inside a node"), rows, frozenset({0, 5}))


def _instance_table(rented: Iterable[Instance]) -> Table:
    rows = [(_marked(x.name, (x,)), f"{x.devices} x {x.device}", x.network or "none known") for x in rented]
    return Table(("instance", "a node", "network between nodes"), rows, frozenset({0, 1, 2}))


def _link_row(link: Link) -> tuple[str, str, str]:
    rate, latency = format_bandwidth(link.bandwidth.value), format_seconds(link.latency.value)
    return _marked(link.name, _link_facts(link)), rate, latency


def _sources(devices: Iterable[Device], links: Iterable[Link], rented: Iterable[Instance]) -> Iterator[Block]:
    """Return each source once, with the names of the entries that it supports."""
    named: dict[str, list[str]] = {}
    whose: list[tuple[str, Iterable[Fact | Instance]]] = [(d.name, _facts_of(d)) for d in devices]
    whose += [(x.name, _link_facts(x)) for x in links]
    whose += [(x.name, (x,)) for x in rented]
    for name, sourced in whose:
        for text in dict.fromkeys(_dated(fact) for fact in sourced):
            named.setdefault(text, []).append(name)
    yield from (item(f"{', '.join(names)}: {text}") for text, names in named.items())


def device_screen(device: Device) -> Screen:
    """Return a screen with every number of a device, and its sources behind ``--why``."""
    facts: Facts = [
        *((f"peak {p}, dense", f, format_flops(f.value)) for p, f in device.peak_flops.items()),
        *((f"matmul {p}, measured", f, format_flops(f.value)) for p, f in device.matmul_flops.items()),
        ("memory", device.memory, format_memory(device.memory.value)),
        ("memory bandwidth", device.memory_bandwidth, format_byte_rate(device.memory_bandwidth.value)),
        *(("units", f, f"{f.value:g}") for f in (device.units,) if f),
        *(("fp32 lanes of a unit", f, f"{f.value:g}") for f in (device.lanes,) if f),
        *(("issued in a cycle", f, f"{f.value:g}") for f in (device.issued,) if f),
        *(("power limit", f, f"{f.value:g} W") for f in (device.power,) if f),
    ]
    prices = listings(device.name)
    answer: list[Block] = [
        *([Paragraph(device.note)] if device.note else []),
        Pair("link inside a node", device.link),
        *(Pair(name, text) for name, _, text in facts),
        *(Pair("price", _price(x)) for x in prices),
    ]
    peak, memory = facts[0], format_memory(device.memory.value)
    return Screen(
        title=f"{device.name} ({device.kind})",
        answer=tuple(answer),
        brief=f"{device.name}: {peak[0]}, {peak[2]}; {memory}, {format_byte_rate(device.memory_bandwidth.value)}",
        why=(*_reason_blocks(facts), *(item(f"price: {listing}") for listing in prices)),
        why_holds="the source of every number",
    )


def _price(listing: Price) -> str:
    """Describe a listing: dollars of a device and hour, also of spot, the provider and the age."""
    spot = listing.spot_usd_per_device_hour
    reclaimable = f", spot {dollars_text(spot)}" if spot else ""
    offer = "; a marketplace's offer" if listing.market else ""
    return f"{dollars_text(listing.usd_per_device_hour)} an hour{reclaimable} ({listing.listed}{offer})"


def instance_screen(instance: Instance) -> Screen:
    """Return a screen with the contents of an instance's node, and their source behind ``--why``."""
    node = f"{instance.devices} x {instance.device}"
    network = instance.network or "unknown: name one where nodes are joined"
    return Screen(
        title=f"{instance.name} ({instance.provider})",
        answer=(
            *([Paragraph(instance.note)] if instance.note else []),
            Pair("a node", node),
            Pair("network between nodes", network),
            Paragraph(f"More of the device: paceline hardware show '{instance.device}'"),
        ),
        brief=f"{instance.name}: {node}; network between nodes: {network}",
        why=(heading("Source:"), item(_dated(instance))),
        why_holds="its source",
    )


def link_screen(link: Link) -> Screen:
    """Return a screen with every number of a link, and its sources behind ``--why``."""
    facts: Facts = [
        ("bandwidth, one direction", link.bandwidth, format_bandwidth(link.bandwidth.value)),
        ("latency", link.latency, format_seconds(link.latency.value)),
    ]
    return Screen(
        title=f"{link.name} ({link.kind})",
        answer=(*([Paragraph(link.note)] if link.note else []), *(Pair(name, text) for name, _, text in facts)),
        brief=f"{link.name}: {facts[0][2]} in one direction, latency {facts[1][2]}",
        why=tuple(_reason_blocks(facts)),
        why_holds="the source of every number",
    )


def machine_screen(device: Device, network: Link) -> Screen:
    """Return a screen of a measured machine: its device and the link between its workers."""
    of_device, of_link = device_screen(device), link_screen(network)
    return Screen(
        title=of_device.title,
        answer=(*of_device.answer, GAP, heading(of_link.title), *of_link.answer),
        brief=f"{of_device.brief}; {of_link.brief}",
        why=(*of_device.why, *of_link.why),
        why_holds=of_device.why_holds,
    )


def _facts_of(device: Device) -> tuple[Fact, ...]:
    """Return the facts that the list shows."""
    return (*device.peak_flops.values(), device.memory, device.memory_bandwidth)


def _link_facts(link: Link) -> tuple[Fact, ...]:
    return (link.bandwidth, link.latency)


def _recalled(sourced: Iterable[Fact | Instance]) -> bool:
    """Return whether any of the facts was recalled without a check."""
    return any(RECALLED in fact.source for fact in sourced)


def _marked(name: str, sourced: Iterable[Fact | Instance]) -> str:
    """Return the name, with a mark if any of these facts was recalled."""
    return f"{name}{_MARK}" if _recalled(sourced) else name


def _dated(sourced: Fact | Instance) -> str:
    """Return the source of a fact with the date of its reading, or with a note that it was recalled."""
    return f"{sourced.source}; {'noted' if RECALLED in sourced.source else 'read'} {sourced.date}"


def _reason_blocks(facts: Facts) -> Iterator[Block]:
    yield heading("Sources:")
    yield from (item(f"{name}, {text}: {_dated(fact)}") for name, fact, text in facts)


def workloads_screen(workloads: Iterable[Workload], models: Mapping[str, Kept] = _NONE, *, listed: bool = True) -> Screen:
    """Return a screen with one line for each network, and the sources behind ``--why``.

    Args:
        models: kept models of transformers and diffusers by name.
        listed: one line for each of them too; else how many each group has.
    """
    every = list(workloads)
    rows = [
        (
            w.name,
            format_count(w.num_parameters) + ("" if w.tables is None else _MARK),
            format_count(w.flops_forward),
            format_bytes(w.activation_bytes),
            w.sample,
        )
        for w in every
    ]
    tables = [f"{w.name} {format_count(w.tables.elements)}" for w in every if w.tables is not None]
    notes = ["FLOPs count a multiply-add as two; activations: fp32 bytes kept for one sample."]
    sizes = Counter(kept.group for kept in models.values())
    further = [(name, format_count(kept.parameters), kept.sample) for name, kept in models.items()] if listed else []
    if models and not listed:
        each = ", ".join(f"{group} ({number})" for group, number in sorted(sizes.items()))
        notes.append(f"{len(models)} more of transformers and diffusers, by --group: {each}.")
    if tables:
        notes.append(f"{_MARK} and numbers in embedding tables: {', '.join(tables)}.")
    shown: list[Block] = [Table(_COLUMNS, rows, frozenset({0, 4})), GAP] if rows else []
    shown += [Table(("model", "parameters", "one sample"), further, frozenset({0, 2})), GAP] if further else []
    return Screen(
        title=count(len(rows) + len(further), "network"),
        answer=(
            *shown,
            *map(Paragraph, notes),
        ),
        brief=f"{count(len(every), 'network')}: {', '.join(w.name for w in every)}",
        why=(heading("Sources:"), *(item(f"{w.name}: {w.source}") for w in every)),
        why_holds="the source of every network",
    )


def workload_screen(workload: Workload) -> Screen:
    """Return a screen with the layer table and its coverage; for ``--why`` the gradients' order and TernGrad's dense ones."""
    w = workload
    return Screen(
        title=f"{w.name}: {_parameters(w)}; one sample: {w.sample}, {format_bytes(w.input_bytes)}",
        answer=(
            *([Pair("embedding tables", f"{w.tables.elements:,} numbers, divided among all devices")] if w.tables else []),
            Pair("FLOPs of one sample", f"{_flop(w.flops_forward)} forward, {_flop(w.flops_per_sample)} forward and backward"),
            Pair("activations", f"{format_bytes(w.activation_bytes)} kept for one sample at fp32"),
            Pair("coverage", _coverage(w), "warning" if w.coverage.unknown else ""),
            GAP,
            _layer_table(w),
        ),
        brief=f"{w.name}: {_parameters(w)}, {_flop(w.flops_per_sample)} forward and backward for one sample",
        why=tuple(_workload_why(w)),
        notes=w.notes,
        why_holds="its source, the order of the gradients, what TernGrad keeps dense",
    )


def _parameters(w: Workload) -> str:
    others = [f"{count:,} {what}" for count, what in ((w.frozen, "frozen"), (w.resident, "of frozen encoders")) if count]
    return f"{w.num_parameters:,} parameters" + (f" trained, {', '.join(others)}" if others else "")


def _layer_table(w: Workload) -> Table:
    parameters_of_layer: dict[int, int] = {}
    for p in w.parameters:
        parameters_of_layer[p.layer] = parameters_of_layer.get(p.layer, 0) + p.size
    rows = [
        (
            layer.name,
            layer.kind,
            f"{parameters_of_layer.get(index, 0):,}",
            format_count(layer.flops_forward),
            format_count(layer.flops_backward),
        )
        for index, layer in enumerate(w.layers)
    ]
    return Table(("layer", "kind", "parameters", "FLOPs forward", "backward"), rows, frozenset({0, 1}))


def _workload_why(w: Workload) -> Iterator[Block]:
    yield Paragraph(f"Source: {w.source}")
    first = ", ".join(p.name for p in w.ready_order[:4])
    yield Paragraph(f"Gradients become ready in this order: {first}{', ...' if len(w.parameters) > 4 else ''}")
    terngrad = COMPRESSIONS["terngrad"]
    dense = terngrad.dense(w.parameters)
    yield Paragraph(f"TernGrad keeps {terngrad.rule}; {len(dense)} of {len(w.parameters)} tensors here:")
    yield from (item(f"{name}: {reason}") for name, reason in list(dense.items())[:DENSE_SHOWN])
    if len(dense) > DENSE_SHOWN:
        yield item(f"and {len(dense) - DENSE_SHOWN} more")


def _flop(count: float) -> str:
    """Format FLOPs: ``4.59 MFLOP``."""
    return format_flops(count).removesuffix("/s")


def _coverage(w: Workload) -> str:
    if not w.coverage.unknown:
        return f"the cost of all {w.coverage.ops} operations is known"
    unknown = ", ".join(f"{name} ({calls}x)" for name, calls in w.coverage.unknown.items())
    return f"{w.coverage.share:.0%} of {w.coverage.ops} operations; cost unknown and not counted: {unknown}"
