"""Write ``calibration/held_out.toml``: the error and the range of each kind of prediction, from published runs held out.

    python benchmarks/held_out.py FOLDER --out RESULTS/range_coverage.csv

FOLDER holds the CSV files, with the names that ``validation_table.py`` gives them. The runs are those of its table. RESULTS is
benchmarks/results. Its file says which share of each set's rows lies inside the range, below and above it, once with factors
of all sources and once with those of the other sources alone: the second is a test of the factors, the first is not.

The model's own half-widths (logarithms of step over low end, and of high end over step) follow from its standard deviations.
A source has an error that all its rows share, so the share inside differs from set to set at any width. The factors of a kind
(``HeldOut``) minimize the mean of |share inside - 80 %| over sets, where each counts once, and the interval score (Gneiting and
Raftery 2007, JASA 102(477), 6.2), which of two equal shares prefers the narrow range. A set of few rows counts less.

The factors of each kind (``KINDS``) were chosen by sources left out. Separate kinds for several nodes, divided networks,
mixtures or networks without attention fitted other sources worse. So did two different ends, except on accelerators.
The upper end also depends on how many kernels the host must launch in a second: a host that takes ``launch_s`` more for each
makes a step ``1 + launch_s * launches`` times as long.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
from rows import append
from scipy.optimize import minimize
from validation_table import FILES, RUNS, run

import paceline.calibration
import paceline.prediction.answer.held_out_error as there
from paceline.array_types import Array, Bools
from paceline.calibration.constants import SoftwareLevel, efficiency
from paceline.calibration.product_curves import has_curve
from paceline.csv_rows import read
from paceline.prediction.answer.step_range import waiting_launches
from paceline.prediction.step.step_inputs import StepInputs
from paceline.record import environment
from paceline.validation.case import Case, Info
from paceline.validation.informed_predictor import InformedPredictor
from paceline.validation.score import ScoredCase
from paceline.validation.sets import adapter

INSIDE = 0.8
FITTED = "published timm"
"""Sets left out: the constants of convolutions were fitted to all their networks."""
MOST_ROWS = 400
"""Rows of a set that the fit uses, evenly taken: more do not change its shares."""
FULL_SET = 40
"""Rows from which a set counts in full."""
LARGE = 20
"""Rows of a set whose share inside is a target."""
SCORE_WEIGHT = 4.0
"""Weight of the interval score next to the mean distance of the shares. Values of 1 to 8 fit other sources as well."""
PRIOR_WEIGHT = 0.1
"""Weight of the squared logarithm of a factor over its usual one. Few sources decide on a factor."""
SMOOTH = 0.02
"""Width of the step from inside to outside in the fit, on the scale of logarithms."""
CORRECTED = "corrected by records"
KINDS: Mapping[str, Mapping[str, float]] = {
    "tuned software": {"width": 1.0, "unmeasured": 1.2, "launch_s": 20e-6},
    "ordinary software": {"width": 1.0, "launch_s": 150e-6},
    "TPUs": {"width": 1.0},
    "accelerators": {"low": 1.0, "high": 1.0},
    f"tuned software, {CORRECTED}": {"width": 1.0},
    f"ordinary software, {CORRECTED}": {"width": 1.0},
}
"""Factors of each kind of prediction, and their usual values. 150 us had the least quantile loss on ordinary software before;
20 us for tuned software, which launches experts' kernels alone, were chosen in sight of the rows."""
COLUMNS = ("kind", "set", "seen", "rows", "factors_of", "inside", "below", "above", "width")


@dataclass(frozen=True)
class Rows:
    """Held-out rows of one kind, as arrays.

    Attributes:
        line: index of the set of a row in ``lines``. ``source``: who published the row. ``link``: kind of the slowest link.
        off: logarithm of measured over predicted. ``low``, ``high``: the model's own half-widths.
        launches: kernels that the host launches for each second (``waiting_launches``).
        measured: whether products of the device follow a measured curve.
    """

    lines: tuple[tuple[str, str], ...]
    line: Array
    source: Array
    link: Array
    off: Array
    low: Array
    high: Array
    launches: Array
    measured: Bools

    def where(self, chosen: Bools) -> Rows:
        """Return some of the rows."""
        names = ("line", "source", "link", "off", "low", "high", "launches", "measured")
        return Rows(self.lines, **{name: getattr(self, name)[chosen] for name in names})

    def thinned(self) -> Rows:
        """Return at most ``MOST_ROWS`` of each set."""
        chosen = np.zeros(len(self.off), bool)
        for line in set(self.line.tolist()):
            at = np.flatnonzero(self.line == line)
            chosen[at[:: -(-len(at) // MOST_ROWS)]] = True
        return self.where(chosen)

    def half_widths(self, factors: Mapping[str, float]) -> tuple[Array, Array]:
        """Return how far the range reaches below and above the step, with logarithms of factors (``step_range``)."""
        width = factors.get("width", 0.0) + np.where(self.measured, 0.0, factors.get("unmeasured", 0.0))
        low, high = (np.exp(width + factors.get(name, 0.0)) for name in ("low", "high"))
        slow_host = np.log1p(exp(factors["launch_s"]) * self.launches) if "launch_s" in factors else 0.0
        return low * self.low, np.hypot(high * self.high, slow_host)


def source(name: str) -> str:
    """Return who published a set: ``SimuMax`` of ``published SimuMax, one node of 8 B200``."""
    text = name.removeprefix("published ").partition(",")[0]
    return text if name.startswith("published ") else text.split()[0]


def fit(rows: Rows, usual: Mapping[str, float]) -> dict[str, float]:
    """Return the logarithms of the factors for a kind's rows. ``usual``: what they are without rows, by name."""
    rows = rows.thinned()
    _, line, count = np.unique(rows.line, return_inverse=True, return_counts=True)
    weights = np.minimum(count, FULL_SET) / np.minimum(count, FULL_SET).sum()
    of_row = (weights / count)[line]
    names, start = tuple(usual), np.log(list(usual.values()))

    def loss(logs: Array) -> float:
        low, high = rows.half_widths(dict(zip(names, logs.tolist(), strict=True)))
        margin = np.minimum(rows.off + low, high - rows.off)
        inside = 1 / (1 + np.exp(-np.clip(margin / SMOOTH, -30, 30)))
        far = float(weights @ np.abs(np.bincount(line, inside) / count - INSIDE))
        tail = (1 - INSIDE) / 2
        score = float(of_row @ (tail * (low + high) + np.maximum(0.0, -margin)))
        return far + SCORE_WEIGHT * score + PRIOR_WEIGHT * float(((logs - start) ** 2).sum())

    widths = np.array([name in ("width", "low", "high") for name in names])
    options = {"maxiter": 800, "xatol": 1e-3, "fatol": 1e-6, "adaptive": True}
    tried = [minimize(loss, start + wider * widths, method="Nelder-Mead", options=options) for wider in (0.0, 0.3, -0.3)]
    best = min(tried, key=lambda one: float(one.fun))
    return dict(zip(names, best.x.tolist(), strict=True))


def unseen(kinds: Mapping[str, Rows]) -> float:
    """Return what both ends need more on rows limited by one kind of link if the factors come from all others: the mean over
    kinds of prediction and of link, each at least nothing."""
    shifts = []
    for kind, rows in kinds.items():
        for link in sorted(set(rows.link.tolist()) - {""}):
            others, here = rows.where(rows.link != link), rows.where(rows.link == link)
            if len(set(others.source.tolist())) > 1 and len(here.off) >= LARGE:
                low, high = here.half_widths(fit(others, KINDS[kind]))
                shifts.append(max(0.0, float(np.quantile(np.maximum(here.off - high, -here.off - low), INSIDE))))
    return float(np.mean(shifts)) if shifts else 0.0


ALL, OTHERS = "all sources", "other sources"


def coverages(kinds: Mapping[str, Rows], known: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the shares of each set's rows inside, below and above, and the geometric mean of high over low end."""
    found: list[dict[str, Any]] = []
    for kind, rows in kinds.items():
        for name in sorted(set(rows.source.tolist())):
            own, others = rows.where(rows.source == name), rows.where(rows.source != name)
            fits = {ALL: known[kind]} | ({OTHERS: fit(others, KINDS[kind])} if len(others.off) else {})
            for which, factors in fits.items():
                low, high = own.half_widths(factors)
                for line in sorted(set(own.line.tolist())):
                    at = own.line == line
                    below, above = (float(np.mean(part[at])) for part in (-own.off > low, own.off > high))
                    shares = {"inside": round(1 - below - above, 4), "below": round(below, 4), "above": round(above, 4)}
                    width = round(exp(float(np.mean((low + high)[at]))), 3)
                    published, seen = rows.lines[int(line)]
                    of = {"kind": kind, "set": published, "seen": seen, "rows": int(at.sum()), "factors_of": which}
                    found.append({**of, **shares, "width": width})
    return found


def summary(found: Sequence[Mapping[str, Any]], which: str) -> dict[str, float]:
    """Summarize whole sets, of all their kinds.

    Returns ``good`` and ``near``, the number of ``sets`` with 75 to 85 % and 70 to 90 % inside; the ``median`` share, its
    mean ``distance`` from 80 %, and the geometric mean of high over low end, ``width``.
    """
    sets: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in found:
        if row["factors_of"] == which:
            sets[row["set"], row["seen"]].append(row)
    large = [rows for rows in sets.values() if sum(row["rows"] for row in rows) >= LARGE]
    counts = [[row["rows"] for row in rows] for rows in large]

    def means(values: Iterable[list[float]]) -> Array:
        return np.array([np.average(each, weights=count) for each, count in zip(values, counts, strict=True)])

    inside = means([row["inside"] for row in rows] for rows in large)
    width = means([log(row["width"]) for row in rows] for rows in large)
    far = np.abs(inside - INSIDE)
    good, near = (int((far <= limit + 1e-9).sum()) for limit in (0.05, 0.1))
    figures = {"median": float(np.median(inside)), "distance": float(far.mean()), "width": exp(float(width.mean()))}
    return {"sets": len(large), "good": good, "near": near, **figures}


def visible(folder: str, name: str, info: Info) -> set[tuple[str, str]]:
    """Return networks and devices of the rows that predictions of a set may see."""
    reader = adapter(name.split()[0])
    table = read(Path(folder) / f"{FILES[name]}.csv", (*reader.texts, *reader.numbers))
    cases = [case for case in map(reader.read, reader.joined(table)) if isinstance(case, Case)]
    return {(case.workload.name, case.setting.cluster.device.name) for case in cases if case.step_s and info.shows(case.keys)}


def held_out_row(point: ScoredCase, without: str) -> dict[str, Any]:
    """Return what ``Rows`` keeps of one row, predicted with constants that were fitted without ``without``."""
    case, estimate = point.case, point.estimate
    cluster, strategy, step_s = case.setting.cluster, case.setting.strategy, estimate.step_s
    level: SoftwareLevel = "ordinary" if case.software == "ordinary" else "tuned"
    return {
        "link": cluster.outer_link.kind if cluster.world_size > 1 else "",
        "off": log(case.step_s / step_s),
        "low": log(step_s / estimate.low_s),
        "high": log(estimate.high_s / step_s),
        "launches": waiting_launches(efficiency(level, without), StepInputs(case.workload, cluster, strategy), step_s),
        "measured": has_curve(cluster.device, strategy.precision),
    }


def collected(folder: str) -> tuple[dict[str, Rows], dict[str, dict[str, list[float]]]]:
    """Predict every set. Return the rows of each kind, and the errors of each kind by source."""
    errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    lines: list[tuple[str, str]] = []
    for name, info in RUNS:
        if name.startswith(FITTED):
            continue
        shown = Info.parse(info.partition(",")[0])
        seen = visible(folder, name, shown) if shown.kind != "none" else set()
        lines.append((name, info))
        done = run(folder, name, info)
        excluded = InformedPredictor(lambda case: (), done.info, done.hold_out).held_out
        for point in done.points:
            case = point.case
            if not case.step_s:  # a row of memory alone
                continue
            device = case.setting.cluster.device
            level = "ordinary" if case.software == "ordinary" else "tuned"
            kind = there.kind(level, device.kind, (case.workload.name, device.name) in seen)
            errors[kind][source(name)].append(point.error)
            found[kind].append({"line": len(lines) - 1, "source": source(name), **held_out_row(point, excluded(case))})
        print(name, info, flush=True)
    kinds = {
        kind: Rows(tuple(lines), **{key: np.array([row[key] for row in rows]) for key in rows[0]})
        for kind, rows in sorted(found.items())
    }
    return kinds, errors


def main(folder: str, out: Path | None) -> None:
    """Validate every set, fit the factors of each kind and write the figures."""
    file = Path(paceline.calibration.__file__).with_name(there.FILE)
    before = file.read_bytes()
    file.unlink()  # the factors are on the model's own intervals
    try:
        kinds, errors = collected(folder)
    finally:
        file.write_bytes(before)
    known = {kind: fit(rows, KINDS[kind]) for kind, rows in kinds.items()}
    here = environment(())
    text = [
        "# Written by benchmarks/held_out.py.",
        f'date = "{here["date"][:10]}"',
        f'commit = "{here["commit"]}"',
        f"unseen = {unseen(kinds):.3f}",
    ]
    for kind, rows in kinds.items():
        each = ", ".join(f'"{name}" = {np.mean(set_errors):.4f}' for name, set_errors in errors[kind].items())
        links = ", ".join(f'"{link}"' for link in sorted(set(rows.link.tolist()) - {""}))
        factors = known[kind]
        low, high = (exp(factors.get("width", 0.0) + factors.get(name, 0.0)) for name in ("low", "high"))
        text += ["", "[[error]]", f'kind = "{kind}"', f"points = {len(rows.off)}", f"sets = {{{each}}}"]
        text += [f"low = {low:.3f}", f"high = {high:.3f}", f"links = [{links}]"]
        if "unmeasured" in factors:
            text.append(f"unmeasured = {exp(factors['unmeasured']):.3f}")
        if "launch_s" in factors:
            text.append(f"launch_s = {exp(factors['launch_s']):.3g}")
    file.write_text("\n".join(text) + "\n", encoding="utf-8")
    found = coverages(kinds, known)
    for which in (ALL, OTHERS):
        print(f"factors of {which}:", {name: round(value, 3) for name, value in summary(found, which).items()})
    if out:
        out.unlink(missing_ok=True)
        for row in found:
            append(out, COLUMNS, row)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path)
    main(**vars(parser.parse_args()))
