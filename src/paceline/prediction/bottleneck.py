"""Time of the step if one of its resources took no time, and its next bottleneck.

Each step gets a new schedule, so it then waits for work that the resource hid. No upgrade of the resource can gain more.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.hardware.cluster import Cluster
from paceline.prediction.answer.result import Prediction
from paceline.prediction.passes.compute import RESOURCES
from paceline.prediction.predictor import StepPredictor
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload


@dataclass(frozen=True, slots=True)
class ResourceSpeedup:
    """The step if ``resource`` took no time.

    Attributes:
        step_time_s: seconds of that step.
        before_s: seconds of the step with the resource.
        bottleneck: the resource that it then waits for most.
    """

    resource: str
    step_time_s: float
    before_s: float
    bottleneck: str

    @property
    def speedup(self) -> float:
        """Upper bound of the speedup from a faster resource."""
        return self.before_s / self.step_time_s if self.step_time_s else float("inf")


def resource_speedups(
    predictor: StepPredictor, workload: Workload, cluster: Cluster, strategy: Strategy, prediction: Prediction | None = None
) -> tuple[ResourceSpeedup, ...]:
    """Return the speedup without each resource that the step waits for, the longest wait first.

    Args:
        prediction: the step by ``predictor``, if already known.

    Raises:
        UserError: as ``Predictor.step``.
    """
    whole = prediction or predictor.step(workload, cluster, strategy)
    waited = sorted((name for name in RESOURCES if whole.exposed[name] > 0), key=lambda name: -whole.exposed[name])
    steps = {resource: predictor.without(resource).step(workload, cluster, strategy) for resource in waited}
    return tuple(ResourceSpeedup(name, step.step_time_s, whole.step_time_s, step.bottleneck) for name, step in steps.items())
