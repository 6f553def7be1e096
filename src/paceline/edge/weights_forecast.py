"""Forecast of fewer bits before any training: the whole network in other forms of weights, timed in turns with fp32."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.edge.kept_budget import limit
from paceline.errors import UserError
from paceline.slimming.latency.latency import Latency
from paceline.slimming.methods.block_weights import predicted_bytes
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.quantise import quantised
from paceline.slimming.methods.weight_forms import INT4, INT8, WeightForm
from paceline.slimming.slim import Slim, on_cpu
from paceline.units import format_bytes, format_seconds

SAMPLES = 4
"""Calibration inputs: times do not depend on the scales."""
EQUAL = 0.02
"""Difference of two times that is not called a difference."""
ROUNDS = 3
"""Timings from the start, with a copy of the whole network as control. On a busy machine the control's ratio, which should be
1, was 0.84 to 1.04, and one file's ratio 0.52 to 0.75 in one session: other programs empty the cache between two turns.
"""
LEAST_ERROR = 0.03
"""Least relative error of a ratio, of three idle rounds that agree by chance. An assumption."""


@dataclass(frozen=True, slots=True)
class WeightsForecast:
    """The whole network in a form of weights.

    Attributes:
        ratio: its latency / latency in fp32, timed in turns; 0: it cannot be quantised, for the reason ``why_not``.
        low, high: range of the ratio over ``ROUNDS``, with the error of a control.
        latency_s: seconds in fp32 now. ``file_bytes``: of the file. ``predicted_bytes``: before it was written.
        accuracy: share of the held-out labels that it predicts right; ``whole_accuracy``: in fp32. None: it is not trained.
    """

    form: WeightForm
    ratio: float
    low: float = 0.0
    high: float = 0.0
    latency_s: float = 0.0
    file_bytes: int = 0
    predicted_bytes: float = 0.0
    why_not: str = ""
    accuracy: float | None = None
    whole_accuracy: float | None = None

    def meets(self, budget: Budget) -> bool:
        """Return whether the form alone may meet the budget; False for a loss of accuracy, which is unknown before training."""
        return self._share(budget, self.low or self.ratio) <= 1.0

    def share(self, budget: Budget) -> float:
        """Return the part of the budget that the form alone takes; inf if it is unknown."""
        return self._share(budget, self.ratio)

    def surely_meets(self, budget: Budget) -> bool:
        """Return whether the form alone meets the budget over all its range."""
        return self._share(budget, self.high or self.ratio) <= 1.0

    def _share(self, budget: Budget, ratio: float) -> float:
        """Return the part of the budget that the form alone takes at a ratio; inf if it is unknown."""
        taken = {"latency": ratio * self.latency_s, "size": self.file_bytes, "speedup": ratio * budget.value}
        most = 1.0 if budget.kind == "speedup" else budget.value
        return taken[budget.kind] / most if self.ratio and budget.kind in taken else math.inf

    def text(self, budget: Budget) -> str:
        """Return the forecast as a sentence, which says how to take the form if it meets the budget alone."""
        form = str(self.form)
        if not self.ratio:
            return f"The whole network has no {form} file: {self.why_not}."
        said = f"The whole network in {form} is {self._speed()} here, timed in turns before any training"
        if budget.kind == "size":
            said += f", and has {format_bytes(self.file_bytes)}"
        if not self.meets(budget):
            return f"{said}{self._lost(', and ')}."
        take = f"`--weights {form}` writes whole.{self.form.file_name}.onnx"
        meets = f"meets {budget} alone" if self.surely_meets(budget) else f"may meet {budget} alone, within that range"
        unknown = " and measures its accuracy, which is unknown until then" if self.accuracy is None else ""
        return f"{said}: it {meets}, nothing removed{self._lost(', and ')}; {take}{unknown}."

    def _speed(self) -> str:
        spread = ""
        if self.low and self.high:
            spread = f" ({1 / self.high:.2f}x to {1 / self.low:.2f}x)"
        if abs(self.ratio - 1) <= EQUAL:
            return f"as fast as fp32{spread}"
        if self.ratio > 1:
            return f"slower than fp32, {self.ratio:.2f} times its latency"
        return f"{1 / self.ratio:.2f}x as fast as fp32{spread}"

    def _lost(self, before: str) -> str:
        if self.accuracy is None or self.whole_accuracy is None:
            return ""
        lost = 100 * (self.whole_accuracy - self.accuracy)
        return f"{before}{'loses' if lost >= 0 else 'gains'} {abs(lost):.2f} points of accuracy"

    def eased(self, budget: Budget, whole: float) -> Budget | None:
        """Return the budget that a smaller fp32 network needs to meet ``budget`` in this form; None if the form gains nothing,
        or meets it alone.

        Args:
            whole: the whole network's latency, or the bytes of its weights for a size.
        """
        if not self.ratio or budget.kind == "accuracy":
            return None
        if budget.kind == "size":
            allowed = budget.value * whole / self.file_bytes
            return Budget("size", allowed) if budget.value < allowed < whole else None
        asked = budget.value if budget.kind == "speedup" else whole / budget.value
        return Budget("speedup", asked * self.ratio) if self.ratio < 1 - EQUAL and asked * self.ratio > 1 + EQUAL else None

    def judged(self, accuracy: float, whole_accuracy: float) -> WeightsForecast:
        """Return the forecast with accuracies on the held-out samples."""
        return replace(self, accuracy=accuracy, whole_accuracy=whole_accuracy)


def weights_forecasts(slim: Slim, forms: Sequence[WeightForm] = ()) -> tuple[WeightsForecast, ...]:
    """Quantise the whole network with a few example inputs and time it in turns with fp32.

    Args:
        forms: () takes int8, and int4 for a network with matrix products.

    Returns:
        Forecasts; () for runtimes without these forms.
    """
    if slim.target.name != "onnxruntime":
        return ()
    inputs = slim.inputs
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        try:
            plain = slim.target.export(on_cpu(slim.model), inputs, place / "whole.onnx")
        except UserError as error:
            return tuple(WeightsForecast(form, 0.0, why_not=error.message) for form in forms or (INT8,))
        files, failed = dict[WeightForm, Path](), list[WeightsForecast]()
        for form in forms or (INT8, INT4):
            try:
                files[form] = quantised(plain, place / f"whole.{form.file_name}.onnx", [inputs] * SAMPLES, form)
            except UserError as error:
                if forms or form == INT8:
                    failed.append(WeightsForecast(form, 0.0, why_not=error.message))
        measured = list(_timed(slim, plain, files, inputs)) if files else []
        return (*measured, *failed)


def _timed(slim: Slim, plain: Path, files: Mapping[WeightForm, Path], inputs: tuple[Any, ...]) -> Iterator[WeightsForecast]:
    timed = {"whole": plain, "control": plain, **{str(form): file for form, file in files.items()}}
    rounds = [
        slim.target.latencies({name: (file, inputs) for name, file in timed.items()}, slim.threads) for _ in range(ROUNDS)
    ]
    whole_s = statistics.median(each["whole"].median_s for each in rounds)
    for form, file in files.items():
        ratio, low, high = ratio_range(rounds, str(form))
        size = predicted_bytes(plain, form)
        yield WeightsForecast(form, ratio, low, high, whole_s, file.stat().st_size, size)


def ratio_range(rounds: Collection[Mapping[str, Latency]], name: str) -> tuple[float, float, float]:
    """Return the median ratio of a latency to the whole network's, and its range.

    Each round has ``whole`` and ``control``, the same file: the largest deviation of their ratio from 1 widens the range.
    """
    ratios = [each[name].median_s / each["whole"].median_s for each in rounds]
    controls = [each["control"].median_s / each["whole"].median_s for each in rounds]
    error = max(LEAST_ERROR, *(abs(each - 1) for each in controls))
    return statistics.median(ratios), min(ratios) * (1 - error), max(ratios) * (1 + error)


def whole_form_note(form: WeightForm, budget: Budget, whole_s: float, clock: float, took_s: float, accuracy: float) -> str:
    """Return the latency and the accuracy of the whole network in a form, and whether it meets a budget of latency."""
    limit_s = limit(budget, whole_s, clock)
    alone = "" if limit_s is None else f", which {'meets' if took_s <= limit_s else 'misses'} {budget}"
    file = f"whole.{form.file_name}.onnx"
    return f"The whole network in {form} takes {format_seconds(took_s)}{alone}: accuracy {100 * accuracy:.2f} %, {file}."
