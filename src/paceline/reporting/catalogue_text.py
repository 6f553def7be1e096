"""Devices, links and layer tables as text of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

from paceline.hardware import Device, Fact, Instance, Link
from paceline.hardware.device_rows import RECALLED
from paceline.hardware.prices import listings
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

WIDTH = 80
_MARK = "*"


def hardware_text(devices: Iterable[Device], links: Iterable[Link], instances: Iterable[Instance] = ()) -> str:
    """Tables: every device with its headline numbers, every link, every instance. A mark says that a number is recalled."""
    lines = [
        f"{'':<19}{'TFLOP/s, dense':^17}{'':<22}inside a node",
        f"{'device':<19}{'fp32':>7}{'16 bit':>8}{'memory':>12}{'bandwidth':>10}  link",
    ]
    for d in devices:
        half = d.peak_flops.get("bf16") or d.peak_flops.get("fp16")
        peaks = "".join(
            f"{f'{fact.value / 1e12:.4g}' if fact else '-':>{width}}"
            for fact, width in ((d.peak_flops.get("fp32"), 7), (half, 8))
        )
        memory, rate = format_memory(d.memory.value), format_byte_rate(d.memory_bandwidth.value)
        name = _marked(d.name, (*d.peak_flops.values(), d.memory, d.memory_bandwidth))
        lines.append(_fit(f"{name:<19}{peaks}{memory:>12}{rate:>10}  {d.link}"))
    lines += ["", f"{'link':<30}{'one direction':>16}{'latency':>12}"]
    for x in links:
        rate, latency = format_bandwidth(x.bandwidth.value), format_seconds(x.latency.value)
        lines.append(f"{_marked(x.name, (x.bandwidth, x.latency)):<30}{rate:>16}{latency:>12}")
    rented = list(instances)
    lines += ["", f"{'instance':<37}a node; network between nodes"] if rented else []
    lines += [_fit(f"{_marked(x.name, (x,)):<37}{x.devices} x {x.device}; {x.network or 'none known'}") for x in rented]
    legend = [f"{_MARK} {RECALLED} on the page of its source"] if any(_MARK in line for line in lines) else []
    return "\n".join([*lines, "", *legend, "Sources of every number: paceline hardware show NAME"])


def device_text(device: Device) -> str:
    """Every number of a device with its source."""
    facts: list[tuple[str, Fact, str]] = [
        *((f"peak {p}, dense", f, format_flops(f.value)) for p, f in device.peak_flops.items()),
        *((f"matmul {p}, measured", f, format_flops(f.value)) for p, f in device.matmul_flops.items()),
        ("memory", device.memory, format_memory(device.memory.value)),
        ("memory bandwidth", device.memory_bandwidth, format_byte_rate(device.memory_bandwidth.value)),
        *(("units", f, f"{f.value:g}") for f in (device.units,) if f),
        *(("fp32 lanes of a unit", f, f"{f.value:g}") for f in (device.lanes,) if f),
        *(("issued in a cycle", f, f"{f.value:g}") for f in (device.issued,) if f),
        *(("power limit", f, f"{f.value:g} W") for f in (device.power,) if f),
    ]
    head = [f"{device.name} ({device.kind})", *_wrap(device.note), f"link inside a node: {device.link}", ""]
    prices = [line for listing in listings(device.name) for line in _wrap(f"price: {listing}")]
    return "\n".join([*head, *_facts(facts), *prices])


def instance_text(instance: Instance) -> str:
    """What a node of an instance has, and where that is from."""
    network = instance.network or "unknown: name one where nodes are joined"
    return "\n".join(
        [
            f"{instance.name} ({instance.provider})",
            *_wrap(instance.note),
            f"a node: {instance.devices} x {instance.device}",
            f"network between nodes: {network}",
            *_wrap(_dated(instance), "    "),
            f"more of the device: paceline hardware show '{instance.device}'",
        ]
    )


def link_text(link: Link) -> str:
    """Every number of a link with its source."""
    facts = [
        ("bandwidth, one direction", link.bandwidth, format_bandwidth(link.bandwidth.value)),
        ("latency", link.latency, format_seconds(link.latency.value)),
    ]
    return "\n".join([f"{link.name} ({link.kind})", *_wrap(link.note), "", *_facts(facts)])


def _marked(name: str, sourced: Iterable[Fact | Instance]) -> str:
    """The name, with a mark where one of these was recalled and not checked."""
    return f"{name}{_MARK}" if any(RECALLED in one.source for one in sourced) else name


def _dated(sourced: Fact | Instance) -> str:
    """Its source, and when that was read, or noted where it was recalled."""
    return f"{sourced.source}; {'noted' if RECALLED in sourced.source else 'read'} {sourced.date}"


def _facts(facts: Iterable[tuple[str, Fact, str]]) -> Iterator[str]:
    for name, fact, text in facts:
        yield f"{name:<26}{text:>16}"
        yield from _wrap(_dated(fact), "    ")


def _wrap(text: str, indent: str = "") -> list[str]:
    """Lines of at most 80 columns. An address is kept whole where a line holds it."""
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _fit(line: str) -> str:
    """The line, or as much of it as fits, with a mark where it was cut."""
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def workloads_text(workloads: Iterable[Workload]) -> str:
    """One line for each network."""
    lines = [f"{'workload':<17}{'parameters':>10}{'FLOPs forward':>15}{'activations':>13}  one sample"]
    tables = []
    for w in workloads:
        activations = format_bytes(w.activation_bytes)
        mark = " " if w.tables is None else "*"
        counts = f"{format_count(w.num_parameters):>10}{mark}{format_count(w.flops_forward):>14}"
        lines.append(_fit(f"{w.name:<17}{counts}{activations:>13}  {w.sample}"))
        if w.tables is not None:
            tables.append(f"{w.name} {format_count(w.tables.elements)}")
    notes = ["FLOPs count a multiply-add as two; activations: fp32 bytes kept for one sample"]
    if tables:
        notes += _wrap(f"* and numbers in embedding tables: {', '.join(tables)}")
    return "\n".join([*lines, "", *notes])


def workload_text(workload: Workload) -> str:
    """The layer table, the order of the gradients, coverage, and what TernGrad's rule keeps dense."""
    w = workload
    parameters_of_layer: dict[int, int] = {}
    for p in w.parameters:
        parameters_of_layer[p.layer] = parameters_of_layer.get(p.layer, 0) + p.size
    lines = [
        *_wrap(f"{w.name}: {w.num_parameters:,} parameters; one sample: {w.sample}, {format_bytes(w.input_bytes)}"),
        *(_wrap(f"{w.tables.elements:,} numbers in embedding tables, divided among all devices") if w.tables else ()),
        *_wrap(f"{_flop(w.flops_forward)} forward, {_flop(w.flops_per_sample)} forward and backward, for one sample"),
        *_wrap(f"{format_bytes(w.activation_bytes)} of activations kept for one sample at fp32"),
        *_wrap(f"source: {w.source}"),
        "",
        f"{'':<56}{'FLOPs of one sample':>22}",
        f"{'layer':<30}{'kind':<14}{'parameters':>12}{'forward':>11}{'backward':>11}",
    ]
    for index, layer in enumerate(w.layers):
        name = layer.name if len(layer.name) < 30 else f"…{layer.name[-28:]}"
        work = f"{format_count(layer.flops_forward):>11}{format_count(layer.flops_backward):>11}"
        lines.append(_fit(f"{name:<30}{layer.kind[:13]:<14}{parameters_of_layer.get(index, 0):>12,}{work}"))
    first = ", ".join(p.name for p in w.ready_order[:4])
    lines += ["", *_wrap(f"gradients become ready in this order: {first}{', ...' if len(w.parameters) > 4 else ''}")]
    lines += [*_wrap(_coverage(w)), ""]
    terngrad = COMPRESSIONS["terngrad"]
    dense = terngrad.dense(w.parameters)
    lines += _wrap(f"TernGrad keeps {terngrad.rule}; {len(dense)} of {len(w.parameters)} tensors here:")
    shown = list(dense.items())[:12]
    lines += [_fit(f"  {name}: {reason}") for name, reason in shown]
    if len(dense) > len(shown):
        lines.append(f"  and {len(dense) - len(shown)} more")
    return "\n".join(lines)


def _flop(count: float) -> str:
    """``4.59 MFLOP``."""
    return format_flops(count).removesuffix("/s")


def _coverage(w: Workload) -> str:
    if not w.coverage.unknown:
        return f"coverage: the cost of all {w.coverage.ops} operations is known"
    unknown = ", ".join(f"{name} ({calls}x)" for name, calls in w.coverage.unknown.items())
    return f"coverage: {w.coverage.share:.0%} of {w.coverage.ops} operations; cost unknown and not counted: {unknown}"
