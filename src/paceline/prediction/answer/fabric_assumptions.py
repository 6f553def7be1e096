"""What was assumed of a codec or residuals that are not where the gradients live, and of sums in the switch, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.calibration.constants import Efficiency
from paceline.hardware.catalogue import link
from paceline.hardware.cluster import Cluster
from paceline.hardware.nics import Nic
from paceline.hardware.switches import Aggregation
from paceline.prediction.answer.result import Assumption
from paceline.prediction.passes.residual_memory import residual_bytes
from paceline.strategy.card_frames import CARD_HEADER, HEADERS, PAYLOAD
from paceline.strategy.codec_place import fabric
from paceline.strategy.strategy import Strategy
from paceline.units import format_bandwidth, format_byte_rate, format_memory, format_seconds
from paceline.workload.table import Workload


def fabric_assumptions(cluster: Cluster, strategy: Strategy, efficiency: Efficiency) -> Iterator[Assumption]:
    """The card, the switch or the host that the exchange uses, and those that were named and are not used."""
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
    if x.codec_at == "host":
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
    """How residuals are kept, where not as fp32 beside the codec."""
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
            f"Residuals lie in the host's memory, {format_memory(kept)} for each device. Those of a group are copied over "
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
    if x.exchange == "ring":
        yield Assumption(
            "codec",
            "Partial sums are compressed again at every hop. That the owner of a block rounds it as the others received it is "
            "not counted.",
        )
    if x.compression == "inceptionn-scaled":
        yield Assumption(
            "accuracy", "A card keeps no residual: what inceptionn-scaled loses in it is lost. Nobody measured that."
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
    if strategy.gradient_exchange.compression == "terngrad":
        yield Assumption(
            "exchange", "Ternary codes add up as integers: the sum comes back in as many bits as so many workers need, exact."
        )
    elif "int32" in switch.sums and "fp32" not in switch.sums:
        yield Assumption(
            "exchange", "Hosts scale and round fp32 to int32 and back; what that costs in accuracy is not counted."
        )
