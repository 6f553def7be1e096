"""Transfers between the stages of a pipeline: activations and their gradients, and the gradient of a shared table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from paceline.calibration.constants import Efficiency
from paceline.hardware.cluster import Cluster
from paceline.hardware.levels import Level
from paceline.hardware.precision import BYTES_PER_ELEMENT
from paceline.prediction.exchange.collective_time import collective_seconds
from paceline.prediction.exchange.group_view import divided, group_view, pairs_between
from paceline.prediction.mesh.stages import Stage, boundary_bytes
from paceline.prediction.passes.compute import Resource
from paceline.strategy.strategy import Strategy


def sends(
    parts: Sequence[Stage], cluster: Cluster, strategy: Strategy, e: Efficiency, free: Collection[Resource] = ()
) -> tuple[list[float], list[bool], float]:
    """Return transfers from each part to the next: seconds, whether over the network, and bytes that a device sends in a step.

    ``free``: resources that cost no time.

    Each device of a group sends its share; without sequence parallelism the group then gathers the whole (Narayanan et al.
    2021, section 4.1).
    """
    mesh, count, turns = strategy.parallelism, len(parts), len(parts[0].parts)
    size = strategy.micro_batch_size * BYTES_PER_ELEMENT[strategy.precision] / 4
    seconds, far, sent = [], [], 0.0
    boundaries = []
    for part in range(count * turns - 1):
        stage = parts[part % count]
        boundaries.append(boundary_bytes([stage.workload.layers[i] for i in stage.parts[part // count]]))
    for part, boundary in enumerate(boundaries):
        # a part of the embedding alone has no product, and sends as much as the next part
        own = (boundary or max(boundaries[:2])) * size / mesh.tensor
        link, users, network = pairs_between(cluster, mesh.stage_devices, part % count, (part + 1) % count)
        wait = e.latency(link) + own * users / e.bandwidth(link)
        if mesh.tensor > 1 and not mesh.sequence:
            group = group_view(cluster, mesh.tensor, 1, "tensor")
            wait += float(collective_seconds(np.array([own * mesh.tensor]), group, e, halves=True)[0][0])
        seconds.append(0.0 if "pipeline send" in free or _link(network) in free else wait)
        far.append(network)
        sent = max(sent, own)
    return seconds, far, 2.0 * sent * turns * mesh.micro_batches


def _link(network: bool) -> Resource:
    return "network" if network else "intra-node link"


def tie_seconds(
    parts: Sequence[Stage], cluster: Cluster, strategy: Strategy, e: Efficiency, free: Collection[Resource] = ()
) -> tuple[float, bool]:
    """Return seconds of the all-reduce that sums the shared table's gradient over both ends of the pipeline, in fp32.

    The second value tells whether it crosses the network. ``free`` as for ``sends``.
    """
    if len(parts) == 1 or not parts[0].tied:
        return 0.0, False
    link, users, network = pairs_between(cluster, strategy.parallelism.stage_devices, 0, len(parts) - 1)
    if _link(network) in free:
        return 0.0, network
    shared = divided(link, users)
    ends = replace(cluster, levels=(Level("node", 1, cluster.intra_link), Level("pod", 2, shared)))
    return float(collective_seconds(np.array([4.0 * parts[0].tied]), ends, e)[0][0]), network
