"""Baselines: simpler predictors of the same rows from the same information.

Linear scaling keeps the throughput per device of the smallest visible system. The datasheet ratio takes another device's
throughput times the ratio of peaks, of bandwidths, or of their geometric mean. Constant MFU takes the median share of the peak.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from paceline.hardware.device import Device
from paceline.validation.case import Case, HoldOut
from paceline.validation.pollux import PolluxForm


def per_device(case: Case) -> float:
    """Return measured samples per second of one device."""
    return case.samples / case.step_s / case.keys.devices


def mfu(case: Case) -> float:
    """Return the model FLOPs utilisation: FLOPs of forward and backward per second of one device, divided by its peak."""
    return per_device(case) * case.workload.flops_per_sample / _peak(case)


class Baselines:
    """Predictors that know ``visible`` rows and, for figures of another device or model, also ``held_in`` ones.

    Args:
        visible: rows that may be seen.
        every: all rows; of these, rows of other chips (``hold_out`` device) or models (``model``) are held in.
    """

    def __init__(self, visible: Sequence[Case], every: Sequence[Case], hold_out: HoldOut) -> None:
        self._hold_out = hold_out
        held_in = visible if hold_out == "scale" else every
        self._same = _grouped(visible, "model", "device")
        self._of_model, self._of_device = _grouped(held_in, "model"), _grouped(held_in, "device")
        self._forms: dict[tuple[str, ...], PolluxForm | None] = {}
        self._mfu: dict[tuple[str, ...], float | None] = {}

    def __call__(self, case: Case) -> dict[str, float]:
        """Return seconds of a step by the name of the baseline, without baselines that lack data for the row."""
        seconds_by_name = dict(case.published)
        if (rate := self._linear(case)) is not None:
            seconds_by_name["linear scaling"] = self._seconds(case, rate)
        if (share := self._constant_mfu(case)) is not None:
            seconds_by_name["constant MFU"] = self._seconds(case, share * _peak(case) / case.workload.flops_per_sample)
        seconds_by_name.update({name: self._seconds(case, rate) for name, rate in self._datasheet(case).items()})
        form = self._pollux(case)
        if form is not None and (seconds := form(case)) is not None:
            seconds_by_name["Pollux form"] = seconds
        return seconds_by_name

    @staticmethod
    def _seconds(case: Case, rate: float) -> float:
        return case.samples / (rate * case.keys.devices)

    def _linear(self, case: Case) -> float | None:
        rows = self._similar_rows(case)
        if not rows:
            return None
        smallest = min(row.keys.devices for row in rows)
        return per_device(_nearest_batch(case, [row for row in rows if row.keys.devices == smallest]))

    def _similar_rows(self, case: Case) -> Sequence[Case]:
        """Return visible rows of the same model and device, preferably with equal sample length and of the same system."""
        rows = _same_sample(case, self._same.get((case.keys.model, case.keys.device), ()))
        return [row for row in rows if row.keys.system == case.keys.system] or rows

    def _constant_mfu(self, case: Case) -> float | None:
        keys = case.keys
        key = (keys.model, keys.device)
        if key not in self._mfu:
            if self._hold_out == "device":
                rows: Iterable[Case] = (row for row in self._of_model.get((keys.model,), ()) if _chip(row) != _chip(case))
            elif self._hold_out == "model":
                rows = (row for row in self._of_device.get((keys.device,), ()) if row.keys.model != keys.model)
            else:
                rows = self._same.get((keys.model, keys.device), ())
            shares = [mfu(row) for row in rows]
            self._mfu[key] = median(shares) if shares else None
        return self._mfu[key]

    def _datasheet(self, case: Case) -> Mapping[str, float]:
        others: Sequence[Case] = [row for row in self._of_model.get((case.keys.model,), ()) if _chip(row) != _chip(case)]
        if not others or self._hold_out != "device":
            return {}
        others = _same_sample(case, others)
        scale = min(abs(math.log(row.keys.devices / case.keys.devices)) for row in others)
        equal = [row for row in others if abs(math.log(row.keys.devices / case.keys.devices)) <= scale + 1e-9]
        near = min(equal, key=lambda row: abs(math.log(_peak(row) / _peak(case))))
        row = _nearest_batch(case, [r for r in equal if r.keys.device == near.keys.device])
        peaks = _peak(case) / _peak(row)
        bandwidths = _device(case).memory_bandwidth.value / _device(row).memory_bandwidth.value
        ratios = {"datasheet peak": peaks, "datasheet bandwidth": bandwidths, "datasheet mean": math.sqrt(peaks * bandwidths)}
        return {name: per_device(row) * ratio for name, ratio in ratios.items()}

    def _pollux(self, case: Case) -> PolluxForm | None:
        """Return the form fitted to the visible rows; None for several nodes if no visible row has several."""
        work, several = f"{case.workload.flops_per_sample:.6g}", str(case.keys.nodes > 1)
        key = (case.keys.model, case.keys.device, case.keys.system, work, several)
        if key not in self._forms:
            rows = self._similar_rows(case)
            between = any(row.keys.nodes > 1 for row in rows) or case.keys.nodes == 1
            self._forms[key] = PolluxForm.fit(rows) if between else None
        return self._forms[key]


def _grouped(rows: Iterable[Case], *names: str) -> dict[tuple[str, ...], list[Case]]:
    out: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for row in rows:
        out[tuple(getattr(row.keys, name) for name in names)].append(row)
    return out


def _same_sample(case: Case, rows: Sequence[Case]) -> Sequence[Case]:
    """Return the rows with equal work per sample (equal sequence length), else all."""
    work = case.workload.flops_per_sample
    return [row for row in rows if math.isclose(row.workload.flops_per_sample, work)] or rows


def _device(case: Case) -> Device:
    return case.setting.cluster.device


def _chip(case: Case) -> str:
    return _device(case).chip


def _peak(case: Case) -> float:
    return _device(case).peak(case.precision).value


def _batch(case: Case) -> float:
    return case.samples / case.keys.devices


def _nearest_batch(case: Case, rows: Sequence[Case]) -> Case:
    return min(rows, key=lambda row: abs(math.log(_batch(row) / _batch(case))))
