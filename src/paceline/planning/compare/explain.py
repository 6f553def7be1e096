"""``explain(...)``: the bottleneck of a step, the next one, its scaling, and a comparison with a measured run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.chrome_trace import chrome_trace
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.compare.layout_view import LayoutView, layout_view
from paceline.planning.compare.scaling import curves, scaling
from paceline.prediction import ORDINARY, Prediction, StepPredictor
from paceline.prediction.bottleneck import ResourceSpeedup, resource_speedups
from paceline.prediction.transports import figures_by_transport, steps_by_transport
from paceline.record import Event, RunRecord
from paceline.rundir import RunDir
from paceline.strategy import Strategy
from paceline.units import format_seconds
from paceline.workload.table import Workload


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A prediction, and the resources that its step waits for.

    Attributes:
        speedups: the step without the time of each resource, the resource with the longest wait first.
        scaling: predictions of the same strategy on other numbers of devices, by kind of scaling.
        available: bytes of memory on a device.
        by_transport: the step over ``RDMA`` and over ``TCP``, if the network gives only its speed.
        layout: data for pictures of a divided network; None if each device holds all of it.
        measured, measured_timeline: a run of the same network and compression, if the user named one.
    """

    prediction: Prediction
    speedups: tuple[ResourceSpeedup, ...]
    scaling: Mapping[str, Sequence[Prediction]]
    available: float
    layout: LayoutView | None = field(default=None, repr=False)
    by_transport: Mapping[str, Prediction] = field(default_factory=dict, repr=False)
    measured: RunRecord | None = None
    measured_timeline: tuple[Event, ...] = field(default=(), repr=False)

    @property
    def waits(self) -> list[tuple[str, float]]:
        """Seconds of the step by resource, the longest wait first. They sum to the step."""
        return sorted(((k, v) for k, v in self.prediction.exposed.items() if v > 0), key=lambda item: -item[1])

    @property
    def path(self) -> str:
        """The critical path in words."""
        return self.prediction.critical_path

    @property
    def sentence(self) -> str:
        """Answer in two sentences."""
        p, worst = self.prediction, self.speedups[0]
        share = p.exposed.get(worst.resource, 0.0) / p.step_time_s
        return (
            f"{worst.resource} is the bottleneck: the step waits for it {share:.0%} of the time. If it took no time, a step "
            f"would take {format_seconds(worst.step_time_s)} ({worst.speedup:.3g}x faster), and the next bottleneck would be "
            f"{worst.bottleneck}."
        )

    def speedup_text(self, resource: str) -> str:
        """Format as ``1.8x, then network``; empty for a resource that the step does not wait for."""
        saved = next((r for r in self.speedups if r.resource == resource), None)
        return f"{saved.speedup:.3g}x, then {saved.bottleneck}" if saved else ""

    def trace(self) -> dict[str, Any]:
        """Return the predicted and the measured step as a Chrome trace."""
        timelines = {"predicted": self.prediction.timeline}
        return chrome_trace({**timelines, **({"measured": self.measured_timeline} if self.measured_timeline else {})})

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict: the prediction and its explanation."""
        return {
            **self.prediction.to_json(),
            "critical_path": self.path,
            "if_gone": [
                {"resource": r.resource, "step_time_s": r.step_time_s, "speedup": r.speedup, "bottleneck": r.bottleneck}
                for r in self.speedups
            ],
            "by_transport": figures_by_transport(self.by_transport),
            "scaling": curves(self.scaling),
            "measured": self.measured.to_json() if self.measured else None,
        }


def explain(
    workload: Workload,
    cluster: Cluster,
    strategy: Strategy,
    run: str = "",
    *,
    scale: bool = True,
    predictor: StepPredictor = ORDINARY,
) -> Explained:
    """Predict a step, and find the resources that it waits for.

    Args:
        run: a run directory, whose measured step is compared with the predicted one.
        scale: whether to predict other numbers of devices too.

    Raises:
        UserError: as ``Predictor.step``; no such run, or no run of this network.
    """
    measured, timeline = _measured(run, workload, strategy) if run else (None, ())
    prediction = predictor.step(workload, cluster, strategy)
    return Explained(
        prediction=prediction,
        speedups=resource_speedups(predictor, workload, cluster, strategy, prediction),
        scaling=scaling(workload, cluster, strategy, predictor) if scale else {},
        available=cluster.device.memory.value,
        layout=layout_view(workload, cluster, strategy, predictor),
        by_transport=steps_by_transport(predictor, workload, cluster, strategy),
        measured=measured,
        measured_timeline=timeline,
    )


def _measured(run: str, workload: Workload, strategy: Strategy) -> tuple[RunRecord, tuple[Event, ...]]:
    """Return the run of this network with this compression; without one, its first run."""
    contents = RunDir(Path(run)).read(partial=True)
    own = {label: r for label, r in contents.records.items() if r.workload == workload.name}
    if not own:
        there = ", ".join(sorted({r.workload for r in contents.records.values()})) or "no run"
        raise UserError(f"{run} has no run of {workload.name}; it has {there}", "name the network as it was trained")
    same = [label for label, r in own.items() if r.strategy.get("compression") == strategy.gradient_exchange.compression.name]
    label = (same or list(own))[0]
    return own[label], contents.measured.get(label, own[label].timeline)
