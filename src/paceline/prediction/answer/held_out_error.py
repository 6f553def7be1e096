"""Prediction errors on published runs outside every fit, by kind of prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any

from paceline.units import format_seconds

FILE = "held_out.toml"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors of one kind of prediction on published runs.

    Attributes:
        sets: mean of |predicted - measured| / measured of each set. ``mape`` is their mean: each set counts once, whatever its
            number of rows.
        points: total number of rows. ``date``, ``commit``: date and commit of the predictions.
        low, high: extension of the interval at both ends, on a logarithmic scale. A tenth of the runs is then below and a tenth
            above it, and every chip of a set has the same weight (split conformal prediction of quantiles: Romano et al. 2019,
            arXiv:1905.03222, equations 6 to 8). With a factor instead of a sum the widest ranges were 1,000-fold.
        launch_s: extra seconds that a slow host takes to launch a kernel, counted at the upper end. With unknown hosts, steps
            of short kernels miss by far more than steps of long ones.
        tails_of: the kind that ``low`` and ``high`` come from if this kind has too few runs: all of its software.
        links: kinds of the links that limited those runs.
    """

    kind: str
    sets: Mapping[str, float]
    points: int
    date: str
    commit: str
    low: float = 0.0
    high: float = 0.0
    links: tuple[str, ...] = ()
    launch_s: float = 0.0
    tails_of: str = ""

    @property
    def mape(self) -> float:
        """Mean of the errors of the sets."""
        return fmean(self.sets.values())

    def __str__(self) -> str:
        each = ", ".join(f"{name} {error:.0%}" for name, error in sorted(self.sets.items(), key=lambda item: item[1]))
        return (
            f"On held-out published runs of this kind ({self.kind}; {self.points:,} rows) such predictions missed by "
            f"{self.mape:.0%}: the mean of {each} ({self.date}, {self.commit}).{self._of_range}"
        )

    @property
    def _of_range(self) -> str:
        """Describe further sources of the range, in sentences."""
        slow = f" The slow end has a host that takes {format_seconds(self.launch_s)} more a kernel." if self.launch_s else ""
        few = f" Too few sets are of this kind: the range has the tails of {self.tails_of}." if self.tails_of else ""
        return slow + few


def kind(software: str, nodes: int, corrected: bool, divided: bool = False) -> str:
    """Name the kind of a prediction, such as ``tuned software, one node``.

    For each level of software, predictions that records correct are one kind. Networks that several devices hold together
    (``divided``) are another.
    """
    if corrected:
        return f"{software} software, corrected by records"
    return f"{software} software, {'divided networks' if divided else 'one node' if nodes == 1 else 'several nodes'}"


@cache
def _read() -> dict[str, Any]:
    """Read the file. Return an empty result if it is missing, because the script that writes it makes predictions too."""
    import tomllib

    file = files("paceline.calibration").joinpath(FILE)
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


@cache
def unseen_shift() -> float:
    """Return the additional extension of both ends if links of that kind limited no held-out run."""
    return float(_read().get("unseen", 0.0))


@cache
def _kinds() -> dict[str, HeldOut]:
    data = _read()
    if not data:
        return {}
    return {
        x["kind"]: HeldOut(**{**x, "links": tuple(x["links"])}, date=data["date"], commit=data["commit"]) for x in data["error"]
    }


def held_out(software: str, nodes: int, corrected: bool = False, divided: bool = False) -> HeldOut | None:
    """Return the error of predictions of that kind; None without a published run of that kind."""
    return _kinds().get(kind(software, nodes, corrected, divided))
