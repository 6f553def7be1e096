"""How far predictions of a kind were off on published runs that no constant was fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FILE = "held_out.toml"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Mean of |predicted - measured| / measured over ``points`` rows of ``sets``; when it was worked out, by which commit."""

    kind: str
    mape: float
    points: int
    sets: tuple[str, ...]
    date: str
    commit: str

    def __str__(self) -> str:
        return (
            f"On held-out published runs of this kind ({self.kind}; {', '.join(self.sets)}, {self.points:,} rows) such "
            f"predictions missed by {self.mape:.0%} (mean; {self.date}, {self.commit})."
        )


def kind(software: str, nodes: int, corrected: bool) -> str:
    """``tuned software, one node`` and so on; what records correct is one kind."""
    return "corrected by records" if corrected else f"{software} software, {'one node' if nodes == 1 else 'several nodes'}"


@cache
def _kinds() -> dict[str, HeldOut]:
    import tomllib

    file = files("paceline.prediction").joinpath(FILE)
    if not file.is_file():  # nothing was validated yet: it is what the script that writes it predicts with
        return {}
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    when = data["date"], data["commit"]
    return {x["kind"]: HeldOut(x["kind"], x["mape"], x["points"], tuple(x["sets"]), *when) for x in data["error"]}


def held_out(software: str, nodes: int, corrected: bool = False) -> HeldOut | None:
    """The error of predictions of that kind; None where no published run is of it."""
    return _kinds().get(kind(software, nodes, corrected))
