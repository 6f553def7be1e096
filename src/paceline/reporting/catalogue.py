"""Devices, links and layer tables as text of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

from paceline.hardware import Device, Fact, Link
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


def hardware_text(devices: Iterable[Device], links: Iterable[Link]) -> str:
    """Two tables: every device with its headline numbers, every link."""
    lines = [f"{'device':<22}{'fp32':>8}{'16 bit':>8}  {'memory':>9}{'bandwidth':>11}  link", f"{'':<22}{'TFLOP/s dense':>16}"]
    for d in devices:
        half = d.peak_flops.get("bf16") or d.peak_flops.get("fp16")
        peaks = "".join(f"{fact.value / 1e12:>8.4g}" if fact else f"{'-':>8}" for fact in (d.peak_flops.get("fp32"), half))
        memory, rate = format_memory(d.memory.value), format_byte_rate(d.memory_bandwidth.value)
        lines.append(f"{d.name:<22}{peaks}  {memory:>9}{rate:>11}  {d.link}"[:WIDTH])
    lines += ["", f"{'link':<30}{'one direction':>16}{'latency':>12}"]
    lines += [f"{x.name:<30}{format_bandwidth(x.bandwidth.value):>16}{format_seconds(x.latency.value):>12}" for x in links]
    return "\n".join([*lines, "", "Sources of every number: paceline hardware show NAME"])


def device_text(device: Device) -> str:
    """Every number of a device with its source."""
    facts: list[tuple[str, Fact, str]] = [
        *((f"peak {p}, dense", f, format_flops(f.value)) for p, f in device.peak_flops.items()),
        *((f"matmul {p}, measured", f, format_flops(f.value)) for p, f in device.matmul_flops.items()),
        ("memory", device.memory, format_memory(device.memory.value)),
        ("memory bandwidth", device.memory_bandwidth, format_byte_rate(device.memory_bandwidth.value)),
    ]
    head = [f"{device.name} ({device.kind})", *wrap(device.note, WIDTH), f"link inside a node: {device.link}", ""]
    return "\n".join([*head, *_facts(facts)])


def link_text(link: Link) -> str:
    """Every number of a link with its source."""
    facts = [
        ("bandwidth, one direction", link.bandwidth, format_bandwidth(link.bandwidth.value)),
        ("latency", link.latency, format_seconds(link.latency.value)),
    ]
    return "\n".join([f"{link.name} ({link.kind})", *wrap(link.note, WIDTH), "", *_facts(facts)])


def _facts(facts: Iterable[tuple[str, Fact, str]]) -> Iterator[str]:
    for name, fact, text in facts:
        yield f"{name:<26}{text:>16}"
        yield from wrap(f"{fact.source}; read {fact.date}", WIDTH, initial_indent="    ", subsequent_indent="    ")


def workloads_text(workloads: Iterable[Workload]) -> str:
    """One line for each network."""
    lines = [f"{'workload':<18}{'parameters':>12}{'FLOPs forward':>15}{'activations':>14}  one sample"]
    for w in workloads:
        activations = format_bytes(w.activation_bytes)
        lines.append(
            f"{w.name:<18}{format_count(w.num_parameters):>12}{format_count(w.flops_forward):>15}{activations:>14}  {w.sample}"[
                :WIDTH
            ]
        )
    return "\n".join([*lines, "", "FLOPs count a multiply-add as two; activations: fp32 bytes kept for one sample"])


def workload_text(workload: Workload) -> str:
    """The layer table, the order of the gradients, coverage, and what TernGrad's rule keeps dense."""
    w = workload
    owned: dict[int, int] = {}
    for p in w.parameters:
        owned[p.layer] = owned.get(p.layer, 0) + p.size
    lines = [
        f"{w.name}: {w.num_parameters:,} parameters, {format_count(w.flops_forward)}FLOP forward, "
        f"{format_count(w.flops_per_sample)}FLOP forward and backward"
        .replace(" FLOP", " FLOP"),
        f"one sample: {w.sample}, {format_bytes(w.input_bytes)}; activations kept: {format_bytes(w.activation_bytes)} at fp32",
        f"source: {w.source}",
        "",
        f"{'layer':<30}{'kind':<14}{'parameters':>11}{'forward':>12}{'backward':>12}",
    ]  # fmt: skip
    for index, layer in enumerate(w.layers):
        work = f"{format_count(layer.flops_forward):>12}{format_count(layer.flops_backward):>12}"
        lines.append(f"{layer.name[-29:]:<30}{layer.kind[:13]:<14}{owned.get(index, 0):>11,}{work}"[:WIDTH])
    first = ", ".join(p.name for p in w.ready_order[:4])
    lines += ["", *wrap(f"gradients become ready in this order: {first}{', ...' if len(w.parameters) > 4 else ''}", WIDTH)]
    lines += [*wrap(_coverage(w), WIDTH), ""]
    terngrad = COMPRESSIONS["terngrad"]
    dense = terngrad.dense(w.parameters)
    lines += wrap(f"TernGrad keeps {terngrad.rule}; {len(dense)} of {len(w.parameters)} tensors here:", WIDTH)
    shown = list(dense.items())[:12]
    lines += [f"  {name}: {reason}"[:WIDTH] for name, reason in shown]
    if len(dense) > len(shown):
        lines.append(f"  and {len(dense) - len(shown)} more")
    return "\n".join(lines)


def _coverage(w: Workload) -> str:
    if not w.coverage.unknown:
        return f"coverage: the cost of all {w.coverage.ops} operations is known"
    unknown = ", ".join(f"{name} ({calls}x)" for name, calls in w.coverage.unknown.items())
    return f"coverage: {w.coverage.share:.0%} of {w.coverage.ops} operations; cost unknown and not counted: {unknown}"
