"""Throughput against the number of devices, for one strategy on more and fewer of the same devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.search.space import worlds
from paceline.prediction import Prediction, StepPredictor
from paceline.strategy import Strategy
from paceline.workload.table import Workload

Lines = Mapping[str, Sequence[Prediction]]
"""Predictions on the numbers of devices, the fewest first, by kind of scaling."""
LINES = {"weak: the batch grows": "weak", "strong: the batch stays": "strong"}


def scaling(
    workload: Workload, cluster: Cluster, strategy: Strategy, predictor: StepPredictor, places: Sequence[Cluster] = ()
) -> dict[str, list[Prediction]]:
    """Predict from one device to twice those of ``cluster``, by weak and by strong scaling.

    A line with fewer than two points is omitted, for example if the global batch does not divide. Both are omitted on nodes
    with different numbers of devices.

    Args:
        places: clusters to use instead, so that a plan's ranking and its curves have the same cluster for a device count.
    """
    if not cluster.even:
        return {}
    lines = {}
    for title, kind in LINES.items():
        line = [p for place in places or _sizes(cluster) if (p := _step_on(workload, place, strategy, kind, predictor))]
        if len(line) > 1:
            lines[title] = line
    return lines


def _sizes(cluster: Cluster) -> list[Cluster]:
    """Return clusters from one device up to twice the nodes of ``cluster``."""
    nodes = max(2 * cluster.num_nodes, 2) if cluster.num_nodes > 1 or cluster.network != cluster.intra_link else 1
    sizes = [size for size in worlds(cluster.devices_per_node, nodes) if cluster.fills_leaves(size[1])]
    return [cluster.changed(devices_per_node=local, num_nodes=n) for local, n in sizes]


def _step_on(workload: Workload, place: Cluster, strategy: Strategy, kind: str, predictor: StepPredictor) -> Prediction | None:
    """Return the step of the strategy on cluster ``place``; None if it is illegal there."""
    n, local, nodes = place.world_size, place.devices_per_node, place.num_nodes
    batch = strategy.global_batch_size * n // strategy.world_size if kind == "weak" else strategy.global_batch_size
    for variant in _variants(strategy, local, nodes):
        try:
            servers = min(variant.gradient_exchange.servers, n)
            return predictor.step(workload, place, variant.changed(world_size=n, global_batch_size=batch, servers=servers))
        except UserError:
            continue
    return None


def _variants(strategy: Strategy, local: int, nodes: int) -> Iterator[Strategy]:
    """Yield the strategy. A hierarchical exchange gets the size of these nodes, or else becomes the usual exchange."""
    if strategy.gradient_exchange.exchange.uses_nodes:
        if local > 1 and nodes > 1:
            yield strategy.changed(ranks_per_node=local)
        yield strategy.changed(exchange="", ranks_per_node=1)
    else:
        yield strategy


def curves(lines: Mapping[str, Sequence[Prediction]]) -> dict[str, list[dict[str, Any]]]:
    """Return the lines as plain numbers, by ``weak`` and ``strong``."""
    keys = ("step_time_s", "low_s", "high_s", "samples_per_s")
    return {
        LINES[title]: [{"devices": p.strategy["world_size"], **{k: getattr(p, k) for k in keys}} for p in line]
        for title, line in lines.items()
    }
