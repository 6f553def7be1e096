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
        low, high: factors on the interval's half-widths below and above the step, on a logarithmic scale. With them the share
            of the rows inside comes as near to 80 % as it can in every set (``benchmarks/held_out.py``).
        unmeasured: further factor on both for a device without measured products.
        launch_s: extra seconds that a slow host takes to launch a kernel, counted at the upper end. With unknown hosts, steps
            of short kernels miss by far more than steps of long ones.
        links: kinds of the links that limited those runs.
    """

    kind: str
    sets: Mapping[str, float]
    points: int
    date: str
    commit: str
    low: float = 1.0
    high: float = 1.0
    links: tuple[str, ...] = ()
    launch_s: float = 0.0
    unmeasured: float = 1.0

    @property
    def mape(self) -> float:
        """Mean of the errors of the sets."""
        return fmean(self.sets.values())

    def __str__(self) -> str:
        each = ", ".join(f"{name} {error:.0%}" for name, error in sorted(self.sets.items(), key=lambda item: item[1]))
        return (
            f"On held-out published runs of this kind ({self.kind}; {self.points:,} rows) such predictions missed by "
            f"{self.mape:.0%}: the mean of {each} ({self.date}, {self.commit}).{self._slow_host}"
        )

    @property
    def _slow_host(self) -> str:
        """Describe the host of the upper end, in a sentence."""
        return f" The slow end has a host that takes {format_seconds(self.launch_s)} more a kernel." if self.launch_s else ""


_OTHER_DEVICES = {"tpu": "TPUs", "accelerator": "accelerators"}
"""Kinds of devices whose predictions are a separate kind, at either level of software."""


def kind(software: str, device_kind: str, corrected: bool) -> str:
    """Name the kind of a prediction, such as ``tuned software``.

    For each level of software, predictions that records correct are one kind, and all others on GPUs and CPUs are another.
    Each other kind of device is a kind. Numbers of nodes and divided networks make no kind: with sets
    left out, their ranges fit no better than those of all.
    """
    if corrected:
        return f"{software} software, corrected by records"
    return _OTHER_DEVICES.get(device_kind, f"{software} software")


@cache
def _read() -> dict[str, Any]:
    """Read the file. Return an empty result if it is missing, because the script that writes it makes predictions too."""
    import tomllib

    file = files("paceline.calibration").joinpath(FILE)
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


@cache
def unseen_shift() -> float:
    """Return the extension of both ends, on a logarithmic scale, if links of that kind limited no held-out run."""
    return float(_read().get("unseen", 0.0))


@cache
def _kinds() -> dict[str, HeldOut]:
    data = _read()
    if not data:
        return {}
    return {
        x["kind"]: HeldOut(**{**x, "links": tuple(x["links"])}, date=data["date"], commit=data["commit"]) for x in data["error"]
    }


def held_out(software: str, device_kind: str, corrected: bool = False) -> HeldOut | None:
    """Return the error of predictions of that kind; None without a published run of that kind."""
    return _kinds().get(kind(software, device_kind, corrected))
