"""Predictor that observed steps correct: first links and hosts, then the ratio of measured to predicted seconds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, final

import numpy as np

from paceline.calibration.observation import Observation
from paceline.errors import UserError, shown
from paceline.hardware.cluster import Cluster
from paceline.prediction.answer.lazy_tuple import lazy
from paceline.prediction.answer.result import Prediction
from paceline.prediction.answer.step_range import held_out_range
from paceline.prediction.correction.correction import Correction
from paceline.prediction.correction.gaussian_process import Position
from paceline.prediction.layouts.batch import Batched, Candidate, Evaluation, Steps
from paceline.prediction.predictor import ORDINARY, Predicted, Predictor, StepPredictor
from paceline.prediction.step.step_inputs import StepInputs
from paceline.prediction.step.timeline import input_event
from paceline.prediction.step.waits import in_turn
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload


@final
@dataclass(frozen=True, kw_only=True)
class CorrectedPredictor(StepPredictor):
    """Predictor whose steps are corrected near observed ones.

    Observed steps do not include the loader, so its wait is added to the corrected step.

    Attributes:
        base: the predictor that is corrected.
        correction: corrections from observed steps, fitted to a predictor of the same constants.

    Raises:
        UserError: a correction of other constants.
    """

    base: Predictor
    correction: Correction

    def __post_init__(self) -> None:
        if not isinstance(self.correction, Correction):
            raise UserError(f"correction={shown(self.correction)}", "use paceline.prediction.fit(observations, predictor)")
        if not self.correction.is_of(self.base.typical):
            raise UserError("a correction that was fitted with other constants", "fit it again: fit(observations, predictor)")

    @property
    def uncorrected(self) -> Predictor:
        """The predictor that is corrected."""
        return self.base

    def changed(self, **choices: Any) -> Self:
        """Return the correction of a predictor with other values. Raises UserError as ``Predictor``; for other constants."""
        return replace(self, base=self.base.changed(**choices))

    def observed_cluster(self, cluster: Cluster) -> Cluster:
        """Return the cluster with links at their observed speed."""
        return self.correction.cluster(cluster)

    def evaluation(self, workload: Workload, divided: bool) -> Evaluation:
        """Return the evaluation of corrected groups, or of each candidate for what groups lack."""
        if divided or self.base.calibration is not None or self.base.free:
            return Predicted(self, workload)
        return CorrectedGroups(self, workload)

    def step(self, workload: Workload, cluster: Cluster, strategy: Strategy) -> Prediction:
        """Predict one training step and correct it. Raises UserError as ``Predictor.step``."""
        base = self.base
        inputs = base.inputs(workload, cluster, strategy)
        observed = replace(inputs, cluster=self.observed_cluster(inputs.cluster))
        place = Position.of(inputs.workload, inputs.cluster, inputs.strategy)
        known = self.correction.knows(place)
        host_s = self.correction.host_s(inputs.cluster.device)
        prediction = whole = base.predicted(observed, host_s=host_s, known=known, fed=False)
        if base.free:  # the correction applies to the whole step
            whole = base.changed(free=frozenset()).predicted(observed, fed=False)
        corrected = self._with_range(self.correction.applied(prediction, place, whole), prediction, inputs, known)
        feeds = base.loader and "input pipeline" not in base.free
        return fed(corrected, inputs.strategy.global_batch_size / base.loader) if feeds else corrected

    def _with_range(self, corrected: Prediction, plain: Prediction, inputs: StepInputs, known: bool) -> Prediction:
        """Return the corrected prediction with its range, never wider than without observations."""
        if not self.base.fitted or not plain.step_time_s:
            return corrected
        step_s, ends = corrected.step_time_s, (corrected.low_s, corrected.high_s)
        low_s, high_s = (step_s * end / plain.step_time_s for end in (plain.low_s, plain.high_s))
        if known:
            own = held_out_range(self.base.typical, inputs, step_s, ends, known)
            low_s, high_s = max(low_s, own[0]), min(high_s, own[1])
        return replace(corrected, low_s=low_s, high_s=high_s)


Predictor.register(CorrectedPredictor)  # isinstance(fit(...), Predictor) has always been true


def fit(observations: Sequence[Observation], predictor: StepPredictor = ORDINARY) -> CorrectedPredictor:
    """Return the predictor, corrected by observed steps.

    An observation is predicted when it is first needed, and an error is raised then. The correction leaves out the loader, slow
    workers, free resources and earlier observations of the predictor.
    """
    base = predictor.uncorrected
    model = base.changed(loader=0.0, worker_times=(), free=frozenset())
    return CorrectedPredictor(base=base, correction=Correction(observations, base.typical, partial(_on_host, model)))


def _on_host(model: Predictor, workload: Workload, cluster: Cluster, strategy: Strategy, host_s: float) -> Prediction:
    """Predict a step on an observed host."""
    return model.predicted(model.inputs(workload, cluster, strategy), host_s=host_s)


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


@final
@dataclass(frozen=True, slots=True)
class CorrectedGroups(Evaluation):
    """Evaluation of undivided networks by a corrected predictor.

    Candidates that the correction cannot distinguish share the factor of the fastest.
    """

    predictor: CorrectedPredictor
    workload: Workload

    def steps(self, candidates: Sequence[Candidate], *, fitting: bool = False) -> Steps:
        """Return the corrected steps of candidates whose devices each hold the whole network."""
        loader, unfed = self.predictor.base.loader, self.predictor.changed(loader=0.0)
        steps = Batched(unfed.base.model(self.workload)).steps(candidates, fitting=fitting)
        step_s = steps.step_s.copy()
        for members in _indistinct(candidates, np.flatnonzero(steps.fits & np.isfinite(steps.step_s)).tolist()):
            fastest = min(members, key=lambda i: float(steps.step_s[i]))
            corrected_s = unfed.step(self.workload, *candidates[fastest]).step_time_s
            step_s[members] *= corrected_s / steps.step_s[fastest]
        if loader:
            step_s = np.maximum(step_s, [strategy.global_batch_size / loader for _, strategy in candidates])
        return replace(steps, step_s=step_s)


def _indistinct(candidates: Sequence[Candidate], indices: Iterable[int]) -> Iterable[list[int]]:
    """Group candidates that a correction cannot distinguish."""
    groups: dict[Hashable, list[int]] = {}
    for index in indices:
        cluster, s = candidates[index]
        mesh = s.parallelism
        division = (s.precision, s.gradient_exchange, s.local, mesh.moving, mesh.recomputation)
        where = (cluster.device.name, cluster.places, cluster.num_nodes, s.micro_batch_size, *division)
        groups.setdefault(where, []).append(index)
    return groups.values()
