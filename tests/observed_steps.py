"""Steps of a network that are observed to take a factor of what is predicted, and where they are observed."""

from __future__ import annotations

from paceline.hardware import cluster
from paceline.prediction import Observation, Prediction, Predictor
from paceline.strategy import Strategy
from paceline.workload import Workload

WORKLOAD = "resnet-50"


def setting(nodes: int = 1, per_node: int = 8, micro: int = 64, device: str = "V100") -> tuple[object, ...]:
    """A network, so many devices and a strategy for them, with ``micro`` samples each."""
    machines = cluster(device, per_node, nodes, "InfiniBand EDR")
    n = machines.world_size
    return Workload.named(WORKLOAD), machines, Strategy.of(world_size=n, global_batch_size=micro * n, precision="fp16")


def predicted(*given: object, **changes: object) -> Prediction:
    """By a ``Predictor`` with ``changes``."""
    return Predictor(**changes).step(*given)  # type: ignore[arg-type]


def observed(factor: float, sync: float | None = None, **where: object) -> Observation:
    """A step ``factor`` times as long as predicted, its wait ``sync`` times as long."""
    network, machines, strategy = setting(**where)  # type: ignore[arg-type]
    prediction = predicted(network, machines, strategy)
    if sync is None:
        return Observation(workload=network, cluster=machines, strategy=strategy, step_s=factor * prediction.step_time_s)
    work = factor * (prediction.step_time_s - prediction.exposed_comm_s)
    wait = sync * prediction.exposed_comm_s
    return Observation(workload=network, cluster=machines, strategy=strategy, step_s=work + wait, sync_s=wait)
