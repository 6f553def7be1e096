"""Predictor that observed steps correct: first links and hosts, then the ratio of measured to predicted seconds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
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
from paceline.prediction.correction.correction import Correction
from paceline.prediction.correction.gaussian_process import Position
from paceline.prediction.layouts.batch import Batched, Candidate, Steps
from paceline.prediction.predictor import ORDINARY, Predicted, Predictor
from paceline.prediction.step.step_inputs import StepInputs
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
        inputs = StepInputs.of(workload, cluster, strategy, self.typical, self.attention, self.year)
        observed = replace(inputs, cluster=self.observed_cluster(inputs.cluster))
        place = Position.of(inputs.workload, inputs.cluster, inputs.strategy)
        known = self.correction.knows(place)
        prediction = whole = self._predicted(observed, known)
        if self.free:  # the correction applies to the whole step
            whole = self.uncorrected.changed(loader=0.0, free=frozenset())._predicted(observed)
        corrected = self._with_range(self.correction.applied(prediction, place, whole), prediction, inputs, known)
        feeds = self.loader and "input pipeline" not in self.free
        return fed(corrected, inputs.strategy.global_batch_size / self.loader) if feeds else corrected

    def _with_range(self, corrected: Prediction, plain: Prediction, inputs: StepInputs, known: bool) -> Prediction:
        """Return the corrected prediction with its range, never wider than without observations."""
        if not self._fitted or not plain.step_time_s:
            return corrected
        step_s, ends = corrected.step_time_s, (corrected.low_s, corrected.high_s)
        low_s, high_s = (step_s * end / plain.step_time_s for end in (plain.low_s, plain.high_s))
        if known:
            own = conformal_range(self.typical, inputs, step_s, ends, known)
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


def corrected_steps(predictor: CorrectedPredictor, workload: Workload, candidates: Sequence[Candidate], steps: Steps) -> Steps:
    """Return the corrected steps. Candidates that the correction cannot distinguish share the factor of the fastest.

    Args:
        predictor: without a loader.
        steps: uncorrected steps of its model.
    """
    alike: dict[Hashable, list[int]] = {}
    for index in np.flatnonzero(steps.fits & np.isfinite(steps.step_s)).tolist():
        cluster, s = candidates[index]
        mesh = s.parallelism
        division = (s.precision, s.gradient_exchange, s.local, mesh.moving, mesh.recomputation)
        where = (cluster.device.name, cluster.places, cluster.num_nodes, s.micro_batch_size, *division)
        alike.setdefault(where, []).append(index)
    step_s = steps.step_s.copy()
    for members in alike.values():
        fastest = min(members, key=lambda i: float(steps.step_s[i]))
        corrected_s = predictor.step(workload, *candidates[fastest]).step_time_s
        step_s[members] *= corrected_s / steps.step_s[fastest]
    return replace(steps, step_s=step_s)
