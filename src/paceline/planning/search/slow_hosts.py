"""Expected step of a layout if the speed of its host is unknown.

A prediction is a median, and its host is a usual one. Hosts that launch kernels more slowly delay layouts of short kernels and
leave others unchanged. So the layout with the shortest predicted step need not have the shortest expected one. The extra time
of a host for each kernel is taken as exponential. Its 90th percentile is that of held-out runs (``HeldOut.launch_s``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array
from paceline.calibration.constants import Efficiency
from paceline.hardware.device import Device
from paceline.prediction import StepPredictor
from paceline.prediction.answer.held_out_error import held_out
from paceline.prediction.layouts.batch import Candidate
from paceline.prediction.passes.host import host_launches, host_seconds
from paceline.prediction.step.costs import run_again
from paceline.strategy.recompute import Recompute
from paceline.workload.table import Workload


@dataclass(frozen=True, slots=True)
class SlowHosts:
    """Hosts that take an unknown time for each kernel of a workload.

    Attributes:
        extra_s: mean of the extra seconds for each kernel. 0: the host is known, or it launches no kernels.
    """

    workload: Workload
    constants: Efficiency
    extra_s: float

    @classmethod
    def of(cls, workload: Workload, predictor: StepPredictor) -> SlowHosts:
        """Return the hosts of predictions by ``predictor``. A calibration and records come from the user's own hosts."""
        plain = predictor.uncorrected
        e = plain.typical
        missed = held_out(e.level, "gpu") if plain is predictor and plain.fitted else None
        return cls(workload, e, missed.launch_s / math.log(10) if missed else 0.0)

    def launches(self, device: Device, precision: str, recomputation: Recompute) -> float:
        """Return the kernels of a micro batch that the host launches on all stages; 0 for devices without launches.

        Kernels of a forward pass that runs again count twice.
        """
        if not self.extra_s or not host_seconds(device, self.constants):
            return 0.0
        calls = host_launches(self.workload, self.constants, device, precision)
        again, _ = run_again(self.workload, recomputation, calls[0])
        return float(calls.sum() + again.sum())

    def expected(
        self,
        step_s: Array,
        device: Device,
        launches: Array | float,
        micro_batches: Array | int,
        stages: Array | int,
        virtual: Array | int,
    ) -> Array:
        """Return the mean seconds of steps over all hosts, from their predicted seconds; arrays that broadcast.

        The kernels of a step hide a host that is faster than they are. The result grows with ``step_s``, so it maps bounds
        to bounds.

        Args:
            launches: kernels of a micro batch on all stages.
            virtual: parts of the network on each stage.
        """
        host_s, count = host_seconds(device, self.constants), launches * np.asarray(micro_batches) / stages
        steady = virtual * np.asarray(micro_batches)
        busy = steady / (stages - 1 + steady)
        hidden = np.maximum(0.0, step_s * busy / np.maximum(count, 1.0) - host_s)
        extra: Array = count * self.extra_s * np.exp(-hidden / self.extra_s) / busy if self.extra_s else np.zeros_like(step_s)
        return step_s + extra

    def of_candidates(self, candidates: Sequence[Candidate], step_s: Array) -> Array:
        """Return the mean seconds of the steps of candidates, (candidates,)."""
        if not self.extra_s:
            return step_s
        expected = step_s.copy()
        groups: dict[tuple[str, str, Recompute], list[int]] = {}
        for index, (cluster, strategy) in enumerate(candidates):
            groups.setdefault((cluster.device.name, strategy.precision, strategy.parallelism.recomputation), []).append(index)
        for (_, precision, recomputation), members in groups.items():
            device = candidates[members[0]][0].device
            meshes = [candidates[i][1].parallelism for i in members]
            times, stages = np.array([(m.micro_batches, m.pipeline) for m in meshes], dtype=np.float64).T
            virtual = np.array([m.virtual_stages for m in meshes])
            launches = self.launches(device, precision, recomputation)
            expected[members] = self.expected(step_s[members], device, launches, times, stages, virtual)
        return expected
