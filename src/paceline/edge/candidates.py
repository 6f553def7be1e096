"""Networks that may meet a budget, measured side by side: smaller, with fewer bits, or both."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.edge.evaluation import held_out_on_file
from paceline.edge.kept_budget import limit
from paceline.edge.weights_forecast import WeightsForecast
from paceline.errors import UserError
from paceline.slim_record import BOTH, BOTH_EASED, FEWER_BITS, SMALLER, Candidate, SlimMeasurement
from paceline.slimming.latency.latency import Latency
from paceline.slimming.methods.block_weights import predicted_bytes
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.quantise import quantised
from paceline.slimming.methods.weight_forms import FP32, WeightForm
from paceline.slimming.slim import Slim
from paceline.slimming.slim_plan import SlimPlan
from paceline.training.runs.data import Dataset

CALIBRATION = 128
"""Number of samples for the scales of int8."""


@dataclass(frozen=True)
class FormFile:
    """A network's file in a form of weights.

    Attributes:
        way: one of ``WAYS``. ``model``: the network in fp32.
    """

    way: str
    form: WeightForm
    file: Path
    model: nn.Module
    predicted_bytes: float

    @property
    def name(self) -> str:
        """Unique name among the files of a run."""
        return f"{self.way} {self.form}"


def calibration(data: Dataset) -> list[tuple[Any, ...]]:
    """Return single training samples for the scales of int8."""
    every = max(1, len(data.train_x) // CALIBRATION)
    return [(data.train_x[number : number + 1],) for number in range(0, len(data.train_x), every)][:CALIBRATION]


def form_files(
    forms: Sequence[WeightForm],
    plain: Mapping[str, tuple[Path, nn.Module]],
    eased: Mapping[WeightForm, tuple[Path, nn.Module]],
    data: Dataset,
    drafts: Path,
) -> tuple[list[FormFile], list[str]]:
    """Write files in each form: ``whole.int4.onnx``, ``model.int4.onnx`` of the slimmed network, ``both.int4.onnx``.

    Args:
        plain: fp32 file and network of ``whole`` and ``model``. ``eased``: those of a wider network for a form.

    Returns:
        The files, and reasons why a form has none, which do not stop a run.
    """
    files, notes = list[FormFile](), list[str]()
    samples = calibration(data) if forms else []
    for form in forms:
        ways = [(FEWER_BITS, "whole", plain["whole"]), (BOTH, "model", plain["model"])]
        ways += [(BOTH_EASED, "both", eased[form])] if form in eased else []
        for way, stem, (file, model) in ways:
            try:
                written = quantised(file, drafts / f"{stem}.{form.file_name}.onnx", samples, form)
            except UserError as error:
                note = f"There is no {form} file: {error.message}."
                notes += [note] if note not in notes else []
                continue
            files.append(FormFile(way, form, written, model, predicted_bytes(file, form)))
    return files, notes


def measured_candidates(
    files: Sequence[FormFile],
    smaller: tuple[Path, SlimMeasurement, float],
    times: Mapping[str, Latency],
    budget: Budget,
    clock: float,
    data: Dataset,
) -> Iterator[Candidate]:
    """Judge each file against the budget and on the held-out samples.

    Args:
        smaller: file, measurements and predicted bytes of the slimmed network in fp32.
        times: latencies of ``whole`` and of each file by its name. ``clock``: as of ``limit``.
    """
    whole_s = times["whole"].median_s
    file, slimmed, size = smaller
    yield Candidate(SMALLER, FP32.name, file.name, slimmed, size, meets(budget, slimmed, whole_s, clock))
    for each in files:
        time, parameters = times[each.name], sum(one.numel() for one in each.model.parameters())
        quality = held_out_on_file(each.file, data)
        found = SlimMeasurement(time.median_s, time.low_s, time.high_s, parameters, each.file.stat().st_size, *quality)
        met = meets(budget, found, whole_s, clock)
        yield Candidate(each.way, str(each.form), each.file.name, found, each.predicted_bytes, met)


def meets(budget: Budget, measured: SlimMeasurement, whole_s: float, clock: float) -> str:
    """Return whether a measured network meets a budget: ``yes`` or ``no``; empty for a loss of accuracy."""
    if budget.kind == "accuracy":
        return ""
    limit_s = limit(budget, whole_s, clock)
    within = measured.file_bytes <= budget.value if limit_s is None else measured.latency_s <= limit_s
    return "yes" if within else "no"


def exported(slim: Slim, model: nn.Module, form: WeightForm, drafts: Path) -> Path:
    """Export a less slimmed network in fp32, from which its form is written."""
    return slim.target.export(model, slim.inputs, drafts / f"both {form.file_name}.onnx")


def kept_with(plan: SlimPlan, model: nn.Module, form: WeightForm, drafts: Path) -> list[Path]:
    """Write plan and weights of a less slimmed network."""
    place, weights = (drafts / f"both.{form.file_name}.{what}" for what in ("plan.json", "weights.pt"))
    plan.save(place)
    torch.save(model.state_dict(), weights)
    return [place, weights]


def judged(
    forecasts: Sequence[WeightsForecast], slim: Slim, whole: nn.Module, accuracy: float, data: Dataset
) -> Iterator[WeightsForecast]:
    """Return forecasts with the accuracy of the trained network in their forms.

    Args:
        accuracy: of the whole network in fp32 on the held-out samples.
    """
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        plain = slim.target.export(whole, slim.inputs, place / "whole.onnx") if forecasts else place
        for each in forecasts:
            file = quantised(plain, place / "formed.onnx", calibration(data), each.form)
            yield each.judged(held_out_on_file(file, data)[0], accuracy)
