"""Speed against the number of devices: what a strategy does on more and fewer of the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.space import worlds
from paceline.prediction import Prediction, Predictor
from paceline.strategy import Strategy
from paceline.workload.table import Workload

LINES = {"weak: the batch grows": "weak", "strong: the batch stays": "strong"}


def scaling(workload: Workload, cluster: Cluster, strategy: Strategy, predictor: Predictor) -> dict[str, list[Prediction]]:
    """Predictions from one device to twice those of ``cluster``: with the micro batch kept, and with the global batch kept.

    A line of fewer than two points is left out, as where the global batch does not divide.
    """
    nodes = max(2 * cluster.num_nodes, 2) if cluster.num_nodes > 1 or cluster.network != cluster.intra_link else 1
    places = worlds(cluster.devices_per_node, nodes)
    lines = {}
    for title, kind in LINES.items():
        line = [p for local, n in places if (p := _at(workload, cluster, strategy, local, n, kind, predictor))]
        if len(line) > 1:
            lines[title] = line
    return lines


def _at(
    workload: Workload, cluster: Cluster, strategy: Strategy, local: int, nodes: int, kind: str, predictor: Predictor
) -> Prediction | None:
    """The same strategy there; on one device nothing is exchanged. None where it is not legal."""
    n = local * nodes
    batch = strategy.global_batch_size * n // strategy.world_size if kind == "weak" else strategy.global_batch_size
    resized = cluster.changed(devices_per_node=local, num_nodes=nodes)
    for way in _ways(strategy, local, nodes):
        try:
            here = way.changed(world_size=n, global_batch_size=batch, servers=min(way.gradient_exchange.servers, n))
            return predictor.step(workload, resized, here)
        except UserError:
            continue
    return None


def _ways(strategy: Strategy, local: int, nodes: int) -> Iterator[Strategy]:
    """The strategy, or without what makes no sense on so few."""
    if strategy.gradient_exchange.exchange == "hierarchical":
        if local > 1 and nodes > 1:
            yield strategy.changed(ranks_per_node=local)
        yield strategy.changed(exchange="", ranks_per_node=1)
    else:
        yield strategy


def curves(lines: Mapping[str, Sequence[Prediction]]) -> dict[str, list[dict[str, Any]]]:
    """The lines as plain numbers, by ``weak`` and ``strong``."""
    keys = ("step_time_s", "low_s", "high_s", "samples_per_s")
    return {
        LINES[title]: [{"devices": p.strategy["world_size"], **{k: getattr(p, k) for k in keys}} for p in line]
        for title, line in lines.items()
    }
