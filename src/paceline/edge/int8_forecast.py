"""Forecast of int8 before any training: the whole network in int8, timed in turns with fp32."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

from paceline.edge.kept_budget import limit
from paceline.errors import UserError
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.quantise import to_int8
from paceline.slimming.slim import Slim, on_cpu
from paceline.units import format_seconds

WHOLE_INT8_FILE = "whole.int8.onnx"
SAMPLES = 4
"""Calibration inputs: times do not depend on the scales."""
EQUAL = 0.02
"""Difference of two times that is not called a difference."""
NEAR = 0.25
"""Distance from a budget of time that is not called met. Two measurements differed by 27 % once."""


@dataclass(frozen=True, slots=True)
class Int8Forecast:
    """The whole network in int8.

    Attributes:
        ratio: its latency / latency in fp32, timed in turns; 0: it cannot be quantised, for the reason ``why_not``.
        latency_s: seconds in fp32 now. ``file_bytes``: of the int8 file.
    """

    ratio: float
    latency_s: float = 0.0
    file_bytes: int = 0
    why_not: str = ""

    def meets(self, budget: Budget) -> bool:
        """Return whether int8 alone meets the budget; False for a loss of accuracy, which is unknown before training."""
        return self._share(budget) <= 1.0

    def _share(self, budget: Budget) -> float:
        """Return the part of the budget that int8 alone takes; inf if it is unknown."""
        taken = {"latency": self.ratio * self.latency_s, "size": self.file_bytes, "speedup": self.ratio * budget.value}
        most = 1.0 if budget.kind == "speedup" else budget.value
        return taken[budget.kind] / most if self.ratio and budget.kind in taken else math.inf

    def text(self, budget: Budget) -> str:
        """Return the forecast as a sentence, which says how to take int8 if it meets the budget alone."""
        if not self.ratio:
            return f"The whole network has no int8 file: {self.why_not}."
        how = f"{1 / self.ratio:.2f}x as fast as fp32"
        if abs(self.ratio - 1) <= EQUAL:
            how = "as fast as fp32"
        elif self.ratio > 1:
            how = f"slower than fp32, {self.ratio:.2f} times its latency"
        said = f"The whole network in int8 is {how} here, timed in turns before any training"
        if not self.meets(budget):
            return f"{said}."
        take = "`--int8` writes whole.int8.onnx and measures its accuracy, which is unknown until then"
        near = budget.kind != "size" and self._share(budget) > 1 - NEAR
        meets = f"may meet {budget} alone, as measured once" if near else f"meets {budget} alone"
        return f"{said}: it {meets}, nothing removed; {take}."


def int8_forecast(slim: Slim) -> Int8Forecast | None:
    """Quantise the whole network with a few example inputs and time it in turns with fp32; None for other runtimes."""
    if slim.target.name != "onnxruntime":
        return None
    inputs = slim.inputs
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        try:
            plain = slim.target.export(on_cpu(slim.model), inputs, place / "whole.onnx")
            quantised = to_int8(plain, place / "whole.int8.onnx", [inputs] * SAMPLES)
        except UserError as error:
            return Int8Forecast(0.0, why_not=error.message)
        found = slim.target.latencies({"whole": (plain, inputs), "int8": (quantised, inputs)}, slim.threads)
        whole_s = found["whole"].median_s
        return Int8Forecast(found["int8"].median_s / whole_s, whole_s, quantised.stat().st_size)


def whole_int8_note(budget: Budget, whole_s: float, clock: float, took_s: float, accuracy: float) -> str:
    """Return the latency and the accuracy of the whole network in int8, and whether it meets a budget of latency."""
    limit_s = limit(budget, whole_s, clock)
    alone = "" if limit_s is None else f", which {'meets' if took_s <= limit_s else 'misses'} {budget}"
    return (
        f"The whole network in int8 takes {format_seconds(took_s)}{alone}: accuracy {100 * accuracy:.2f} %, {WHOLE_INT8_FILE}."
    )
