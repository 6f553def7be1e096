"""Progress of software after the newest release in the fit of constants, which widens the range of a prediction."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def _facts() -> dict[str, dict[str, float]]:
    import tomllib

    path = files("paceline.calibration").joinpath("software_progress.toml")
    values: dict[str, dict[str, float]] = tomllib.loads(path.read_text(encoding="utf-8"))
    return values


def later_ends(year: float) -> tuple[float, float]:
    """Return how much faster and slower software of ``year`` may be: logarithms of the ends of 80 %, 0 for fitted software.

    The middle stays: MLPerf's rounds after the fit showed no change that all chips share.
    """
    facts = _facts()
    ahead = max(0.0, year - facts["newest"]["year"])
    return ahead * facts["yearly"]["high"], ahead * -facts["yearly"]["low"]
