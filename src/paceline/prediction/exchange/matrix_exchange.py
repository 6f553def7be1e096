"""Seconds and bytes of the matrices that replicas exchange for Muon: each orthogonalizes its share of them.

Replicas of a whole network share the work out, as ``paceline.Muon`` does. Plain replicas gather the results. Replicas that hold
shards of the matrices send them to their owners first, and the owners send parts of the results back. Owners of state under
ZeRO-1 have whole matrices (Megatron-Core, ``LayerWiseDistributedOptimizer``), and its gather of weights follows in any case.
"""

from __future__ import annotations

from math import prod

import numpy as np

from paceline.calibration.constants import Efficiency
from paceline.hardware.cluster import Cluster
from paceline.hardware.precision import BYTES_PER_ELEMENT, WIDE
from paceline.prediction.exchange.collective_time import alltoall_seconds, loads, phase_seconds
from paceline.prediction.exchange.group_view import group_view
from paceline.prediction.passes.orthogonal import matrix_elements
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.phase import Phase
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload


def orthogonalizers(strategy: Strategy) -> int:
    """Return the number of devices that share out the matrices of one part of a network."""
    mesh = strategy.parallelism
    if mesh.whole and (mesh.sharding.weights or not mesh.sharding.optimizer):
        return prod(_shards_and_copies(strategy))
    return mesh.sharers if mesh.sharding.optimizer else 1


def _shards_and_copies(strategy: Strategy) -> tuple[int, int]:
    """Return into how many shards a copy of the weights is divided, and how many copies have the same gradients.

    Replicas of local steps have other gradients, until they average.
    """
    mesh = strategy.parallelism
    shards = mesh.sharers if mesh.sharding.weights else 1
    return shards, mesh.replica_count // shards if strategy.sync_every == 1 else 1


def matrix_bytes(workload: Workload, strategy: Strategy) -> tuple[float, float]:
    """Return bytes of an all-to-all on each device, of which there are two, and of the whole buffer of an all-gather."""
    mesh = strategy.parallelism
    owned = mesh.sharding.optimizer and not mesh.sharding.weights  # whole matrices, by the state's owner
    if not OPTIMIZERS[strategy.optimizer].orthogonal or not mesh.whole or owned:
        return 0.0, 0.0
    size, (shards, copies) = BYTES_PER_ELEMENT[WIDE] * float(matrix_elements(workload)), _shards_and_copies(strategy)
    return size / (shards * copies) * (shards > 1), size / shards * (copies > 1)


def matrix_exchange_seconds(
    workload: Workload, strategy: Strategy, cluster: Cluster, efficiency: Efficiency
) -> tuple[float, float]:
    """Return the seconds of a step's exchanges of matrices that the link in a node sets, and the network between nodes."""
    own, gathered = matrix_bytes(workload, strategy)
    shards, copies = _shards_and_copies(strategy)
    waits = [0.0, 0.0]
    if own:
        seconds, far = alltoall_seconds(np.array([own]), group_view(cluster, shards, 1), efficiency)
        waits[int(far[0])] += 2 * float(seconds[0])
    if gathered:
        phase = Phase("gather_matrices", (int(gathered),), strategy.world_size, "gather", copies, shards)
        seconds, far = phase_seconds(loads([phase], cluster.places), cluster, efficiency)
        waits[int(far[0])] += float(seconds[0])
    return waits[0], waits[1]
