"""What a prediction rests on, in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.calibration.calibration import Calibration
from paceline.calibration.constants import HIGH, LOW, TYPICAL, Efficiency
from paceline.calibration.held_out_error import HeldOut
from paceline.hardware.cluster import Cluster
from paceline.prediction.convergence import accuracy_notes
from paceline.prediction.costs import slowest
from paceline.prediction.exchange_plan import blocks
from paceline.prediction.memory import reserve_bytes
from paceline.strategy.exchange import CHUNK_ELEMENTS
from paceline.strategy.formats import INCEPTIONN_BITS
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.strategy import Strategy
from paceline.units import (
    format_bandwidth,
    format_byte_rate,
    format_bytes,
    format_flops,
    format_gib,
    format_memory,
    format_seconds,
)
from paceline.workload.table import Workload

LEVELS = {
    "ordinary": "framework code as people write it",
    "tuned": "as for a benchmark: kernels queued ahead or replayed as graphs, element-wise work fused, fitting layouts",
}


def assumptions(
    workload: Workload,
    cluster: Cluster,
    strategy: Strategy,
    calibration: Calibration | None,
    needed: float,
    overlap: bool,
    loader_samples_per_s: float = 0.0,
    efficiency: Efficiency = TYPICAL,
    missed: HeldOut | None = None,
) -> tuple[str, ...]:
    """Every assumption behind a prediction. ``needed``: bytes of memory on one device."""
    return (
        *_fit(cluster, needed),
        *_coverage(workload),
        *(_measured(strategy, calibration) if calibration else _catalogue(cluster, strategy, efficiency)),
        *(_exchange(cluster, strategy, calibration, overlap, efficiency) if strategy.world_size > 1 else ()),
        *(
            accuracy_notes(strategy.gradient_exchange.compression, strategy.gradient_exchange.options)
            if strategy.world_size > 1
            else ()
        ),
        *_step(workload, strategy),
        *(_stragglers(strategy, efficiency) if calibration is None else ()),
        *_feed(loader_samples_per_s),
        *_unused(cluster),
        *_reserve(cluster),
        *((str(missed),) if missed else ()),
    )


def _unused(cluster: Cluster) -> Iterator[str]:
    if cluster.num_nodes == 1 and cluster.network != cluster.intra_link:
        yield f"{cluster.network.name} is not used: there is one node."


def _reserve(cluster: Cluster) -> Iterator[str]:
    """What is kept back of the memory."""
    kept = reserve_bytes(cluster.device)
    if kept:
        yield f"Of the memory {format_memory(kept)} are kept for the runtime, its libraries' workspaces and fragments."
    else:
        yield "Not counted: the framework's own memory and workspaces."


def _step(workload: Workload, strategy: Strategy) -> Iterator[str]:
    """Micro steps, what is shared out, what is run again."""
    mesh, level = strategy.parallelism, strategy.parallelism.shares
    if mesh.micro_batches > 1:
        when = "after each of them, which keeps the gradients shared out" if level.gradients else "after the last"
        yield f"{mesh.micro_batches} micro steps of {strategy.micro_batch_size} samples a worker; gradients travel {when}."
    if level.weights:
        yield (
            f"{mesh.sharding} as in FSDP: weights are gathered one unit ahead at the width of {strategy.precision}, "
            "gradients reduce-scattered likewise; a unit is a block, or blocks joined up to the bucket's size."
        )
    elif level.optimizer:
        yield f"{mesh.sharding} as ZeroRedundancyOptimizer: gradients are all-reduced, updated weights gathered as fp32."
    if workload.frozen:
        gathered = ", shared out; gathering them is not counted in the time" if level.weights else ""
        yield f"{workload.frozen:,} frozen weights at the width of {strategy.precision}{gathered}."
    one = OPTIMIZERS[strategy.optimizer]
    yield (
        f"Optimizer: {one.name}, {one.state_words} fp32 values of state a parameter. Where none is named it is adam for "
        "networks with attention and momentum for others; plan takes that of the recipe."
    )
    if strategy.parallelism.recompute:
        found = blocks(workload).names
        yield (
            f"{len(found)} blocks are run again in the backward pass and keep their inputs."
            if found
            else "Recomputation changes nothing: no layer's name says that it is part of a block."
        )


def _stragglers(strategy: Strategy, e: Efficiency) -> Iterator[str]:
    if strategy.world_size > 1 and e.straggler_spread:
        yield (
            f"Workers' compute times vary by {e.straggler_spread:.1%}; a step waits for the slowest of "
            f"{strategy.world_size}, {slowest(strategy.world_size, e) - 1:.1%} above the mean."
        )


def _feed(loader_samples_per_s: float) -> Iterator[str]:
    if loader_samples_per_s:
        yield f"The input pipeline delivers {loader_samples_per_s:.4g} samples/s to all workers together, beside the step."
    else:
        yield "The input pipeline is taken to keep up: how much it delivers is not known."


def _fit(cluster: Cluster, needed: float) -> Iterator[str]:
    available = cluster.device.memory.value
    if needed > available:
        yield (
            f"Does not fit: {format_memory(needed)} needed, {cluster.device.name} has {format_memory(available)}, "
            f"{format_gib(needed - available)} are missing; the time is what it would take if it fitted."
        )


def _coverage(workload: Workload) -> Iterator[str]:
    if workload.coverage.share < 1:
        names = ", ".join(f"{name} (x{calls})" for name, calls in sorted(workload.coverage.unknown.items()))
        yield (
            f"FLOPs are known for {workload.coverage.share:.0%} of the operations; the time of these is not counted: {names}."
        )


def _measured(strategy: Strategy, calibration: Calibration) -> Iterator[str]:
    yield f"Calibrated: {calibration.source}; the range is the spread of its repetitions, +-{calibration.spread:.0%}."
    if strategy.micro_batch_size != calibration.micro_batch_size:
        yield (
            f"Forward and backward grow in proportion to the micro batch: measured at {calibration.micro_batch_size}, "
            f"predicted at {strategy.micro_batch_size}."
        )
    if strategy.world_size != calibration.world_size:
        yield (
            f"Exchange times follow the bytes that the busiest worker sends: measured with {calibration.world_size} workers, "
            f"predicted for {strategy.world_size}."
        )


def _catalogue(cluster: Cluster, strategy: Strategy, e: Efficiency) -> Iterator[str]:
    device = cluster.device
    peak, measured = device.peak(strategy.precision), device.matmul_flops.get(strategy.precision)
    rate, kind = (measured, "measured matmul") if measured else (peak, "datasheet peak")
    yield (
        f"Not calibrated. {device.name}: {kind} {format_flops(rate.value)} at {strategy.precision} ({rate.source}), memory "
        f"{format_byte_rate(device.memory_bandwidth.value)} ({device.memory_bandwidth.source})."
    )
    if device.chip not in e.seen:
        yield f"No measurement of {device.name} went into the constants: datasheet numbers alone, and a wider range."
    yield f"Software: {e.level}, {LEVELS[e.level]}."
    yield (
        f"Layers by roofline: of that memory bandwidth {e.memory_share:.0%}, of the matmul rate "
        f"{e.vector_share:.0%} on ordinary cores and {e.matrix_share:.0%} on matrix units for big products, "
        "less for what fills the device badly, "
        f"{format_seconds(e.launch_s[device.kind])} to launch a kernel; "
        "activations move at the width of the precision."
    )
    if strategy.precision == "fp8":
        yield (
            "fp8: products of layers take fp8 operands at the fp8 rate; convolutions, attention, activations and all else "
            "are bf16; casts are kernels of their own. No measurement in fp8 went into the constants; what fp8 costs in "
            "accuracy is not known here."
        )


def _exchange(
    cluster: Cluster, strategy: Strategy, calibration: Calibration | None, overlap: bool, e: Efficiency
) -> Iterator[str]:
    x = strategy.gradient_exchange
    if calibration is None:
        links = {"inside a node": cluster.intra_link} if cluster.devices_per_node > 1 else {}
        if cluster.num_nodes > 1:
            links["between nodes, per node"] = cluster.network
        for where, link in links.items():
            tcp = " over TCP, of which one flow fills but a part" if link.carried and e.level == "ordinary" else ""
            had = f"{e.bandwidth(link) / link.bandwidth.value:.0%} are had{tcp}"
            yield (
                f"{link.name} {where}: {format_bandwidth(link.bandwidth.value)} in one direction ({link.bandwidth.source}), "
                f"of which {had}; latency {format_seconds(link.latency.value)}."
            )
        if cluster.device.kind != "cpu":
            yield "The engine's collectives take the fastest of NCCL's algorithms and protocols for their size."
        if x.compression != "dense" or x.exchange != "allreduce":
            yield from _codec(cluster, strategy, e)
    yield from _lengths(strategy)
    if x.exchange == "hierarchical":
        between = f"dense inside a node, {x.compression} between nodes; wire bytes count both"
        yield f"Nodes of {x.ranks_per_node} ranks: {between}."
    if x.exchange == "parameter_server":
        of = "one of the workers" if x.servers == 1 else f"{x.servers} of the workers, spread over the nodes"
        yield f"Parameters lie on {of}, which {'serves' if x.servers == 1 else 'serve'} beside the work."
    if not x.compress_pull:
        yield "Sums return as fp32: only the push is compressed."
    if overlap:
        lost = f"; of the time in which both work {e.overlap_penalty:.0%} are lost to each other"
        how = "the passes, one unit ahead" if strategy.parallelism.shares.weights else "the backward pass, bucket after bucket"
        yield f"The exchange overlaps {how}{lost if e.overlap_penalty else ''}."
    else:
        same = ": the same cores do both" if calibration else ""
        yield f"The exchange begins when the backward pass has ended{same}."


def _codec(cluster: Cluster, strategy: Strategy, e: Efficiency) -> Iterator[str]:
    """How fast the codec is, and what it waits for."""
    if cluster.device.kind == "cpu":
        rate = strategy.description.cpu_rate
        yield (
            f"The codec has {e.codec_cores} cores a rank (range {LOW.codec_cores} to {HIGH.codec_cores}); a core encodes "
            f"{format_byte_rate(rate.encode.value)} of fp32 and decodes {format_byte_rate(rate.decode.value)} "
            f"({rate.encode.source})."
        )
    else:
        yield "The codec runs beside the backward pass at memory bandwidth."
    if strategy.gradient_exchange.exchange != "allreduce":
        yield f"Codec and network work on chunks of {format_bytes(4 * CHUNK_ELEMENTS)} at once; the slower one sets the pace."


def _lengths(strategy: Strategy) -> Iterator[str]:
    """What is known of a payload whose length depends on the values."""
    fmt = strategy.description.format
    if fmt.spread is None:
        return
    name = strategy.gradient_exchange.compression
    taken = f"The payload of {name} depends on the gradients: {fmt.element_bits:.3g} bits an element are taken"
    least, most = INCEPTIONN_BITS[0], fmt.spread.most
    if fmt.spread.low == fmt.spread.high:
        yield f"{taken} ({fmt.spread.source}); the format can take {least:g} to {most:g}."
    else:
        yield (
            f"{taken}, {fmt.spread.low:.3g} to {fmt.spread.high:.3g} for the range ({fmt.spread.source}); the format can take "
            f"{least:g} to {most:g}. Give a measured one with --option ratio=R."
        )
