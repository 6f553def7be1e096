"""Step time model of Pollux, fitted to the visible rows (Qiao et al. 2021, Pollux, OSDI, section 4.1, equations 9 to 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array
from paceline.validation.case import Case

MOST_BEYOND = 20.0
"""Factor of the seconds in sight beyond which a form's figure says only that it had too few rows."""


@dataclass(frozen=True, slots=True)
class PolluxForm:
    """``T = (Tc^g + Tn^g)^(1/g)``, ``Tc = a + b m`` for m samples a device, ``Tn = c + d (K - 2)`` for K > 1 devices,
    with other ``c, d`` inside a node and between nodes; seven parameters."""

    parameters: tuple[float, ...]
    seen_s: tuple[float, float]

    @classmethod
    def fit(cls, rows: Sequence[Case]) -> PolluxForm | None:
        """Fit log step times by least squares; None for fewer shapes (batch, devices, nodes) than parameters.

        There are seven parameters, or five if no visible row has several nodes. Rows of one device leave the network unknown.
        """
        facts = np.array([_facts(row) for row in rows]).reshape(-1, 3)
        _, devices, nodes = facts.T
        if len(np.unique(facts, axis=0)) < 5 + 2 * np.any(nodes > 1) or not np.any(devices > 1):
            return None
        from scipy.optimize import least_squares

        measured = np.array([row.step_s for row in rows])
        typical = float(np.median(measured))
        batch = float(np.median(facts[:, 0]))
        start = np.array([0.3 * typical, 0.7 * typical / batch, *([0.1 * typical, 0.01 * typical] * 2), 2.0])
        low, high = np.array([*[1e-9] * 6, 1.0]), np.array([*[np.inf] * 6, 10.0])

        def residual(x: Array) -> Array:
            return np.asarray(np.log(_seconds(x, facts) / measured))

        fitted = least_squares(residual, np.clip(start, low * 1.01, high), bounds=(low, high), x_scale=start, max_nfev=400)
        return cls(tuple(float(value) for value in fitted.x), (float(measured.min()), float(measured.max())))

    def __call__(self, case: Case) -> float | None:
        """Return the seconds of a step; None if they are far outside the visible ones."""
        seconds = float(_seconds(np.array(self.parameters), np.array([_facts(case)]))[0])
        return seconds if self.seen_s[0] / MOST_BEYOND <= seconds <= self.seen_s[1] * MOST_BEYOND else None


def _facts(case: Case) -> tuple[float, float, float]:
    return case.samples / case.keys.devices, case.keys.devices, case.keys.nodes


def _seconds(x: Array, facts: Array) -> Array:
    batch, devices, nodes = facts.T
    compute = x[0] + x[1] * batch
    more = np.maximum(devices - 2, 0)
    between = np.where(nodes > 1, x[4] + x[5] * more, x[2] + x[3] * more)
    network = np.where(devices > 1, between, 0.0)
    seconds: Array = (compute ** x[6] + network ** x[6]) ** (1 / x[6])
    return seconds
