"""What a step would be if one of its resources cost no time: the next bottleneck behind the present one.

The schedule is made anew, so what was hidden behind the resource comes to light; an upgrade of it can gain no more than this.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.hardware.cluster import Cluster
from paceline.prediction.costs import RESOURCES
from paceline.prediction.predictor import Predictor
from paceline.prediction.result import Prediction
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload


@dataclass(frozen=True, slots=True)
class ResourceSpeedup:
    """A step in which ``resource`` takes no time: its seconds, the step's with it, and what most of it then waits for."""

    resource: str
    step_time_s: float
    before_s: float
    bottleneck: str

    @property
    def speedup(self) -> float:
        """How many times faster at most."""
        return self.before_s / self.step_time_s if self.step_time_s else float("inf")


def resource_speedups(
    predictor: Predictor, workload: Workload, cluster: Cluster, strategy: Strategy, prediction: Prediction | None = None
) -> tuple[ResourceSpeedup, ...]:
    """One for each resource that the step waits for, the one that it waits for most first.

    Args:
        prediction: that of the step by ``predictor``, where it is known.

    Raises:
        UserError: as ``Predictor.step``.
    """
    whole = prediction or predictor.step(workload, cluster, strategy)
    waited = sorted((name for name in RESOURCES if whole.exposed[name] > 0), key=lambda name: -whole.exposed[name])
    steps = {resource: predictor.without(resource).step(workload, cluster, strategy) for resource in waited}
    return tuple(ResourceSpeedup(name, step.step_time_s, whole.step_time_s, step.bottleneck) for name, step in steps.items())
