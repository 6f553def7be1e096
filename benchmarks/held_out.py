"""Write ``calibration/held_out.toml``: the error of each kind of prediction on published runs that were held out.

    python benchmarks/held_out.py FOLDER --out RESULTS/range_coverage.csv

FOLDER holds the CSV files, with the names that ``validation_table.py`` gives them. The runs are those of its table. RESULTS is
benchmarks/results. Its file says which share of each set's rows lies inside the range, below and above it, with tails of all
sets of that kind and with tails of all but this one: the second is a test of the tails, the first is not.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path

import numpy as np
from rows import append
from validation_table import RUNS, run

import paceline.calibration.held_out_error as there
from paceline.calibration.uncertainty import LEAST_WIDTH
from paceline.record import environment
from paceline.validation.score import ScoredCase

TAIL = 0.1
"""Share of the runs below the interval, and above it."""
LEAST_GROUPS = 4
"""Groups of rows that tails are taken from at least."""
COLUMNS = ("kind", "set", "rows", "tails_of", "inside", "below", "above")


@dataclass(frozen=True)
class Miss:
    """A held-out row: how far it lies below and above the model's own interval, in logarithms (negative: inside), and its link.

    ``low`` and ``high`` are that interval's half-widths.
    """

    group: tuple[str, str]
    link: str
    off: float
    low: float
    high: float

    @property
    def below(self) -> float:
        """The shift of the lower end at which the row lies on it."""
        return -self.off - self.low

    @property
    def above(self) -> float:
        """The shift of the upper end at which the row lies on it."""
        return self.off - self.high


def miss(name: str, point: ScoredCase) -> Miss:
    """Of one row of a set."""
    estimate, cluster = point.estimate, point.case.setting.cluster
    step_s = estimate.step_s
    link = cluster.outer_link.kind if cluster.world_size > 1 else ""
    widths = log(step_s / estimate.low_s), log(estimate.high_s / step_s)
    return Miss((name, cluster.device.chip), link, log(point.case.step_s / step_s), *widths)


def quantile(shifts: Sequence[float], groups: Sequence[tuple[str, str]], share: float) -> float:
    """The shift below which lies a share of the rows, where every group counts as much as any other."""
    count = Counter(groups)
    ordered = sorted(zip(shifts, groups, strict=True))
    below = np.cumsum([1 / count[group] for _, group in ordered])
    return ordered[int(np.searchsorted(below, share * below[-1]))][0]


def tails(misses: Sequence[Miss]) -> tuple[float, float]:
    """Shifts of the lower and of the upper end that leave ``TAIL`` of the rows outside on each side."""
    groups = [row.group for row in misses]
    low, high = (quantile(shifts, groups, 1 - TAIL) for shifts in ([r.below for r in misses], [r.above for r in misses]))
    return low, high


def unseen(kinds: Mapping[str, Sequence[Miss]]) -> float:
    """What more the tails need on rows limited by one kind of link where the shifts come from all others: the mean of what each
    kind needs, which is at least nothing."""
    shifts = []
    for misses in kinds.values():
        for link in {row.link for row in misses} - {""}:
            own, others = ([row for row in misses if (row.link == link) == same] for same in (True, False))
            if len({row.group for row in others}) >= LEAST_GROUPS:
                (low, high), (own_low, own_high) = tails(others), tails(own)
                shifts.append(max(0.0, own_low - low, own_high - high))
    return float(np.mean(shifts)) if shifts else 0.0


def coverage(misses: Sequence[Miss], shifts: tuple[float, float]) -> dict[str, float]:
    """Shares of the rows inside the range, below it and above it."""
    low, high = shifts
    below = sum(-row.off > max(LEAST_WIDTH * row.low, row.low + low) for row in misses) / len(misses)
    above = sum(row.off > max(LEAST_WIDTH * row.high, row.high + high) for row in misses) / len(misses)
    return {"inside": round(1 - below - above, 4), "below": round(below, 4), "above": round(above, 4)}


def coverages(kinds: Mapping[str, Sequence[Miss]]) -> list[dict[str, object]]:
    """The coverage of each set, with tails of all sets of its kind and with those of the others, where there are enough."""
    rows: list[dict[str, object]] = []
    for kind, misses in sorted(kinds.items()):
        for name in sorted({row.group[0] for row in misses}):
            own, others = ([row for row in misses if (row.group[0] == name) == same] for same in (True, False))
            for which, source in (("all sets", misses), ("the other sets", others)):
                if which == "all sets" or len({row.group for row in others}) >= LEAST_GROUPS:
                    shares = coverage(own, tails(source))
                    rows.append({"kind": kind, "set": name, "rows": len(own), "tails_of": which, **shares})
    return rows


def main(folder: str, out: Path | None) -> None:
    """Validate every set, pool its rows by kind and write the figures."""
    file = Path(there.__file__).with_name(there.FILE)
    file.unlink(missing_ok=True)  # the model's own intervals are what is moved
    errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    misses: dict[str, list[Miss]] = defaultdict(list)
    for name, info in RUNS:
        for point in run(folder, name, info).points:
            level = "ordinary" if point.case.software == "ordinary" else "tuned"
            divided = not point.case.setting.strategy.parallelism.whole
            kind = there.kind(level, max(1, point.case.keys.nodes), not info.startswith("none"), divided)
            errors[kind][name.split()[0]].append(point.error)
            misses[kind].append(miss(name.split()[0], point))
        print(name, info, flush=True)
    here = environment(())
    lines = [
        "# Written by benchmarks/held_out.py.",
        f'date = "{here["date"][:10]}"',
        f'commit = "{here["commit"]}"',
        f"unseen = {unseen(misses):.3f}",
    ]
    for kind in sorted(errors):
        each = ", ".join(f"{name} = {np.mean(set_errors):.4f}" for name, set_errors in errors[kind].items())
        points = sum(map(len, errors[kind].values()))
        low, high = tails(misses[kind])
        links = ", ".join(f'"{link}"' for link in sorted({row.link for row in misses[kind]} - {""}))
        lines += ["", "[[error]]", f'kind = "{kind}"', f"points = {points}", f"sets = {{{each}}}"]
        lines += [f"low = {low:.3f}", f"high = {high:.3f}", f"links = [{links}]"]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if out:
        out.unlink(missing_ok=True)
        for row in coverages(misses):
            append(out, COLUMNS, row)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path)
    main(**vars(parser.parse_args()))
