"""Removal that keeps a budget: the small network is timed in turns with the whole one, or its file read, before training."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

from torch import nn

from paceline.errors import UserError
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.quantise import quantised
from paceline.slimming.methods.weight_forms import FP32, WeightForm
from paceline.slimming.slim import Slim, on_cpu

TRIES = 3
"""Most removals for one budget."""
MARGIN = 0.02
"""Share of the budget that a further removal leaves free. An assumption: how far repeated ratios differ was not measured."""


def shrunk(slim: Slim, form: WeightForm = FP32, goal: float | None = None) -> tuple[Slim, nn.Module, tuple[str, ...]]:
    """Shrink a network until its measured share of the whole network's latency, or its file, is within the budget.

    Neither depends on the weights, so no training is lost.

    Args:
        form: form of the small network's weights when it is measured.
        goal: share of the whole network's latency, or bytes of the file, that the form must meet; None: those of the budget.

    Returns:
        The ``Slim`` with the plan, the small network in eval mode, and a note if more was removed than the tables said.
    """
    small = slim.shrink().eval()
    is_size = slim.budget.kind == "size"
    aim = slim.goal if is_size else slim.goal / slim.whole.median_s
    goal, first, note = goal or aim, 0.0, ""
    for _ in range(TRIES):
        try:
            found = _file_bytes(slim, small, form) if is_size else _share(slim, small, form)
        except UserError:  # which the export at the end reports
            break
        first = first or found
        if found <= goal:
            break
        aim *= goal / found * (1 - MARGIN)
        tighter = slim.to(Budget("size", aim) if is_size else Budget("latency", aim * slim.whole.median_s))
        try:
            with warnings.catch_warnings():  # of what was not zero yet: the small network is fine-tuned
                warnings.simplefilter("ignore", UserWarning)
                slim, small = tighter, tighter.shrink().eval()
        except UserError:  # nothing more can be removed
            break
        what = "its file had" if is_size else "the network measured"
        note = f"After the removal {what} {first / goal:.2f} times the budget, so more was removed."
    return slim, small, (note,) if note else ()


def _share(slim: Slim, small: nn.Module, form: WeightForm) -> float:
    """Return the latency of the small network in a form / latency of the whole network, timed in turns."""
    if form == FP32:
        found = slim.latency({"whole": slim.model, "small": small})
        return found["small"].median_s / found["whole"].median_s
    with tempfile.TemporaryDirectory() as directory:
        whole = slim.target.export(on_cpu(slim.model), slim.inputs, Path(directory) / "whole.onnx")
        file = _file(slim, small, form, Path(directory))
        times = slim.target.latencies({"whole": (whole, slim.inputs), "small": (file, slim.inputs)}, slim.threads)
        return times["small"].median_s / times["whole"].median_s


def _file_bytes(slim: Slim, small: nn.Module, form: WeightForm) -> float:
    """Return the bytes of the small network's file in a form."""
    with tempfile.TemporaryDirectory() as directory:
        return float(_file(slim, small, form, Path(directory)).stat().st_size)


def _file(slim: Slim, small: nn.Module, form: WeightForm, directory: Path) -> Path:
    file = slim.target.export(on_cpu(small), slim.inputs, directory / f"small{slim.target.suffix}")
    return file if form == FP32 else quantised(file, directory / "formed.onnx", [slim.inputs], form)


def limit(budget: Budget, whole_s: float, clock: float) -> float | None:
    """Return the latency that a budget allows at the machine's present speed; None for a size or an accuracy.

    Args:
        whole_s: the whole network now. ``clock``: the same relative to before training.
    """
    return {"latency": budget.value * clock, "speedup": whole_s / budget.value}.get(budget.kind)
