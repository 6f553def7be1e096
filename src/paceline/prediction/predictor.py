"""The whole model as one value, ``Predictor``. Every step time comes from it, so all answers agree."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, final

from paceline.calibration.attention import KERNELS
from paceline.calibration.calibration import Calibration
from paceline.calibration.constants import Efficiency, efficiency
from paceline.errors import UserError, check_name, shown
from paceline.hardware.cluster import Cluster
from paceline.prediction.answer.result import Prediction
from paceline.prediction.answer.step_answer import step_answer
from paceline.prediction.answer.step_range import fitted_factors, held_out_range
from paceline.prediction.layouts.batch import (
    Batched,
    Candidate,
    Evaluation,
    OneByOne,
    OnMesh,
    Steps,
    merged_steps,
    refused_steps,
)
from paceline.prediction.layouts.many_lengths import steps_of_lengths
from paceline.prediction.layouts.many_tasks import steps_of_tasks
from paceline.prediction.mesh.mesh_step import mesh_step
from paceline.prediction.passes.attention_kernel import check_kernel
from paceline.prediction.passes.compute import RESOURCES, Resource
from paceline.prediction.passes.computed_layers import as_computed
from paceline.prediction.passes.recompute import check_recompute
from paceline.prediction.step.peer_step import any_worker_step
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_inputs import StepInputs, check_inputs
from paceline.prediction.step.step_model import PassTimes, StepModel
from paceline.prediction.tasks.length_step import any_step
from paceline.strategy.compression.formats import PayloadBound
from paceline.strategy.frameworks import FRAMEWORKS, Framework, framework_of
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

Bounds = tuple[Efficiency, Efficiency, Efficiency]


class StepPredictor(ABC):
    """Predictor of training steps.

    Final classes: ``Predictor``, and ``CorrectedPredictor``, which corrects one by observed steps.
    """

    @property
    @abstractmethod
    def uncorrected(self) -> Predictor:
        """The predictor without corrections by observed steps."""

    @abstractmethod
    def changed(self, **choices: Any) -> Self:
        """Return a predictor with other values of fields of ``Predictor``. Raises UserError as a new one does."""

    def observed_cluster(self, cluster: Cluster) -> Cluster:
        """Return the cluster with links at their observed speed. Without observations it is unchanged."""
        return cluster

    @abstractmethod
    def step(self, workload: Workload, cluster: Cluster, strategy: Strategy) -> Prediction:
        """Predict one training step of ``workload`` on every device of ``cluster`` under ``strategy``.

        Raises:
            UserError: the strategy has another number of workers than the cluster has devices; the device lacks the
                precision; the calibration is of another workload or compression.
        """

    @abstractmethod
    def evaluation(self, workload: Workload, divided: bool) -> Evaluation:
        """Return the method for many steps of a workload.

        Args:
            divided: whether several devices hold the network together.
        """

    def without(self, resource: Resource) -> Self:
        """Return a predictor in which a resource costs no time, so waits that it hid appear. Raises UserError if unknown."""
        check_name("resource", resource, RESOURCES)
        return self.changed(free=self.uncorrected.free | {resource})

    def many(self, workload: Workload, candidates: Sequence[Candidate], *, fitting: bool = False) -> Steps:
        """Return ``step_time_s`` and ``memory_bytes`` of very many strategies at once.

        A candidate is refused if the requested kernel of attention does not run on its device or in its precision. Candidates
        that a correction cannot distinguish share its factor. With a calibration, a free resource, or a divided network, they
        are predicted one by one, which takes longer (``planning.search.layouts`` prunes those).

        Args:
            fitting: whether the seconds of those that surely do not fit may be left out; then their memory is a lower bound,
                and exact for the one that lacks least.
        """
        if not isinstance(candidates, Sequence):
            raise UserError(f"candidates {shown(candidates)}", "give pairs of a Cluster and a Strategy")
        for candidate in candidates:
            if not isinstance(candidate, tuple) or len(candidate) != 2:
                raise UserError(f"candidate {shown(candidate)}", "give pairs of a Cluster and a Strategy")
            check_inputs(workload, *candidate)
            check_recompute(workload, candidate[1].parallelism)
        plain = self.uncorrected
        framework = plain.typical.framework
        if not framework.plain:
            settled = [(cluster, s if s.optimizer else s.settled(workload, cluster)) for cluster, s in candidates]
            candidates = [(cluster, strategy.under(framework)) for cluster, strategy in settled]
        if any(strategy.tokens_per_sample.vary for _, strategy in candidates):
            return steps_of_lengths(workload, candidates, partial(self.many, fitting=fitting))
        if any(not strategy.task.alone for _, strategy in candidates):
            return self._many_tasks(workload, candidates, fitting=fitting)
        refused = plain.without_kernel(workload, candidates) if plain.attention else {}
        whole = [
            i
            for i, (_, strategy) in enumerate(candidates)
            if strategy.parallelism.whole
            and strategy.worker_devices == 1
            and strategy.local.round_deadline_s is None
            and i not in refused
        ]
        network = as_computed(workload, plain.typical)
        if len(whole) == len(candidates):
            return self.evaluation(network, divided=False).steps(candidates, fitting=fitting)
        apart = refused.keys() | set(whole)
        divided = [i for i in range(len(candidates)) if i not in apart]
        return merged_steps(
            (whole, self.evaluation(network, divided=False).steps([candidates[i] for i in whole], fitting=fitting)),
            (divided, self.evaluation(network, divided=True).steps([candidates[i] for i in divided])),
            (list(refused), refused_steps([candidates[i] for i in refused], refused.values())),
        )

    def _many_tasks(self, workload: Workload, candidates: Sequence[Candidate], *, fitting: bool) -> Steps:
        """Return the steps of candidates some of which have a task: as arrays if nothing corrects them, else one by one."""
        plain = self.uncorrected
        if plain is not self or plain.calibration is not None or plain.free:
            return Predicted(self, workload).steps(candidates)
        return steps_of_tasks(plain.model(workload), candidates, partial(self.many, fitting=fitting))


@final
@dataclass(frozen=True, kw_only=True)
class Predictor(StepPredictor):
    """Model of training steps. ``fit`` returns one corrected by observed steps.

    Attributes:
        constants: reached shares of the peak rates of device and links; by default those of ``framework``. Three of them,
            low, typical and high, set the range instead of the 80 % interval.
        calibration: measurements of this machine, which replace the catalogue's estimates.
        loader: samples/s that the input pipeline delivers to all workers together; 0: unknown, and never a limit.
        worker_times: time of a step of each worker relative to a usual one; those that are not given take 1.
        overlap: whether the exchange overlaps the backward pass; None: as calibrated, else yes, as in DDP.
        framework: software that trains, or its name in ``FRAMEWORKS``; empty takes that of ``constants``, else ``ordinary``.
        attention: kernel of attention, a name of ``calibration.attention.KERNELS``; empty: the usual of framework and year.
        compile: whether chains of element-wise kernels are fused (``Efficiency.compiled``); None: as the framework does by
            default. In tuned software they always are.
        year: year of tuned software, such as 2021.5, which was slower than the newest; 0: the newest.
        free: resources that cost no time (``without``).

    Raises:
        UserError: no such level, or another than the constants'; an impossible loader; a resource that does not exist.
    """

    constants: Efficiency | Bounds | None = None
    calibration: Calibration | None = None
    loader: float = 0.0
    worker_times: tuple[float, ...] = ()
    overlap: bool | None = None
    framework: Framework | str = ""
    free: frozenset[Resource] = frozenset()
    attention: str = ""
    compile: bool | None = None
    year: float = 0.0

    def __post_init__(self) -> None:
        self._check_types()
        if self.attention:
            check_name("attention kernel", self.attention, KERNELS)
        named = framework_of(self.framework) if self.framework else None
        given = self.constants or efficiency(named.level if named else "ordinary")
        typical = given[1] if isinstance(given, tuple) else given
        framework = named or typical.framework
        if framework.level != typical.level:
            raise UserError(
                f"constants of {typical.level} software for {framework} software", "give one of the two: it decides the other"
            )
        object.__setattr__(self, "framework", framework)
        bounds = tuple(map(self._adapted, given)) if isinstance(given, tuple) else (self._adapted(given),)
        if not 0 <= self.loader < math.inf:
            raise UserError(f"a loader of {self.loader:g} samples/s", "give a positive number, or 0 if unknown")
        if self.worker_times and self.calibration is not None:
            raise UserError("worker_times with a calibration, which measured the slowest worker", "leave one of them out")
        if not all(math.isfinite(factor) and factor > 0 for factor in self.worker_times):
            raise UserError(f"worker_times {shown(self.worker_times)}", "give numbers above 0, such as 1.5 for a slower worker")
        for name in self.free:
            check_name("resource", name, RESOURCES)
        object.__setattr__(self, "constants", bounds if len(bounds) > 1 else bounds[0])

    def _adapted(self, constants: Efficiency) -> Efficiency:
        """Return the constants under the other choices; adapted ones are unchanged. Raises UserError for an impossible year."""
        if self.attention:
            constants = replace(constants, attention_kernel=self.attention)
        framework = framework_of(self.framework)
        compiles = framework.compiles if self.compile is None else self.compile
        constants = constants.under(framework, compiled=compiles)
        if compiles:
            constants = constants.compiled()
        return constants.of_year(self.year) if self.year else constants

    def _check_types(self) -> None:
        bounds = self.constants if isinstance(self.constants, tuple) else (self.constants,) * 3
        legal = self.constants is None or (len(bounds) == 3 and all(isinstance(c, Efficiency) for c in bounds))
        number = isinstance(self.loader, int | float) and not isinstance(self.loader, bool)
        times = isinstance(self.worker_times, tuple) and all(
            isinstance(x, int | float) and not isinstance(x, bool) for x in self.worker_times
        )
        for name, fine, instead in (
            ("constants", legal, "give paceline.calibration.constants.efficiency(...), or three of them"),
            ("calibration", isinstance(self.calibration, Calibration | None), "give a paceline.prediction.Calibration"),
            ("loader", number, "give samples/s, or 0 if unknown"),
            ("worker_times", times, "give a tuple of numbers, one for each worker"),
            ("overlap", isinstance(self.overlap, bool | None), "give True, False or None"),
            ("framework", isinstance(self.framework, str | Framework), f"give one of {', '.join(FRAMEWORKS)}"),
            ("attention", isinstance(self.attention, str), f"give one of {', '.join(KERNELS)}"),
            ("compile", isinstance(self.compile, bool | None), "give True, False or None"),
            ("year", isinstance(self.year, int | float) and not isinstance(self.year, bool), "give a year, such as 2021.5"),
            ("free", isinstance(self.free, frozenset), "use Predictor.without"),
        ):
            if not fine:
                raise UserError(f"{name}={shown(getattr(self, name))}", instead)

    @property
    def typical(self) -> Efficiency:
        """Constants of the expected step time."""
        return self._bounds[1]

    @property
    def software(self) -> str:
        """Level of the constants, ``ordinary`` or ``tuned``."""
        return self.typical.level

    @property
    def overlaps(self) -> bool:
        """True if the exchange overlaps the backward pass."""
        return self.overlap if self.overlap is not None else self.calibration is None or self.calibration.overlap

    @property
    def _bounds(self) -> Bounds:
        constants = self.constants
        if isinstance(constants, tuple):
            return constants
        assert constants is not None
        return constants, constants, constants

    @property
    def uncorrected(self) -> Predictor:
        """The predictor itself."""
        return self

    def changed(self, **choices: Any) -> Self:
        """Return a predictor with other values of its fields. Raises UserError as a new one does."""
        return replace(self, **choices)

    def evaluation(self, workload: Workload, divided: bool) -> Evaluation:
        """Return the evaluation of arrays, or of each candidate for what arrays lack."""
        if self.calibration is not None or self.free:
            return Predicted(self, workload)
        return OnMesh(self.model(workload)) if divided or self.worker_times else Batched(self.model(workload))

    def step(self, workload: Workload, cluster: Cluster, strategy: Strategy) -> Prediction:
        """Predict one training step from the constants or the calibration. Raises UserError as ``StepPredictor.step``."""
        return self.predicted(self.inputs(workload, cluster, strategy))

    def without_kernel(self, workload: Workload, candidates: Sequence[Candidate]) -> dict[int, UserError]:
        """Return errors of candidates that lack the kernel of attention, by index. Raises UserError if all lack it."""
        refused: dict[int, UserError] = {}
        for index, (cluster, strategy) in enumerate(candidates):
            try:
                check_kernel(self.attention, workload, cluster.device, strategy.precision, self.year)
            except UserError as error:
                refused[index] = error
        if refused and len(refused) == len(candidates):
            raise refused[0]
        return refused

    def model(self, workload: Workload) -> StepModel:
        """Return the model of a workload's steps."""
        return StepModel(
            workload=as_computed(workload, self.typical),
            constants=self.typical,
            calibration=self.calibration,
            overlap=self.overlaps,
            loader=self.loader,
            worker_times=self.worker_times,
            free=self.free,
        )

    def inputs(self, workload: Workload, cluster: Cluster, strategy: Strategy) -> StepInputs:
        """Return the inputs of a step, checked and settled. Raises UserError as ``StepInputs.of``."""
        return StepInputs.of(workload, cluster, strategy, self.typical, self.attention, self.year)

    def predicted(self, inputs: StepInputs, *, host_s: float = 0.0, known: bool = False, fed: bool = True) -> Prediction:
        """Return the prediction of checked inputs.

        Args:
            host_s: observed seconds of the host to launch a kernel; 0 takes those of the constants.
            known: whether a step of this network on this device was observed.
            fed: whether the step waits for the loader.
        """
        model = self.model(inputs.workload)
        steps = self._steps(model if fed else replace(model, loader=0.0), inputs, host_s)
        return step_answer(model, inputs, steps[1], self._range(inputs, steps), known)

    def _steps(self, model: StepModel, inputs: StepInputs, host_s: float) -> tuple[Step, Step, Step]:
        """Return the slowest, the expected and the fastest step; without bounds three times the same."""
        cluster, strategy = inputs.cluster, inputs.strategy
        plain = strategy.task.alone and not strategy.tokens_per_sample.vary
        passes = model.passes(cluster.device, strategy) if strategy.parallelism.whole and plain else None

        def step(constants: Efficiency, level: PayloadBound) -> Step:
            hosted = replace(constants, host_s=host_s) if host_s else constants
            own = replace(model, constants=hosted, level=level)
            if not plain:
                return any_step(own, cluster, strategy)
            if passes is None:
                return mesh_step(own, cluster, strategy)
            return any_worker_step(own, cluster, strategy, self._scaled(passes, constants))

        low, typical, high = self._bounds
        middle = step(typical, "expected")
        if not isinstance(self.constants, tuple) and self.calibration is None and strategy.description.format.spread is None:
            return middle, middle, middle
        return step(low, "high"), middle, step(high, "low")

    def _scaled(self, passes: PassTimes, constants: Efficiency) -> PassTimes | None:
        """Return the typical passes under other constants, if those change all layers by one factor; else None."""
        if constants is self.typical:
            return passes
        factor = constants.seconds_of(self.typical)
        return (passes[0].scaled(factor), passes[1].scaled(factor)) if factor else None

    def _range(self, inputs: StepInputs, steps: tuple[Step, Step, Step]) -> tuple[float, float]:
        """Return the ends of the step's range: 80 %, or the spread of three constants or of the calibration's repetitions."""
        slow, typical, fast = steps
        if self.fitted:
            least, most = fitted_factors(self.typical, inputs, typical)
            ends = fast.seconds * least, slow.seconds * most
            low_s, high_s = held_out_range(self.typical, inputs, typical.seconds, ends, known=False)
        else:
            spread_of_runs = 1.0 if self.calibration is None else 1 + self.calibration.spread
            low_s, high_s = fast.seconds / spread_of_runs, slow.seconds * spread_of_runs
        return max(low_s, typical.feed_s), high_s

    @property
    def fitted(self) -> bool:
        """True if the constants were fitted, and neither measured for this job nor bounded by the user."""
        return self.calibration is None and not isinstance(self.constants, tuple)


@final
@dataclass(frozen=True, slots=True)
class Predicted(OneByOne):
    """Evaluation by a predictor, with its calibration, corrections and free resources."""

    predictor: StepPredictor
    workload: Workload

    def figures(self, cluster: Cluster, strategy: Strategy) -> tuple[float, float]:
        """Return seconds and bytes of one prediction."""
        prediction = self.predictor.step(self.workload, cluster, strategy)
        return prediction.step_time_s, prediction.memory_bytes


ORDINARY = Predictor()
"""Predictor of ordinary software by the catalogue, the default everywhere."""


def predict(workload: Workload, cluster: Cluster, strategy: Strategy, *, predictor: StepPredictor = ORDINARY) -> Prediction:
    """Predict one training step, as ``predictor.step`` does. Raises UserError as that does."""
    return predictor.step(workload, cluster, strategy)
