"""The whole model as one value, ``Predictor``. Every step time comes from it, so all answers agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final, get_args

from paceline.calibration.attention import KERNELS
from paceline.calibration.calibration import Calibration
from paceline.calibration.constants import Efficiency, SoftwareLevel, efficiency
from paceline.errors import UserError, check_name, shown, unknown
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.prediction.answer.assumptions import assumptions
from paceline.prediction.answer.division_assumptions import uneven_stages
from paceline.prediction.answer.lazy_tuple import lazy
from paceline.prediction.answer.result import Prediction
from paceline.prediction.answer.step_range import conformal_range, fitted_factors, missed_by
from paceline.prediction.layouts.batch import Batched, Candidate, OneByOne, OnMesh, Steps, merged_steps, refused_steps
from paceline.prediction.mesh.mesh_step import mesh_step
from paceline.prediction.passes.attention_kernel import check_kernel, kernel_of, with_scores
from paceline.prediction.passes.compute import RESOURCES, Resource
from paceline.prediction.passes.recompute import check_recompute
from paceline.prediction.step.exposed import without_rounding
from paceline.prediction.step.memory import fit_of
from paceline.prediction.step.step import Step
from paceline.prediction.step.step_inputs import StepInputs, check_inputs
from paceline.prediction.step.step_model import PassTimes, StepModel, measured_ratio
from paceline.strategy.compression.formats import PayloadBound
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

Bounds = tuple[Efficiency, Efficiency, Efficiency]


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """Model of training steps. ``fit`` returns one corrected by observed steps.

    Attributes:
        constants: reached shares of the peak rates of device and links; by default the fitted ones of ``software``. Three of
            them, low, typical and high, set the range instead of the 80 % interval.
        calibration: measurements of this machine, which replace the catalogue's estimates.
        loader: samples/s that the input pipeline delivers to all workers together; 0: unknown, and never a limit.
        overlap: whether the exchange overlaps the backward pass; None: as calibrated, else yes, as in DDP.
        software: ``ordinary`` or ``tuned``, the level of ``constants``; empty takes theirs, else ``ordinary``.
        attention: kernel of attention, a name of ``calibration.attention.KERNELS``; empty takes the usual one of the level and
            year.
        compile: whether chains of element-wise kernels are fused (``Efficiency.compiled``). In tuned software they always are.
        year: year of tuned software, such as 2021.5, which was slower than the newest; 0: the newest.
        free: resources that cost no time (``without``).

    Raises:
        UserError: no such level, or another than the constants'; an impossible loader; a resource that does not
            exist.
    """

    constants: Efficiency | Bounds | None = None
    calibration: Calibration | None = None
    loader: float = 0.0
    overlap: bool | None = None
    software: SoftwareLevel | str = ""
    free: frozenset[Resource] = frozenset()
    attention: str = ""
    compile: bool = False
    year: float = 0.0

    def __post_init__(self) -> None:
        self._check_types()
        if self.software and self.software not in get_args(SoftwareLevel):
            raise unknown("software level", self.software, get_args(SoftwareLevel))
        if self.constants is None:
            object.__setattr__(self, "constants", efficiency(self.software or "ordinary"))  # type: ignore[arg-type]
        if self.attention:
            check_name("attention kernel", self.attention, KERNELS)
            self._change(lambda constants: replace(constants, attention_kernel=self.attention))
        if self.compile:
            self._change(Efficiency.compiled)
        if self.year:
            self._change(lambda constants: constants.of_year(self.year))
        level = self.typical.level
        if self.software not in ("", level):
            raise UserError(
                f"constants of {level} software for {self.software} software", "give one of the two: it decides the other"
            )
        object.__setattr__(self, "software", level)
        if not 0 <= self.loader < math.inf:
            raise UserError(f"a loader of {self.loader:g} samples/s", "give a positive number, or 0 if unknown")
        for name in self.free:
            if name not in RESOURCES:
                raise unknown("resource", name, RESOURCES)

    def _change(self, change: Callable[[Efficiency], Efficiency]) -> None:
        """Change the constants. A repeated change has no further effect. Raises UserError as ``change``."""
        bounds = tuple(map(change, self._bounds))
        object.__setattr__(self, "constants", bounds if isinstance(self.constants, tuple) else bounds[1])

    def _check_types(self) -> None:
        bounds = self.constants if isinstance(self.constants, tuple) else (self.constants,) * 3
        legal = self.constants is None or (len(bounds) == 3 and all(isinstance(c, Efficiency) for c in bounds))
        number = isinstance(self.loader, int | float) and not isinstance(self.loader, bool)
        for name, fine, instead in (
            ("constants", legal, "give paceline.calibration.constants.efficiency(...), or three of them"),
            ("calibration", isinstance(self.calibration, Calibration | None), "give a paceline.prediction.Calibration"),
            ("loader", number, "give samples/s, or 0 if unknown"),
            ("overlap", isinstance(self.overlap, bool | None), "give True, False or None"),
            ("software", isinstance(self.software, str), "give ordinary or tuned"),
            ("attention", isinstance(self.attention, str), f"give one of {', '.join(KERNELS)}"),
            ("compile", isinstance(self.compile, bool), "give True or False"),
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

    def without(self, resource: Resource) -> Predictor:
        """Return a predictor in which a resource costs no time, so waits that it hid appear. Raises UserError if unknown."""
        check_name("resource", resource, RESOURCES)
        return replace(self, free=self.free | {resource})

    def changed(self, **choices: Any) -> Predictor:
        """Return a predictor with other values of its fields. Raises UserError as a new one does."""
        return replace(self, **choices)

    @property
    def uncorrected(self) -> Predictor:
        """The predictor without corrections by observed steps."""
        return self

    def observed_cluster(self, cluster: Cluster) -> Cluster:
        """Return the cluster with links at their observed speed. Without observations it is unchanged."""
        return cluster

    def model(self, workload: Workload, device: Device | None = None) -> StepModel:
        """Return the model of a workload's steps, before any correction by ratios.

        Args:
            device: the device whose hosts may have been observed.
        """
        return StepModel(
            workload=with_scores(workload, self.typical),
            constants=self._with_host(self.typical, device),
            calibration=self.calibration,
            overlap=self.overlaps,
            loader=self.loader,
            free=self.free,
        )

    def step(self, workload: Workload, cluster: Cluster, strategy: Strategy) -> Prediction:
        """Predict one training step of ``workload`` on every device of ``cluster`` under ``strategy``.

        Raises:
            UserError: the strategy has another number of workers than the cluster has devices; the device lacks the
                precision; the calibration is of another workload or compression.
        """
        return self._predicted(StepInputs.of(workload, cluster, strategy, self.typical, self.attention, self.year))

    def _predicted(self, inputs: StepInputs, known: bool = False) -> Prediction:
        """Return the prediction of checked inputs. ``known``: whether a step of this network on this device was observed."""
        steps = self._steps(inputs)
        return self._prediction(inputs, steps[1], self._range(inputs, steps), known)

    def many(self, workload: Workload, candidates: Sequence[Candidate]) -> Steps:
        """Return ``step_time_s`` and ``memory_bytes`` of very many strategies at once.

        A candidate is refused if the requested kernel of attention does not run on its device or in its precision. Candidates
        that a correction cannot distinguish share its factor. With a calibration, a free resource, or a divided network, they
        are predicted one by one, which takes longer (``planning.search.layouts`` prunes those).
        """
        if not isinstance(candidates, Sequence):
            raise UserError(f"candidates {shown(candidates)}", "give pairs of a Cluster and a Strategy")
        for candidate in candidates:
            if not isinstance(candidate, tuple) or len(candidate) != 2:
                raise UserError(f"candidate {shown(candidate)}", "give pairs of a Cluster and a Strategy")
            check_inputs(workload, *candidate)
            check_recompute(workload, candidate[1].parallelism)
        if self.attention:
            return self._many_attending(workload, candidates)
        return self._many(with_scores(workload, self.typical), candidates)

    def _many_attending(self, workload: Workload, candidates: Sequence[Candidate]) -> Steps:
        """Predict as ``many`` does, with a kernel of attention. Raises UserError if no candidate supports it."""
        refused: dict[int, UserError] = {}
        for index, candidate in enumerate(candidates):
            try:
                check_kernel(self.attention, workload, candidate[0].device, candidate[1].precision, self.year)
            except UserError as error:
                refused[index] = error
        if refused and len(refused) == len(candidates):
            raise refused[0]
        legal = [index for index in range(len(candidates)) if index not in refused]
        steps = self._many(with_scores(workload, self.typical), [candidates[i] for i in legal])
        return merged_steps((legal, steps), (list(refused), refused_steps([candidates[i] for i in refused], refused.values())))

    def _many(self, workload: Workload, candidates: Sequence[Candidate]) -> Steps:
        if self.calibration is not None or self.free:
            return Predicted(self, workload).steps(candidates)
        whole = [index for index, (_, strategy) in enumerate(candidates) if strategy.parallelism.whole]
        if len(whole) == len(candidates):
            return self._many_whole(workload, candidates)
        apart = set(whole)
        divided = [index for index in range(len(candidates)) if index not in apart]
        return merged_steps(
            (whole, self._many_whole(workload, [candidates[i] for i in whole])),
            (divided, self._many_divided(workload, [candidates[i] for i in divided])),
        )

    def _many_divided(self, workload: Workload, candidates: Sequence[Candidate]) -> Steps:
        """Predict as ``many`` does, for networks divided among several devices."""
        return OnMesh(self.model(workload)).steps(candidates)

    def _many_whole(self, workload: Workload, candidates: Sequence[Candidate]) -> Steps:
        """Predict as ``many`` does, for networks that each device holds whole."""
        return Batched(self.model(workload)).steps(candidates)

    def _steps(self, inputs: StepInputs) -> tuple[Step, Step, Step]:
        """Return the slowest, the expected and the fastest step; without bounds three times the same."""
        cluster, strategy = inputs.cluster, inputs.strategy
        model = self.model(inputs.workload, cluster.device)
        divided = not strategy.parallelism.whole
        passes = None if divided else model.passes(cluster.device, strategy)
        middle = mesh_step(model, cluster, strategy) if divided else model.step(cluster, strategy, passes)
        if not isinstance(self.constants, tuple) and self.calibration is None and strategy.description.format.spread is None:
            return middle, middle, middle

        def bound(constants: Efficiency, level: PayloadBound) -> Step:
            end = replace(model, constants=self._with_host(constants, cluster.device), level=level)
            if passes is None:
                return mesh_step(end, cluster, strategy)
            return end.step(cluster, strategy, self._scaled(passes, constants))

        low, _, high = self._bounds
        return bound(low, "high"), middle, bound(high, "low")

    def _with_host(self, constants: Efficiency, device: Device | None) -> Efficiency:
        """Return the constants with the observed speed of the device's host. Without observations they are unchanged."""
        return constants

    def _scaled(self, passes: PassTimes, constants: Efficiency) -> PassTimes | None:
        """Return the typical passes under other constants, if those change all layers by one factor; else None."""
        if constants is self.typical:
            return passes
        factor = constants.seconds_of(self.typical)
        return (passes[0].scaled(factor), passes[1].scaled(factor)) if factor else None

    def _range(self, inputs: StepInputs, steps: tuple[Step, Step, Step]) -> tuple[float, float]:
        """Return the ends of the step's range: 80 %, or the spread of three constants or of the calibration's repetitions."""
        slow, typical, fast = steps
        if self._fitted:
            least, most = fitted_factors(self.typical, inputs, typical)
            ends = fast.seconds * least, slow.seconds * most
            low_s, high_s = conformal_range(self.typical, inputs, typical.seconds, ends, known=False)
        else:
            spread_of_runs = 1.0 if self.calibration is None else 1 + self.calibration.spread
            low_s, high_s = fast.seconds / spread_of_runs, slow.seconds * spread_of_runs
        return max(low_s, typical.feed_s), high_s

    @property
    def _fitted(self) -> bool:
        """Return whether the constants were fitted, and neither measured for this job nor bounded by the user."""
        return self.calibration is None and not isinstance(self.constants, tuple)

    def _prediction(self, inputs: StepInputs, step: Step, range_s: tuple[float, float], known: bool) -> Prediction:
        """Return the figures of a step as a prediction."""
        workload, cluster, strategy = inputs.workload, inputs.cluster, inputs.strategy
        memory = step.memory()
        needed, available = sum(memory.values()), cluster.device.memory.value
        wire, dense, waited = step.wire_bytes, step.dense_wire_bytes, without_rounding(step.waited_s, step.seconds)
        missed = None if self.calibration is not None else missed_by(self.typical, inputs, known)
        return Prediction(
            workload=workload.name,
            strategy=strategy.to_json(),
            step_time_s=step.seconds,
            low_s=range_s[0],
            high_s=range_s[1],
            samples_per_s=strategy.global_batch_size / step.seconds if step.seconds else math.inf,
            compute_s=step.seconds - waited,
            comm_s=step.busy_s("network"),
            codec_s=step.busy_s("codec"),
            exposed_comm_s=waited,
            wire_bytes_per_device=wire,
            compression_ratio=max(1.0, dense / wire) if wire else 1.0,
            memory_bytes=needed,
            bottleneck=max(step.exposed, key=lambda name: step.exposed[name]),
            assumptions=lazy(
                lambda: (
                    *uneven_stages(step.stage_work_s, step.seconds),
                    *assumptions(
                        replace(inputs, strategy=measured_ratio(strategy, self.calibration)),
                        self.calibration,
                        needed,
                        self.overlaps,
                        self.loader,
                        self.typical,
                        missed,
                        self.free,
                    ),
                )
            ),
            timeline=lazy(step.events),
            cluster=described(cluster),
            memory=memory,
            fits=needed <= available,
            fit=fit_of(needed, cluster.device),
            software=str(self.software),
            attention=kernel_of(workload, cluster.device, strategy.precision, self.typical),
            held_out_error=None if missed is None else missed.mape,
            missing_bytes=max(0.0, needed - available),
            exposed={str(name): without_rounding(seconds, step.seconds) for name, seconds in step.exposed.items()},
        )


@final
@dataclass(frozen=True, slots=True)
class Predicted(OneByOne):
    """Evaluation by a predictor, with its calibration, corrections and free resources."""

    predictor: Predictor
    workload: Workload

    def figures(self, cluster: Cluster, strategy: Strategy) -> tuple[float, float]:
        """Return seconds and bytes of one prediction."""
        prediction = self.predictor.step(self.workload, cluster, strategy)
        return prediction.step_time_s, prediction.memory_bytes


ORDINARY = Predictor()
"""Predictor of ordinary software by the catalogue, the default everywhere."""


def predict(workload: Workload, cluster: Cluster, strategy: Strategy, *, predictor: Predictor = ORDINARY) -> Prediction:
    """Predict one training step, as ``predictor.step`` does. Raises UserError as that does."""
    return predictor.step(workload, cluster, strategy)


def described(cluster: Cluster) -> dict[str, Any]:
    """Describe a cluster's device, sizes and links by name."""
    return {
        "device": cluster.device.name,
        "devices_per_node": cluster.devices_per_node if cluster.even else cluster.node_text,
        "num_nodes": cluster.num_nodes,
        "intra_link": cluster.intra_link.name,
        "network": cluster.network.name if cluster.num_nodes > 1 else "none",
        **({"nic": cluster.nic.name} if cluster.nic else {}),
        **({"aggregation": cluster.aggregation.name} if cluster.aggregation else {}),
    }
