"""How far predictions of a kind were off on published runs that no constant was fitted on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean

FILE = "held_out.toml"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Means of |predicted - measured| / measured of several ``sets`` with ``points`` rows in all; when and by which commit.

    ``mape`` is their mean: each set counts once, however many rows it has.
    """

    kind: str
    sets: Mapping[str, float]
    points: int
    date: str
    commit: str

    @property
    def mape(self) -> float:
        """Mean of the sets' errors."""
        return fmean(self.sets.values())

    def __str__(self) -> str:
        each = ", ".join(f"{name} {error:.0%}" for name, error in sorted(self.sets.items(), key=lambda item: item[1]))
        return (
            f"On held-out published runs of this kind ({self.kind}; {self.points:,} rows) such predictions missed by "
            f"{self.mape:.0%}: the mean of {each} ({self.date}, {self.commit})."
        )


def kind(software: str, nodes: int, corrected: bool) -> str:
    """``tuned software, one node`` and so on; what records correct is one kind."""
    return "corrected by records" if corrected else f"{software} software, {'one node' if nodes == 1 else 'several nodes'}"


@cache
def _kinds() -> dict[str, HeldOut]:
    import tomllib

    file = files("paceline.calibration").joinpath(FILE)
    if not file.is_file():  # nothing was validated yet: it is what the script that writes it predicts with
        return {}
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    when = data["date"], data["commit"]
    return {x["kind"]: HeldOut(x["kind"], x["sets"], x["points"], *when) for x in data["error"]}


def held_out(software: str, nodes: int, corrected: bool = False) -> HeldOut | None:
    """The error of predictions of that kind; None where no published run is of it."""
    return _kinds().get(kind(software, nodes, corrected))
