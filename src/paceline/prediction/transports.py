"""Step over each transport of a network whose stated speed leaves the transport open. The times differ between RDMA and TCP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.hardware.cluster import Cluster
from paceline.hardware.networks import by_transport
from paceline.prediction.answer.result import Prediction
from paceline.prediction.predictor import StepPredictor
from paceline.strategy.codec_place import IN_CARD
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

_FIGURES = ("step_time_s", "low_s", "high_s", "samples_per_s", "exposed_comm_s", "bottleneck")


def clusters_by_transport(cluster: Cluster, predictor: StepPredictor) -> Mapping[str, Cluster]:
    """Return the cluster with each transport, ``RDMA`` and ``TCP``.

    Empty if the transport is given, if nothing crosses the network, if the predictor has measured it, and on CPUs and TPUs,
    whose software has one transport.
    """
    if cluster.num_nodes == 1 or predictor.uncorrected.calibration is not None or cluster.device.kind in ("cpu", "tpu"):
        return {}
    return {name: cluster.changed(network=link) for name, link in by_transport(cluster.network).items()}


def steps_by_transport(
    predictor: StepPredictor, workload: Workload, cluster: Cluster, strategy: Strategy
) -> Mapping[str, Prediction]:
    """Return the step over each transport, by ``RDMA`` and ``TCP``; empty as ``clusters_by_transport``.

    ``Predictor.step`` of the cluster itself is that over TCP. Raises UserError as it does. Cards that compress follow TCP.
    """
    if strategy.gradient_exchange.codec_at is IN_CARD:
        return {}
    return {
        name: predictor.step(workload, other, strategy) for name, other in clusters_by_transport(cluster, predictor).items()
    }


def figures_by_transport(steps: Mapping[str, Prediction]) -> dict[str, dict[str, Any]]:
    """Return the main figures over each transport as plain values."""
    return {name: {key: getattr(step, key) for key in _FIGURES} for name, step in steps.items()}
