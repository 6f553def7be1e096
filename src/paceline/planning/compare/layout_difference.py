"""How well the model tells apart two layouts of one network on the same machines.

Both predictions share the errors of the device and of the network, so the ratio of their steps is better known than either.
Each pair still has an error, and errors of the waits in which the two layouts differ.
``benchmarks/layout_differences.py`` fits both on pairs of published layouts, with whole sources left out.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from paceline.prediction import Prediction

FILE = "layout_differences.toml"
WAITS: Mapping[str, frozenset[str]] = {
    "launch": frozenset({"launch overhead"}),
    "links": frozenset({"network", "intra-node link", "pipeline send"}),
    "bubble": frozenset({"pipeline bubble"}),
}
"""Resources whose share of the step differs between layouts, by kind."""
LIKELY = 0.8416
"""Standard deviations of a difference whose sign is right with 80 % probability."""


@dataclass(frozen=True, slots=True)
class LayoutSigmas:
    """Standard deviations of log(measured ratio / predicted ratio) of two layouts.

    Attributes:
        base: that of every pair.
        launch, links, bubble: added in squares, times the difference of the shares of the step that wait for it (``WAITS``).
        source: what they were fitted on.
    """

    base: float
    launch: float
    links: float
    bubble: float
    source: str = ""

    def of(self, one: Mapping[str, float], other: Mapping[str, float]) -> float:
        """Return the standard deviation for two layouts, from the share of the step that waits for each kind in ``WAITS``."""
        return math.hypot(self.base, *(getattr(self, kind) * (one[kind] - other[kind]) for kind in WAITS))


@cache
def layout_sigmas() -> LayoutSigmas:
    """Return the fitted standard deviations."""
    data = tomllib.loads(files("paceline.calibration").joinpath(FILE).read_text(encoding="utf-8"))
    return LayoutSigmas(**data["sigma"], source=data["source"])


def wait_shares(exposed: Mapping[str, float], step_s: float) -> dict[str, float]:
    """Return the share of a step that waits for each kind in ``WAITS``, from its seconds by resource."""
    return {kind: sum(exposed.get(name, 0.0) for name in names) / step_s for kind, names in WAITS.items()}


def ratio_in_words(ratio: float) -> str:
    """Say how much slower or faster a step is than another, from the ratio of their seconds."""
    return f"{abs(ratio - 1):.1%} {'faster' if ratio < 1 else 'slower'}" if abs(math.log(ratio)) >= 0.0005 else "as fast"


def resolved_ratio(p: Prediction, q: Prediction) -> float:
    """Return the smallest ratio of two steps, above 1, whose direction the model tells with 80 % probability."""
    shares = [wait_shares(x.exposed, x.step_time_s) for x in (p, q)]
    return math.exp(LIKELY * layout_sigmas().of(*shares))


def least_resolved_ratio() -> float:
    """Return the smallest ``resolved_ratio`` of any two layouts."""
    return math.exp(LIKELY * layout_sigmas().base)
