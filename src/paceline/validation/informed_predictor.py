"""Predictor to validate, corrected by the visible rows as by a user's own records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from paceline.calibration.constants import ONE_DEVICE, SEVERAL_DEVICES, SEVERAL_NODES, Efficiency, efficiency
from paceline.prediction import Observation, Prediction, Predictor, StepPredictor, fit
from paceline.validation.case import Case, HoldOut, Info, Software
from paceline.validation.score import Estimate

IN_A_NODE = 8
"""Devices of a node, as almost all measured systems have."""


class InformedPredictor:
    """A ``Predictor`` with constants fitted without the held-out rows, corrected by visible rows.

    Args:
        visible: returns the visible rows for a case, the same object for cases with equal rows.
        info: description of the visible rows.
        hold_out: kind of rows excluded from the fit of constants for a case.
    """

    def __init__(self, visible: Callable[[Case], Sequence[Case]], info: Info, hold_out: HoldOut) -> None:
        self._visible, self._info, self._hold_out = visible, info, hold_out
        self._predictors: dict[tuple[int, str, str, str, float, str, bool | None], tuple[Sequence[Case], StepPredictor]] = {}

    def __call__(self, case: Case) -> Estimate:
        """Return the estimate of a row."""
        step = self.prediction(case)
        return Estimate(
            step_s=step.step_time_s,
            low_s=step.low_s,
            high_s=step.high_s,
            sync_s=step.exposed_comm_s,
            memory_bytes=case.held_bytes + (step.allocated_bytes if case.memory_counts == "allocated" else step.memory_bytes),
        )

    def prediction(self, case: Case) -> Prediction:
        """Return the whole prediction of a row."""
        return self._predictor(case).step(case.workload, case.setting.cluster, case.setting.strategy)

    def held_out(self, case: Case) -> str:
        """Return the chip, the workload or the scale that is excluded from the fit of constants.

        Rows on several nodes are held out if all rows within one node are visible.
        """
        if self._hold_out == "device":
            return case.setting.cluster.device.chip
        if self._hold_out == "model":
            return case.workload.name
        if self._info.kind == "one_node" or self._info.limit >= IN_A_NODE:
            return SEVERAL_NODES
        return ONE_DEVICE if case.keys.devices == 1 else SEVERAL_DEVICES

    def _predictor(self, case: Case) -> StepPredictor:
        rows, without = self._visible(case), self.held_out(case)
        key = (id(rows), case.software, case.framework, case.attention, case.year, without, case.overlap)
        if key not in self._predictors:
            plain = Predictor(
                constants=_efficiency(case.software, without).of_year(case.year),
                framework=case.framework,
                attention=case.attention,
                overlap=case.overlap,
            )
            seen = [_observation(row) for row in rows]
            corrected = fit(seen, plain) if seen else plain
            self._predictors[key] = (rows, corrected)  # rows stay alive: no id is used twice
        return self._predictors[key][1]


@cache
def _efficiency(software: Software, without: str) -> Efficiency:
    """Return the constants of a software level that were fitted without ``without``."""
    typical = efficiency("ordinary" if software == "ordinary" else "tuned", without)
    if software == "eager":
        typical = replace(typical, launch_s=efficiency("ordinary", without).launch_s)
    return typical


def _observation(row: Case) -> Observation:
    """Return a row as a measured step."""
    setting = row.setting
    return Observation(
        workload=row.workload, cluster=setting.cluster, strategy=setting.strategy, step_s=row.step_s, sync_s=row.sync_s
    )
