"""Predicted speeds of live jobs before they run, corrected by the reports of all jobs."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.errors import UserError
from paceline.prediction import Predictor, StepPredictor
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.launch import Launch
from paceline.scheduling.live.journal import LiveRow, Report
from paceline.scheduling.live.nodes import UNKNOWN, LiveNodes
from paceline.scheduling.live.outlook import PredictedOutlook, ReportedOutlook
from paceline.scheduling.live.runner import Snapshot
from paceline.scheduling.speeds.expected_speed import EstimatePool
from paceline.scheduling.speeds.predicted_jobs import Network, Predictions
from paceline.scheduling.speeds.predicted_speed import PredictedSpeed
from paceline.scheduling.state import Outlook
from paceline.training.runs.training_run import TrainingRun
from paceline.workload import Workload

MOST_SHOWN = 0.95
"""Largest share of a step that an exchange can take; computing takes some time."""


@dataclass(frozen=True, slots=True)
class _Trained:
    """Network and strategy that a job trains. Jobs with equal steps share ``name``."""

    name: str
    network: Network


class LivePredictions:
    """Expected speed of live jobs.

    A job is predicted if the device of some nodes and its network are known, from its command or its table. For other jobs only
    their own reports count.

    Args:
        nodes: devices of the nodes, and the network between them.
        run_of: parser of the words after ``paceline train``; raises UserError for wrong words.
        predictor: predictor; None: ordinary software and the built-in constants.
    """

    def __init__(
        self, nodes: LiveNodes, run_of: Callable[[Sequence[str]], TrainingRun], predictor: StepPredictor | None = None
    ) -> None:
        self._nodes, self._run_of, self._predictor = nodes, run_of, predictor or Predictor()
        self._trained: dict[tuple[object, ...], _Trained | None] = {}
        self._kept: dict[tuple[object, ...], _Surfaces] = {}

    def __call__(self, live: Snapshot, fleet: Fleet) -> list[Outlook]:
        """Return an outlook for each of ``live.rows``. Reports of jobs that are over count too."""
        surfaces = self._surfaces(fleet, [*live.rows, *live.past])
        pool = EstimatePool(surfaces.of)
        for row in (*live.rows, *live.past):
            self._teach(pool, row, surfaces)
        return [self._outlook(pool, row, surfaces) for row in live.rows]

    def check(self, jobs: Iterable[Launch]) -> None:
        """Raise UserError for wrong words of a ``paceline train`` command, or an unknown network."""
        for launch in jobs:
            self._trained_network(launch)

    def unpredicted(self, rows: Sequence[LiveRow], fleet: Fleet) -> dict[str, str]:
        """Reasons of jobs that are not predicted, by name. Raises UserError for an unknown network."""
        surfaces = self._surfaces(fleet, rows)
        whys = {}
        for row in rows:
            trained = self._trained_network(row.launch)
            if trained is None:
                whys[row.name] = "its network is unknown"
            elif not surfaces.holding(trained.name, row.launch):
                whys[row.name] = surfaces.why_not(trained.name, row.launch)
        return whys

    def _trained_network(self, launch: Launch) -> _Trained | None:
        """Return the network that a job trains; None if unknown."""
        key = launch.command, launch.job.model
        if key not in self._trained:
            self._trained[key] = self._found(launch)
        return self._trained[key]

    def _found(self, launch: Launch) -> _Trained | None:
        if not launch.is_paceline and not launch.job.model:
            return None
        try:
            run = self._run_of(launch.command[2:]) if launch.is_paceline else None
            if run is not None and not launch.job.model and run.code.get("model"):
                return None  # the user's code is not read here
            model = launch.job.model or (run.model if run else "")
            workload = Workload.named(model)
        except UserError as error:
            raise UserError(f"job {launch.name}: {error.message}", error.fix) from error
        if run is None:
            return _Trained(model, Network(workload))
        stated = run.strategy.to_json().items()
        choices = tuple((name, value) for name, value in stated if name not in ("world_size", "global_batch_size"))
        return _Trained(f"{model} {json.dumps(choices)}", Network(workload, choices))

    def _surfaces(self, fleet: Fleet, rows: Sequence[LiveRow]) -> _Surfaces:
        """Return the predicted steps, cached as long as nodes and networks are the same."""
        networks: dict[str, Network] = {}
        batches: dict[str, set[int]] = defaultdict(set)
        for row in rows:
            if trained := self._trained_network(row.launch):
                networks[trained.name] = trained.network
                batches[trained.name] |= {max(row.launch.global_batch // size, 1) for size in row.launch.sizes}
        key = fleet, *((name, frozenset(batches[name])) for name in sorted(batches))
        if key not in self._kept:
            self._kept = {key: _Surfaces(fleet, Predictions(fleet, self._predictor, networks), batches)}
        return self._kept[key]

    def _teach(self, pool: EstimatePool, row: LiveRow, surfaces: _Surfaces) -> None:
        trained = self._trained_network(row.launch)
        if trained is None:
            return
        if row.phase == "done" and (steps := row.progress.get("step", 0.0)):
            pool.end(trained.name, steps * row.launch.global_batch)
        for report in reversed(row.reports):  # the last report of a size counts
            device = self._device(report)
            if surface := surfaces.get(trained.name, device):
                pool.see(trained.name, device, *_reported_step(report, row.launch.global_batch, surface))

    def _device(self, report: Report) -> str:
        """Return the device of a placement; ``UNKNOWN`` if its nodes have several."""
        devices = {self._nodes.kind(node).device for node in report.placement}
        return devices.pop() if len(devices) == 1 else UNKNOWN

    def _outlook(self, pool: EstimatePool, row: LiveRow, surfaces: _Surfaces) -> Outlook:
        trained = self._trained_network(row.launch)
        devices = surfaces.holding(trained.name, row.launch) if trained else ()
        if trained is None or not devices:
            return ReportedOutlook(row)
        left = row.launch.samples_left(row.progress)
        if math.isnan(left) and (total := pool.total(trained.name)):
            done = row.progress.get("step", 0.0) * row.launch.global_batch
            left = max(total - done, float(row.launch.global_batch))  # a job that outlasts such jobs may end at any step
        times = {device: pool.times(trained.name, device) for device in devices}
        spread = max(pool.spread(trained.name, device) for device in devices)
        most = {device: surfaces.of(trained.name, device).local_range[1] for device in devices}
        return PredictedOutlook(row, surfaces.fleet, times, most, left, spread)


class _Surfaces:
    """Predicted steps by network and device."""

    def __init__(self, fleet: Fleet, predictions: Predictions, batches: Mapping[str, Collection[int]]) -> None:
        """Create the table. ``batches``: batches of a device that jobs train with, by network."""
        self.fleet, self._predictions, self._batches = fleet, predictions, batches
        self._found: dict[tuple[str, str], PredictedSpeed | UserError] = {}

    def _surface(self, name: str, device: str) -> PredictedSpeed | UserError:
        key = name, device
        if key not in self._found:
            try:
                if device == UNKNOWN or device not in self.fleet.types:
                    raise UserError("the device of its nodes is unknown")
                group = self.fleet.groups[self.fleet.types.index(device)]
                batches = self._batches[name]
                self._found[key] = self._predictions.surface(name, group, 1, max(batches), batches)
            except UserError as error:
                self._found[key] = error
        return self._found[key]

    def get(self, name: str, device: str) -> PredictedSpeed | None:
        """Return the steps of a network on a device; None if it cannot be predicted."""
        found = self._surface(name, device)
        return None if isinstance(found, UserError) else found

    def of(self, name: str, device: str) -> PredictedSpeed:
        """Return the steps of a network on a device where it can be predicted."""
        found = self.get(name, device)
        assert found is not None
        return found

    def holding(self, name: str, launch: Launch) -> tuple[str, ...]:
        """Return the devices that hold the job on some of its sizes."""
        local = launch.global_batch // launch.sizes[-1]
        speeds = {device: self.get(name, device) for device in self._allowed(launch)}
        return tuple(device for device, speed in speeds.items() if speed is not None and local <= speed.local_range[1])

    def why_not(self, name: str, launch: Launch) -> str:
        """Return why no device holds the job."""
        allowed = self._allowed(launch)
        if not allowed:
            return f"it runs on {', '.join(launch.job.device_types)}, and no node has such"
        found = self._surface(name, allowed[0])
        if isinstance(found, UserError):
            return found.message
        return f"{launch.global_batch} samples a step do not fit {launch.sizes[-1]} {allowed[0]}"

    def _allowed(self, launch: Launch) -> list[str]:
        return [device for device in self.fleet.types if not launch.job.device_types or device in launch.job.device_types]


def _reported_step(report: Report, batch: int, surface: PredictedSpeed) -> tuple[tuple[int, int, int], tuple[float, float]]:
    """Return (nodes, devices, local batch) of reports, and seconds of (step, exposed part of its exchange).

    If a job does not report its exchange, the predicted share is assumed.
    """
    devices, nodes = report.devices, len(report.placement)
    local, step_s = max(batch // devices, 1), batch / report.samples_per_s
    shown_s = report.exchange_s
    if devices == 1:
        shown_s = 0.0
    elif shown_s is None:
        step, compute = surface.step_s(np.array([nodes]), np.array([devices]), np.array([local]))
        shown_s = step_s * float(1 - compute[0] / step[0])
    return (nodes, devices, local), (step_s, min(max(shown_s, 0.0), MOST_SHOWN * step_s))
