"""Assumptions of a prediction, in plain sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from paceline.calibration import attention
from paceline.calibration.accelerators import family, on_device
from paceline.calibration.calibration import Calibration
from paceline.calibration.constants import Efficiency
from paceline.calibration.product_curves import has_curve
from paceline.calibration.product_curves import source as products_source
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.hardware.precision import RECIPES, WIDE
from paceline.memory_timeline import COMMUNICATORS, CONTEXT
from paceline.prediction.answer.division_assumptions import division_assumptions
from paceline.prediction.answer.exchange_assumptions import exchange_assumptions, local_accuracy, residual_assumptions
from paceline.prediction.answer.held_out_error import HeldOut
from paceline.prediction.answer.offload_assumptions import offload_assumptions
from paceline.prediction.answer.result import Assumption
from paceline.prediction.learning.convergence import accuracy_notes
from paceline.prediction.passes.compute import curve_of
from paceline.prediction.passes.convolutions import is_channels_last
from paceline.prediction.passes.host import host_launches, host_seconds
from paceline.prediction.passes.products import product_seconds
from paceline.prediction.step.costs import slowest
from paceline.prediction.step.framework_memory import fragments_share
from paceline.prediction.step.memory import memory_range, numbers_of
from paceline.prediction.step.step_inputs import StepInputs
from paceline.prediction.step.step_model import StepModel
from paceline.strategy.memory_format import CHANNELS_LAST, CONTIGUOUS
from paceline.strategy.strategy import Strategy
from paceline.units import (
    format_byte_rate,
    format_flops,
    format_gib,
    format_memory,
    format_seconds,
)
from paceline.workload.table import Workload

_LARGE = 8192.0
"""Side of a large product."""


def assumptions(
    model: StepModel, inputs: StepInputs, memory: Mapping[str, float], missed: HeldOut | None = None
) -> tuple[Assumption, ...]:
    """Return every assumption behind a prediction.

    Args:
        memory: bytes by purpose on one device.
        missed: the held-out error of such predictions.
    """
    calibration, overlap, efficiency = model.calibration, model.overlap, model.constants
    workload, cluster, strategy = inputs.workload, inputs.cluster, inputs.strategy
    exchange, several = strategy.gradient_exchange, strategy.world_size > 1
    local = several and strategy.sync_every > 1
    notes = accuracy_notes(exchange.compression.name, exchange.options) if several and not local else ()
    return (
        *_free(model.free),
        *_fit(cluster, memory),
        *(Assumption("workload", note) for note in workload.notes),
        *_coverage(workload),
        *(_calibrated(strategy, calibration) if calibration else _catalogue(cluster, strategy, efficiency)),
        *_attention(workload, cluster, strategy.precision, efficiency),
        *_images(workload, strategy, efficiency),
        *(exchange_assumptions(cluster, strategy, calibration, overlap, efficiency) if several else ()),
        *(residual_assumptions(workload, cluster, strategy, efficiency) if several else ()),
        *(Assumption("accuracy", note) for note in notes),
        *(local_accuracy(workload, strategy) if local else ()),
        *division_assumptions(workload, strategy),
        *offload_assumptions(workload, cluster, strategy, efficiency),
        *_launched_experts(workload, cluster, strategy, efficiency),
        *(_stragglers(strategy, efficiency) if calibration is None else ()),
        *_input_pipeline(model.loader),
        *_unused(cluster),
        *_beyond_tensors(memory, fragments_share(strategy, efficiency.framework)),
        *_activations(workload, strategy),
        *_tables(workload, strategy),
        *((Assumption("held-out error", str(missed), f"{missed.date}, {missed.commit}"),) if missed else ()),
    )


def _free(resources: Collection[str]) -> Iterator[Assumption]:
    if resources:
        yield Assumption("free resource", f"Assumed to cost no time: {', '.join(sorted(resources))}.")


def _unused(cluster: Cluster) -> Iterator[Assumption]:
    if cluster.num_nodes == 1 and cluster.network != cluster.intra_link:
        yield Assumption("unused", f"{cluster.network.name} is not used: there is one node.")


def _beyond_tensors(memory: Mapping[str, float], fragments: float) -> Iterator[Assumption]:
    """Yield sentences on the memory that no tensor of the training holds."""
    context, communicators = memory.get(CONTEXT, 0.0), memory.get(COMMUNICATORS, 0.0)
    if context and fragments:
        about = "Guo et al. 2024, GMLake, arXiv:2401.08156"
        yield Assumption("memory", f"Free pieces take {fragments:.0%} of what a sharded step allocates.", about)
    if context:
        also = f", the buffers of communicators {format_memory(communicators)}" if communicators else ""
        yield Assumption(
            "memory",
            f"The runtime with its kernels takes {format_memory(context)} of memory{also}.",
            "prediction/step/runtime_memory.toml",
        )
    else:
        yield Assumption("memory", "The framework's own memory and workspaces are not counted.")


def _launched_experts(workload: Workload, cluster: Cluster, strategy: Strategy, e: Efficiency) -> Iterator[Assumption]:
    """Yield a sentence on experts that tuned software launches from the host."""
    host_s = host_seconds(cluster.device, e) if e.level == "tuned" else 0.0
    if host_s and host_launches(workload, e, cluster.device, strategy.precision).any():
        yield Assumption(
            "parallelism",
            f"Graphs hold no experts that drop no token: the host launches their blocks, each expert's products apart, "
            f"{format_seconds(host_s)} a kernel. Each of these blocks waits for its host.",
            "Megatron-Core, transformer/moe/README.md; Megatron-Bridge, perf_recipes",
        )


def _stragglers(strategy: Strategy, e: Efficiency) -> Iterator[Assumption]:
    if strategy.world_size > 1 and e.straggler_spread:
        yield Assumption(
            "stragglers",
            f"Workers' compute times vary by {e.straggler_spread:.1%}. A step waits for the slowest of "
            f"{strategy.world_size}, {slowest(strategy.world_size, e) - 1:.1%} above the mean.",
        )


def _input_pipeline(loader_samples_per_s: float) -> Iterator[Assumption]:
    if loader_samples_per_s:
        text = f"The input pipeline delivers {loader_samples_per_s:.4g} samples/s to all workers together while the step runs."
    else:
        text = "The input pipeline is assumed to be fast enough: its speed is unknown."
    yield Assumption("input pipeline", text)


def _fit(cluster: Cluster, sizes: Mapping[str, float]) -> Iterator[Assumption]:
    memory, needed = cluster.device.memory, sum(sizes.values())
    least, most = memory_range(sizes, cluster.device)
    if needed > memory.value:
        yield Assumption(
            "fit",
            f"Does not fit: the step needs {format_memory(needed)}, {cluster.device.name} has {format_memory(memory.value)}: "
            f"{format_gib(needed - memory.value)} are missing. The time assumes a device with enough memory.",
            memory.source,
        )
    if least <= memory.value < most:
        yield Assumption(
            "fit",
            f"May {'fit' if needed > memory.value else 'not fit'}: by fragmentation it is "
            f"{format_memory(least)} to {format_memory(most)} of the {format_memory(memory.value)} of {cluster.device.name}.",
            "Guo et al. 2024, GMLake, arXiv:2401.08156",
        )


def _activations(workload: Workload, strategy: Strategy) -> Iterator[Assumption]:
    if numbers_of(strategy) != "fp32" and not workload.counts_half:
        yield Assumption(
            "memory",
            "The activations of the layers at 16 bits are taken to be half of those at fp32, a low estimate.",
        )


def _tables(workload: Workload, strategy: Strategy) -> Iterator[Assumption]:
    if workload.tables is None:
        return
    state = round(workload.tables.state * workload.tables.elements)
    yield Assumption(
        "optimizer",
        f"Rows of embedding tables are updated by {workload.tables.optimizer}, as published, which keeps "
        f"{f'{state:,} numbers of' if state else 'no'} state. --optimizer is that of the other parameters.",
    )
    if strategy.world_size > 1:
        yield Assumption(
            "parallelism",
            "Embedding tables lie divided among all devices in equal parts. Nothing hides the all-to-alls of their vectors.",
        )


def _coverage(workload: Workload) -> Iterator[Assumption]:
    if workload.coverage.share < 1:
        names = ", ".join(f"{name} (x{calls})" for name, calls in sorted(workload.coverage.unknown.items()))
        yield Assumption(
            "coverage",
            f"FLOPs are known for {workload.coverage.share:.0%} of the operations. The time of the others is not counted: "
            f"{names}.",
        )


def _calibrated(strategy: Strategy, calibration: Calibration) -> Iterator[Assumption]:
    yield Assumption(
        "calibrated",
        f"Calibrated: {calibration.source}. The range is the spread of its repetitions, +-{calibration.spread:.0%}.",
        calibration.source,
    )
    if strategy.micro_batch_size != calibration.micro_batch_size:
        yield Assumption(
            "calibrated",
            f"Forward and backward grow in proportion to the micro batch: measured at {calibration.micro_batch_size}, "
            f"predicted at {strategy.micro_batch_size}.",
        )
    if strategy.world_size != calibration.world_size:
        yield Assumption(
            "calibrated",
            f"Exchange times follow the bytes that the busiest worker sends: measured with {calibration.world_size} workers, "
            f"predicted for {strategy.world_size}.",
        )


def _catalogue(cluster: Cluster, strategy: Strategy, e: Efficiency) -> Iterator[Assumption]:
    device, e = cluster.device, on_device(e, cluster.device)
    peak, measured = device.peak(strategy.precision), device.matmul_flops.get(strategy.precision)
    rate, kind = (measured, "measured matmul") if measured else (peak, "datasheet peak")
    yield Assumption("uncalibrated", "Not calibrated: nothing was measured on this machine.")
    yield Assumption(
        "device",
        f"{device.name}: {kind} {format_flops(rate.value)} at {strategy.precision} ({rate.source}), memory "
        f"{format_byte_rate(device.memory_bandwidth.value)} ({device.memory_bandwidth.source}).",
        rate.source,
    )
    if device.chip not in e.seen:
        yield Assumption(
            "device", f"The constants include no measurement of {device.name}: only datasheet numbers, so the range is wider."
        )
    fused = f" Compiled: {e.kept_share:.0%} of element-wise bytes and launches stay." if e.kept_calls < 1 else ""
    framework = e.framework
    constants = "" if framework.plain else f" It takes the constants of {e.level} software where it states nothing else."
    yield Assumption("constants", f"Framework: {framework}, {framework.title}.{constants}{fused}", "; ".join(framework.sources))
    if framework.examples:
        values = ", ".join(f"{name} {value}" for name, value in framework.examples.items())
        yield Assumption("constants", f"Its examples state {values}: taken where a question on sequences leaves them open.")
    for sentence in framework.about:
        yield Assumption("constants", sentence)
    yield Assumption(
        "constants",
        f"Layers follow a roofline. They reach {e.memory_share:.0%} of that memory bandwidth. Large products reach "
        f"{e.vector_share:.0%} of the matmul rate on ordinary cores and {e.matrix_share:.0%} on matrix units; shapes that "
        f"leave units idle reach less. A kernel launch takes {format_seconds(e.launch_s[device.kind])}. Activations move in "
        f"{strategy.precision}.",
    )
    if own := family(device):
        lazy = ", and the host records every operation of ordinary software" if own.lazy else ""
        yield Assumption("constants", f"{device.name} takes constants of {own.name}{lazy}.", own.source)
    effect = e.device_effects.get(device.board, 1.0)
    if abs(effect - 1) >= 0.005:
        yield Assumption(
            "constants",
            f"Layers and optimizer take {effect:.2f} times as long on {device.name}: published steps of several sources took "
            "so much more or less than other devices let expect.",
            "benchmarks/fit_prediction.py",
        )
    yield from _products(device, strategy.precision, e)
    if recipe := RECIPES.get(strategy.precision):
        name = strategy.precision
        yield Assumption(
            "device",
            f"{name}: {recipe.title}. Products of layers take such operands at the rate of {recipe.peak}. Convolutions, "
            f"attention, the logits, activations and the rest are {WIDE}. Casts are separate kernels. No measurement in {name} "
            f"is in the constants. The accuracy of {name} is not known here.",
        )


def _images(workload: Workload, strategy: Strategy, e: Efficiency) -> Iterator[Assumption]:
    """Yield a sentence on the memory format that was named, if the network has convolutions."""
    if strategy.memory_format and any(o.kind == "conv" for layer in workload.layers for o in layer.operations):
        runs = CHANNELS_LAST if is_channels_last(workload, strategy.memory_format, e.level) else CONTIGUOUS
        why = "" if runs == strategy.memory_format else ", the format that the network's normalisations return"
        yield Assumption("device", f"Convolutions run in {runs}{why}.", "PyTorch, Channels Last Memory Format")


def _products(device: Device, precision: str, e: Efficiency) -> Iterator[Assumption]:
    """Yield a sentence on the measured products that products on matrix units follow, or that none were measured."""
    if not has_curve(device, precision):
        yield Assumption(
            "device",
            f"No matrix products at {precision} were measured on {device.name} or a related chip: the roofline above holds.",
        )
        return
    curve = curve_of(device, precision, e)
    side = np.array([_LARGE])
    rate = float(2 * _LARGE**3 / product_seconds(curve, side, side, side)[0][0])
    text = (
        f"Products follow those measured on {curve.chip} by shape: {format_flops(rate)} at {precision} if {_LARGE:.0f} a side."
    )
    if curve.chip != device.name:
        text += f" {device.name} was not measured: these are scaled by its peak, units, bandwidth and power."
    yield Assumption("device", text, products_source())


def _attention(workload: Workload, cluster: Cluster, precision: str, e: Efficiency) -> Iterator[Assumption]:
    """Yield sentences on the attention kernel, if it was named or is not as fast as FlashAttention-2 on an A100."""
    if workload.attends and not workload.fuses_attention:
        yield Assumption("device", "Attention is not fused: products, mask and softmax write and read the scores in memory.")
        return
    share = attention.share(cluster.device, precision, e)
    if workload.attends and (share != 1 or e.attention_kernel):
        kernel, chosen = attention.running(cluster.device, precision, e), attention.chosen(e)
        named = " that was named" if e.attention_kernel else ""
        by = f", the choice of {chosen}{named}," if kernel != chosen else "," if not named else f", the kernel{named},"
        others = [x for x in attention.kernels_on(cluster.device, precision, e.year) if x not in (chosen, kernel)]
        yield Assumption(
            "device",
            f"Attention runs as {attention.title(kernel)}{by} which reaches {share:.2f} of the share of the best product that "
            f"FlashAttention-2 reaches on an A100. Also run there: {', '.join(others)}.",
            "Dao 2023, arXiv:2307.08691; Shah et al. 2024, arXiv:2407.08608, figure 5",
        )
