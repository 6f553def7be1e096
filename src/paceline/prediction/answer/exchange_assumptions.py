"""Assumptions about the exchange: links, codec, payload, residuals, cards, sums in the switch and local steps."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.calibration.calibration import Calibration
from paceline.calibration.constants import Efficiency
from paceline.hardware.catalogue import link
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Link
from paceline.hardware.nics import Nic
from paceline.hardware.switches import Aggregation
from paceline.prediction.answer.result import Assumption
from paceline.prediction.exchange.residual_memory import residual_bytes
from paceline.prediction.learning.local_loss import finding, finding_of, further_of
from paceline.strategy.codec_place import ON_HOST, fabric
from paceline.strategy.compression.card_frames import CARD_HEADER, HEADERS, PAYLOAD
from paceline.strategy.compression.formats import DEPENDS
from paceline.strategy.exchanges.ring import RING
from paceline.strategy.strategy import Strategy
from paceline.units import (
    format_bandwidth,
    format_byte_rate,
    format_bytes,
    format_memory,
    format_seconds,
)
from paceline.workload.table import Workload


def exchange_assumptions(
    cluster: Cluster, strategy: Strategy, calibration: Calibration | None, overlap: bool, e: Efficiency
) -> Iterator[Assumption]:
    """Yield sentences on the exchange: its links, codec, payload and overlap."""
    x = strategy.gradient_exchange
    if calibration is None:
        if cluster.devices_per_node > 1:
            yield _link(cluster.intra_link, "inside a node", e)
        if cluster.num_nodes > 1:
            yield _link(cluster.network, "between nodes, per node", e)
        if cluster.leaf_nodes:
            blocking = f"{cluster.leaf_nodes} nodes, oversubscribed {cluster.oversubscription:g} times"
            yield Assumption("exchange", f"Leaf switches have {blocking}; ranks lie leaf by leaf.")
        if not cluster.even:
            yield Assumption("exchange", f"Nodes of {cluster.node_text} devices: the busiest link of each kind sets the time.")
        if cluster.device.kind != "cpu":
            yield Assumption("exchange", "Each collective takes NCCL's fastest algorithm and protocol for its size.")
        if x.compression.compresses or not x.exchange.by_engine:
            yield from _codec(cluster, strategy, e)
        if cluster.num_nodes > 1:
            yield from _fabric(cluster, strategy, e)
    yield from _payload(strategy)
    if x.exchange.uses_nodes:
        between = f"dense inside a node, {x.compression} between nodes; wire bytes count both"
        yield Assumption("exchange", f"Nodes of {x.ranks_per_node} ranks: {between}.")
    if x.exchange.has_servers:
        owners = "One of the workers holds" if x.servers == 1 else f"{x.servers} of the workers, spread over the nodes, hold"
        serve = "serves them while it computes" if x.servers == 1 else "serve them while they compute"
        yield Assumption("exchange", f"{owners} the parameters and {serve}.")
    if not x.compress_pull:
        yield Assumption("exchange", f"Only the push is compressed: sums return as {'bf16' if x.dense_bits == 16 else 'fp32'}.")
    if x.dense_bits == 16:
        yield Assumption("exchange", "Uncompressed tensors travel as bf16.")
    if strategy.sync_every > 1:
        yield from _local_steps(strategy)
        yield _local_overlap(strategy, overlap)
    elif overlap:
        cost = f". Running both at once loses {e.overlap_penalty:.0%} of that time" if e.overlap_penalty else ""
        passes = (
            "forward and backward, one unit ahead"
            if strategy.parallelism.sharding.weights
            else "the backward pass, bucket by bucket"
        )
        yield Assumption("overlap", f"The exchange overlaps {passes}{cost}.")
    else:
        same = ": the same cores do both" if calibration else ""
        yield Assumption("overlap", f"The exchange begins after the backward pass{same}.")


def _link(link: Link, where: str, e: Efficiency) -> Assumption:
    why = ": TCP with few flows rarely fills the link" if link.carried and e.level == "ordinary" else ""
    host = ""
    if link.shared is not None:
        all_of = format_bandwidth(link.shared.value)
        host = f" Devices have no peer-to-peer: messages pass through the host's memory, all of a node together {all_of}."
    start = f", {format_seconds(link.start.value)} before the first message" if link.start else ""
    return Assumption(
        "links",
        f"{link.name} {where}: {format_bandwidth(link.bandwidth.value)} in one direction ({link.bandwidth.source}). "
        f"{e.bandwidth(link) / link.bandwidth.value:.0%} of it is reached{why}. Latency {format_seconds(link.latency.value)}"
        f"{start}.{host}",
        link.bandwidth.source,
    )


def _codec(cluster: Cluster, strategy: Strategy, e: Efficiency) -> Iterator[Assumption]:
    """Yield sentences on the speed of the codec, and on how it shares time with the network."""
    x = strategy.gradient_exchange
    if x.codec_at:
        pass  # see _fabric
    elif cluster.device.kind == "cpu":
        rate = strategy.description.cpu_rate
        yield Assumption(
            "codec",
            f"The codec has {e.codec_cores} cores a rank. A core encodes {format_byte_rate(rate.encode.value)} of fp32 and "
            f"decodes {format_byte_rate(rate.decode.value)} ({rate.encode.source}).",
            rate.encode.source,
        )
    else:
        yield Assumption("codec", "The codec runs during the backward pass at memory bandwidth.")
    if not x.exchange.by_engine:
        chunk = x.exchange.chunk_elements
        yield Assumption(
            "codec",
            f"Codec and network work at once on chunks of {format_bytes(4 * chunk)}. The slower one sets the pace.",
        )
        if cluster.device.kind == "cpu" and not x.codec_at:
            what = "Tensors that stay dense" if strategy.codes_in_place else "Gradients"
            yield Assumption("codec", f"{what} are copied into one buffer before they are sent, and sums back.")


def _payload(strategy: Strategy) -> Iterator[Assumption]:
    """Yield sentences on the payload of a compression whose length depends on the gradients."""
    fmt = strategy.description.format
    if fmt.spread is None:
        return
    name = strategy.gradient_exchange.compression
    taken = f"{DEPENDS.format(name=name)}: {fmt.element_bits:.3g} bits an element"
    least, most = fmt.spread.least, fmt.spread.most
    if fmt.spread.low == fmt.spread.high:
        text = f"{taken} ({fmt.spread.source}). The format allows {least:g} to {most:g}."
    else:
        text = (
            f"{taken}, {fmt.spread.low:.3g} to {fmt.spread.high:.3g} for the range ({fmt.spread.source}). The format allows "
            f"{least:g} to {most:g}. Give a measured ratio as the option ratio=R."
        )
    yield Assumption("payload", text, fmt.spread.source)


def _fabric(cluster: Cluster, strategy: Strategy, efficiency: Efficiency) -> Iterator[Assumption]:
    """Yield sentences on the card, the switch or the host of the exchange, and on named but unused ones."""
    x = strategy.gradient_exchange
    used = fabric(x, cluster)
    if used.nic is not None:
        yield from _card(used.nic, cluster, strategy, efficiency)
    elif cluster.nic is not None:
        yield Assumption(
            "unused", f"{cluster.nic.name} compresses nothing: the codec is not in the network card (codec_at nic)."
        )
    if used.aggregation is not None:
        yield from _switch(used.aggregation, strategy)
    elif cluster.aggregation is not None:
        yield Assumption("unused", f"{cluster.aggregation.name} adds nothing: the exchange is {x.exchange}, not switch.")
    if x.codec_at is ON_HOST:
        rate, host = strategy.description.cpu_rate, link(cluster.device.host_link)
        yield Assumption(
            "codec",
            f"The codec and the sums are on the host: gradients are copied there and sums back over {host.name} at "
            f"{format_byte_rate(efficiency.bandwidth(host))}, in turn with the codec. It has {efficiency.codec_cores} cores a "
            f"rank. A core encodes {format_byte_rate(rate.encode.value)} of fp32 and decodes "
            f"{format_byte_rate(rate.decode.value)} ({rate.encode.source}).",
            rate.encode.source,
        )


def residual_assumptions(
    workload: Workload, cluster: Cluster, strategy: Strategy, efficiency: Efficiency
) -> Iterator[Assumption]:
    """Yield sentences on the storage of residuals, unless it is fp32 on the codec's device."""
    x = strategy.gradient_exchange
    if x.residual_bits == 16:
        yield Assumption("codec", "Residuals are kept as bf16, rounded by chance; the codec works on fp32 copies of one group.")
    if x.residuals_at:
        over = link(cluster.device.host_link)
        rate = format_byte_rate(efficiency.bandwidth(over))
        groups = strategy.partition(workload.parameters, workload.ready_order)
        kept, _ = residual_bytes(strategy, workload.num_parameters, [plan.elements for _, plan in groups])
        yield Assumption(
            "codec",
            f"Residuals lie in the host's memory, {format_memory(kept)} for each device. Residuals of a group are copied over "
            f"{over.name} at {rate} before it is encoded, and back after its exchange.",
        )


def _card(card: Nic, cluster: Cluster, strategy: Strategy, efficiency: Efficiency) -> Iterator[Assumption]:
    if card.engine is not None:
        how = f"as given ({card.engine.source})"
    else:
        beats = f"beats of {card.width.value:g} bits, {card.beats.value:g} a cycle"
        how = f"{beats} at {card.clock.value / 1e6:g} MHz ({card.clock.source})"
    passed = card.rate(PAYLOAD, HEADERS)
    limits = f" Between host and line it passes {format_bandwidth(card.host.value)} ({card.host.source})." if card.host else ""
    yield Assumption(
        "codec",
        f"The codec is in the network card of each node, {card.name}, and takes no time of a processor. It passes "
        f"{format_bandwidth(passed)} of fp32 in each direction, {how}, and delays a message by "
        f"{format_seconds(card.latency_s)}.{limits} That is {passed / efficiency.bandwidth(cluster.network):.3g} times what "
        "the line carries: no ratio gains more than that. It is hardware: the card of a lab is a process of the host, whose "
        "packets pass the kernel twice more, and is not predicted (docs/nic.md).",
        card.clock.source if card.engine is None else card.engine.source,
    )
    x = strategy.gradient_exchange
    yield Assumption(
        "codec",
        f"A packet carries {PAYLOAD:,} bytes of fp32 and {HEADERS} of headers. Its headers stay, {CARD_HEADER} bytes are "
        "added, and so many packets remain. Wire bytes count what headers take more of a shorter packet. Messages inside a "
        "node stay fp32, and so do tensors that stay dense.",
        "Li et al. 2018, INCEPTIONN, MICRO, section VIII-C",
    )
    if x.exchange is RING:
        yield Assumption(
            "codec",
            "Partial sums are compressed again at every hop. The owner of a block rounds it as the others received it, which "
            "is not counted.",
        )
    if x.compression.error_feedback:
        yield Assumption(
            "accuracy", f"A card keeps no residual: the loss of {x.compression} in it is not corrected. It was not measured."
        )


def _switch(switch: Aggregation, strategy: Strategy) -> Iterator[Assumption]:
    own = ""
    if switch.payload is not None and switch.headers is not None:
        own = f" Its packets carry {switch.payload.value:g} bytes of values and {switch.headers.value:g} of headers."
    yield Assumption(
        "exchange",
        f"{switch.name} adds {' and '.join(switch.sums)} as fast as its ports deliver.{own} Each worker sends its gradient "
        "once and receives the sum once, both at once; two latencies.",
        switch.source,
    )
    if strategy.description.format.grows:
        yield Assumption(
            "exchange", "Ternary codes add up as integers: the sum comes back in as many bits as so many workers need, exact."
        )
    elif "int32" in switch.sums and "fp32" not in switch.sums:
        yield Assumption("exchange", "Hosts scale and round fp32 to int32 and back; the cost in accuracy is not counted.")


DILOCO = "diloco"
"""Method whose finding is named if nothing was published on a strategy's own."""


def _local_steps(strategy: Strategy) -> Iterator[Assumption]:
    """Yield the assumptions of a prediction of local steps."""
    local = strategy.local
    yield Assumption(
        "exchange",
        f"Local steps: {local.title}. Seconds and bytes of a step are the mean over {local.sync_every} steps. Averages "
        "of BatchNorm's statistics are not counted.",
        "Douillard et al. 2023, arXiv:2311.08105; Douillard et al. 2025, arXiv:2501.18512",
    )
    if strategy.worker_devices > 1:
        yield Assumption(
            "exchange",
            f"{strategy.worker_count} workers of {strategy.worker_devices} devices. Each adds dense gradients in every step, "
            "during its backward pass. Every device exchanges its part of the pseudo-gradients with the same part of the other "
            "workers.",
            "Jaghouar et al. 2024, INTELLECT-1, arXiv:2412.01152: FSDP2 inside a worker of DiLoCo",
        )
    if local.round_deadline_s is not None:
        yield Assumption(
            "exchange",
            f"The peers' rounds are simulated: an exchange waits {local.round_deadline_s:g} s at most for late ones. "
            "Later ones fetch the shared weights over the link of one other, and their change counts if it is at most "
            f"{local.max_age} outer steps old. Samples a second are those that count. --mtbf counts failures.",
            "Douillard et al. 2026, arXiv:2604.21428",
        )


def _local_overlap(strategy: Strategy, overlap: bool) -> Assumption:
    """Return the assumption about when the exchange runs."""
    delay = strategy.local.sync_delay
    if not delay:
        return Assumption("overlap", "The exchange begins after the last local step, and the next one waits for it.")
    if not overlap:
        return Assumption("overlap", "Nothing hides the exchange: the same cores do both.")
    return Assumption("overlap", f"The exchange of a fragment overlaps {delay} steps; the next one waits for the rest.")


def local_accuracy(workload: Workload, strategy: Strategy) -> Iterator[Assumption]:
    """Yield sentences on known effects of local steps on the number of samples."""
    x, local = strategy.gradient_exchange, strategy.local
    known, published = further_of(workload, strategy), finding_of(workload, strategy) or finding(DILOCO)
    if known is not None:
        measured = "They are fits to other networks; this one was not measured."
        yield Assumption("accuracy", f"{known.sentence()} {measured}", known.source)
    else:
        said = f" {published.said}" if published is not None else ""
        yield Assumption(
            "accuracy",
            f"How many more samples a target takes with {local.sync_every} local steps is unknown, not zero.{said} Other "
            "networks, more workers and other rates were not measured here. Short runs of a small network lost by local steps "
            "(docs/local-sgd.md).",
            published.source if published is not None else "",
        )
    if x.compression.compresses:
        yield Assumption("accuracy", f"The effect of {x.compression} on pseudo-gradients is unknown, not zero.")
