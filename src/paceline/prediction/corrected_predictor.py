"""Predictor that observed steps correct: first links and hosts, then the ratio of measured to predicted seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import final

import numpy as np

from paceline.calibration.constants import Efficiency
from paceline.calibration.observation import Observation
from paceline.errors import UserError, shown
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.prediction.answer.lazy_tuple import lazy
from paceline.prediction.answer.result import Prediction
from paceline.prediction.answer.step_range import conformal_range
from paceline.prediction.correction import Correction
from paceline.prediction.layouts.batch import Batched, Candidate, Predicted, Steps, corrected_steps
from paceline.prediction.predictor import ORDINARY, Predictor, check_inputs
from paceline.prediction.step.step_model import StepModel
from paceline.prediction.step.timeline import input_event
from paceline.prediction.step.waits import in_turn
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload


@final
@dataclass(frozen=True, kw_only=True)
class CorrectedPredictor(Predictor):
    """Predictor whose steps are corrected near observed ones.

    Observed steps do not include the loader, so its wait is added to the corrected step.

    Attributes:
        correction: corrections from observed steps, fitted to a predictor of the same constants.

    Raises:
        UserError: as ``Predictor``; a correction of other constants.
    """

    correction: Correction

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.correction, Correction):
            raise UserError(f"correction={shown(self.correction)}", "use paceline.prediction.fit(observations, predictor)")
        if not self.correction.is_of(self.typical):
            raise UserError("a correction that was fitted with other constants", "fit it again: fit(observations, predictor)")

    @property
    def uncorrected(self) -> Predictor:
        """The predictor without corrections by observed steps."""
        return Predictor(**{field.name: getattr(self, field.name) for field in fields(Predictor)})

    def observed_cluster(self, cluster: Cluster) -> Cluster:
        """Return the cluster with links at their observed speed."""
        return self.correction.cluster(cluster)

    def model(self, workload: Workload, device: Device | None = None) -> StepModel:
        """Return the model of its steps, before any correction by ratios and without the loader."""
        return replace(super().model(workload, device), loader=0.0)

    def step(self, workload: Workload, cluster: Cluster, strategy: Strategy) -> Prediction:
        """Predict one training step and correct it. Raises UserError as ``Predictor.step``."""
        check_inputs(workload, cluster, strategy)
        observed = self.observed_cluster(cluster)
        workload, strategy = self._checked(workload, observed, strategy)
        prediction = whole = self._predicted(workload, observed, strategy)
        if self.free:  # the correction applies to the whole step
            everything = self.uncorrected.changed(loader=0.0, free=frozenset())
            whole = everything.step(workload, observed, strategy)
        corrected = self.correction.applied(prediction, workload, cluster, strategy, whole)
        corrected = self._with_range(corrected, prediction, workload, cluster, strategy)
        feeds = self.loader and "input pipeline" not in self.free
        return fed(corrected, strategy.global_batch_size / self.loader) if feeds else corrected

    def _with_range(
        self, corrected: Prediction, plain: Prediction, workload: Workload, cluster: Cluster, strategy: Strategy
    ) -> Prediction:
        """Return the corrected prediction with its range, never wider than without observations."""
        if not self._fitted or not plain.step_time_s:
            return corrected
        step_s, ends = corrected.step_time_s, (corrected.low_s, corrected.high_s)
        low_s, high_s = (step_s * end / plain.step_time_s for end in (plain.low_s, plain.high_s))
        if self._knows(workload, cluster):
            own = conformal_range(self.typical, workload, cluster, strategy, step_s, ends, known=True)
            low_s, high_s = max(low_s, own[0]), min(high_s, own[1])
        return replace(corrected, low_s=low_s, high_s=high_s)

    def _many_divided(self, workload: Workload, candidates: Sequence[Candidate]) -> Steps:
        return Predicted(self, workload).steps(candidates)

    def _many_whole(self, workload: Workload, candidates: Sequence[Candidate]) -> Steps:
        unfed = replace(self, loader=0.0)
        steps = corrected_steps(unfed, workload, candidates, Batched(unfed.model(workload)).steps(candidates))
        if not self.loader:
            return steps
        least_s = np.array([strategy.global_batch_size / self.loader for _, strategy in candidates])
        return replace(steps, step_s=np.maximum(steps.step_s, least_s))

    def _with_host(self, constants: Efficiency, device: Device | None) -> Efficiency:
        return constants if device is None else self.correction.constants(constants, device)

    def _knows(self, workload: Workload, cluster: Cluster) -> bool:
        return self.correction.knows(workload, cluster)


def fit(observations: Sequence[Observation], predictor: Predictor = ORDINARY) -> CorrectedPredictor:
    """Return the predictor, corrected by observed steps.

    An observation is predicted when it is first needed, and an error is raised then. The correction leaves out the loader, free
    resources and earlier observations of the predictor.
    """
    plain = predictor.uncorrected
    correction = Correction(observations, plain.changed(loader=0.0, free=frozenset()))
    return CorrectedPredictor(correction=correction, **{field.name: getattr(plain, field.name) for field in fields(Predictor)})


def fed(prediction: Prediction, feed: float) -> Prediction:
    """Add a loader of ``feed`` seconds a step to a corrected step, since observed steps do not include it."""
    wait = max(0.0, feed - prediction.step_time_s)
    waited = [("wait for input", wait)]
    step_s = prediction.step_time_s + wait
    return replace(
        prediction,
        step_time_s=step_s,
        low_s=max(prediction.low_s, feed),
        high_s=max(prediction.high_s, feed),
        samples_per_s=prediction.samples_per_s * prediction.step_time_s / step_s,
        compute_s=prediction.compute_s + wait,
        exposed={**prediction.exposed, "input pipeline": wait},
        bottleneck="input pipeline" if wait > max(prediction.exposed.values()) else prediction.bottleneck,
        timeline=lazy(lambda: (*in_turn(prediction.step_time_s, waited), *prediction.timeline, input_event(feed))),
    )
