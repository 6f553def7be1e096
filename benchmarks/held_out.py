"""Write ``calibration/held_out.toml``: the error of each kind of prediction on published runs that were held out.

    python benchmarks/held_out.py FOLDER --out RESULTS/range_coverage.csv

FOLDER holds the CSV files, with the names that ``validation_table.py`` gives them. The runs are those of its table. RESULTS is
benchmarks/results. Its file says which share of each set's rows lies inside the range, below and above it, with tails of all
sets of that kind and with tails of all but this one: the second is a test of the tails, the first is not.

The upper tail of ordinary software depends on what a prediction knows: how many kernels the host must launch in a second. A
host that takes ``launch_s`` more for each makes a step ``1 + launch_s * launches`` times as long; the tails are of the rest.
One ``launch_s`` holds for all kinds of a level of software: that of the least quantile loss (Koenker and Bassett 1978).
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log, log1p
from pathlib import Path

import numpy as np
from rows import append
from validation_table import RUNS, run

import paceline.calibration
import paceline.prediction.answer.held_out_error as there
from paceline.calibration.constants import efficiency
from paceline.prediction.answer.step_range import LEAST_WIDTH
from paceline.prediction.passes.host import host_seconds, launches_of_step
from paceline.record import environment
from paceline.validation.score import ScoredCase

TAIL = 0.1
"""Share of the runs below the interval, and above it."""
LEAST_GROUPS = 4
"""Groups of rows that tails are taken from at least; a kind with fewer has those of all kinds of its software."""
SLOW_HOSTS_S = np.arange(0, 500e-6, 10e-6)
"""Candidates for ``launch_s``."""
CORRECTED = "corrected by records"
FITTED = "published timm"
"""Sets left out: the constants of convolutions were fitted to all their networks."""
"""How the names of kinds end whose hosts and links are known."""
COLUMNS = ("kind", "set", "rows", "tails_of", "inside", "below", "above")


ORDINARY = efficiency("ordinary")


@dataclass(frozen=True)
class Miss:
    """A held-out row: how far it lies below and above the model's own interval, in logarithms (negative: inside), and its link.

    ``low`` and ``high`` are that interval's half-widths. ``launches``: kernels that the host launches, a second of the
    predicted step; none where graphs launch them, or where records say how fast the host is.
    """

    group: tuple[str, str]
    link: str
    off: float
    low: float
    high: float
    launches: float = 0.0

    @property
    def below(self) -> float:
        """The shift of the lower end at which the row lies on it."""
        return -self.off - self.low

    def upper(self, launch_s: float) -> float:
        """The upper half-width with a host that takes so much more for a kernel."""
        return self.high + log1p(launch_s * self.launches)

    def above(self, launch_s: float) -> float:
        """The shift of that end at which the row lies on it."""
        return self.off - self.upper(launch_s)


@dataclass(frozen=True)
class Tails:
    """What moves the ends of a kind's range (``HeldOut``)."""

    low: float
    high: float
    launch_s: float = 0.0


Kinds = Mapping[str, Sequence[Miss]]


def source(name: str) -> str:
    """The set without its files, or the source of published rows: ``SimuMax`` of ``published SimuMax, one node of 8 B200``."""
    return name.removeprefix("published ").replace(",", "").split()[0]


def miss(name: str, point: ScoredCase, corrected: bool) -> Miss:
    """Of one row of a set; ``corrected``: by other rows."""
    case, estimate, cluster = point.case, point.estimate, point.case.setting.cluster
    step_s = estimate.step_s
    link = cluster.outer_link.kind if cluster.world_size > 1 else ""
    widths = log(step_s / estimate.low_s), log(estimate.high_s / step_s)
    launches = 0.0
    if case.software == "ordinary" and not corrected and host_seconds(cluster.device, ORDINARY):
        launches = launches_of_step(case.workload, case.setting.strategy, ORDINARY, cluster.device) / step_s
    return Miss((name, cluster.device.chip), link, log(case.step_s / step_s), *widths, launches)


def quantile(shifts: Sequence[float], groups: Sequence[tuple[str, str]], share: float) -> float:
    """The shift below which lies a share of the rows, where every group counts as much as any other."""
    count = Counter(groups)
    ordered = sorted(zip(shifts, groups, strict=True))
    below = np.cumsum([1 / count[group] for _, group in ordered])
    return ordered[int(np.searchsorted(below, share * below[-1]))][0]


def tails(misses: Sequence[Miss], launch_s: float = 0.0) -> Tails:
    """Shifts of the lower and of the upper end that leave ``TAIL`` of the rows outside on each side."""
    groups = [row.group for row in misses]
    below, above = [row.below for row in misses], [row.above(launch_s) for row in misses]
    return Tails(quantile(below, groups, 1 - TAIL), quantile(above, groups, 1 - TAIL), launch_s)


def slow_host(misses: Sequence[Miss]) -> float:
    """Seconds more for a kernel with the least quantile loss of the upper tail, every group counting as much; 0 where no host
    launches."""
    if not any(row.launches for row in misses):
        return 0.0
    count = Counter(row.group for row in misses)
    weights = np.array([1 / count[row.group] for row in misses])

    def loss(launch_s: float) -> float:
        beyond = np.array([row.above(launch_s) for row in misses]) - tails(misses, launch_s).high
        return float(weights @ np.where(beyond > 0, (1 - TAIL) * beyond, -TAIL * beyond))

    return float(min(SLOW_HOSTS_S, key=loss))


def groups_of(misses: Iterable[Miss]) -> int:
    """How many groups they are of."""
    return len({row.group for row in misses})


def of_software(kind: str, kinds: Kinds) -> list[Miss]:
    """Rows of all kinds of the same software, as far as no records correct them; of such a kind its own."""
    if kind.endswith(CORRECTED):
        return list(kinds[kind])
    software = kind.partition(",")[0]
    return [
        row for other, rows in kinds.items() if other.startswith(software) and not other.endswith(CORRECTED) for row in rows
    ]


def all_tails(kinds: Kinds) -> dict[str, Tails]:
    """The tails of each kind that has them from enough groups, its own or those of its software."""
    hosts: dict[str, float] = {}
    chosen = {}
    for kind, own in kinds.items():
        pooled = of_software(kind, kinds)
        source = own if groups_of(own) >= LEAST_GROUPS else pooled
        if groups_of(source) >= LEAST_GROUPS:
            key = kind if kind.endswith(CORRECTED) else kind.partition(",")[0]
            hosts[key] = hosts[key] if key in hosts else slow_host(pooled)
            chosen[kind] = tails(source, hosts[key])
    return chosen


def unseen(kinds: Kinds, known: Mapping[str, Tails]) -> float:
    """What more the tails need on rows limited by one kind of link where the shifts come from all others: the mean of what each
    kind needs, which is at least nothing."""
    shifts = []
    for kind, misses in kinds.items():
        for link in {row.link for row in misses} - {""}:
            own, others = ([row for row in misses if (row.link == link) == same] for same in (True, False))
            if groups_of(others) >= LEAST_GROUPS:
                launch_s = known[kind].launch_s
                there, here = tails(others, launch_s), tails(own, launch_s)
                shifts.append(max(0.0, here.low - there.low, here.high - there.high))
    return float(np.mean(shifts)) if shifts else 0.0


def coverage(misses: Sequence[Miss], of: Tails) -> dict[str, float]:
    """Shares of the rows inside the range, below it and above it."""
    below = sum(-row.off > max(LEAST_WIDTH * row.low, row.low + of.low) for row in misses) / len(misses)
    above = sum(row.off > max(LEAST_WIDTH * row.high, row.upper(of.launch_s) + of.high) for row in misses) / len(misses)
    return {"inside": round(1 - below - above, 4), "below": round(below, 4), "above": round(above, 4)}


def coverages(kinds: Kinds) -> list[dict[str, object]]:
    """The coverage of each set, with tails of all sets and with those of the others, where there are enough."""
    sets = sorted({row.group[0] for misses in kinds.values() for row in misses})
    own = all_tails(kinds)
    others = {name: all_tails(without(kinds, name)) for name in sets}
    rows: list[dict[str, object]] = []
    for kind, misses in sorted(kinds.items()):
        for name in sorted({row.group[0] for row in misses}):
            of_set = [row for row in misses if row.group[0] == name]
            for which, known in (("all sets", own), ("the other sets", others[name])):
                if kind in known:
                    shares = coverage(of_set, known[kind])
                    rows.append({"kind": kind, "set": name, "rows": len(of_set), "tails_of": which, **shares})
    return rows


def without(kinds: Kinds, name: str) -> Kinds:
    """The kinds without the rows of a set; those that have none left too."""
    return {kind: [row for row in misses if row.group[0] != name] for kind, misses in kinds.items()}


def main(folder: str, out: Path | None) -> None:
    """Validate every set, pool its rows by kind and write the figures."""
    file = Path(paceline.calibration.__file__).with_name(there.FILE)
    file.unlink(missing_ok=True)  # the model's own intervals are what is moved
    errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    misses: dict[str, list[Miss]] = defaultdict(list)
    for name, info in RUNS:
        if name.startswith(FITTED):
            continue
        for point in run(folder, name, info).points:
            if not point.case.step_s:  # a row of memory alone
                continue
            level = "ordinary" if point.case.software == "ordinary" else "tuned"
            divided = not point.case.setting.strategy.parallelism.whole
            corrected = not info.startswith("none")
            kind = there.kind(level, max(1, point.case.keys.nodes), corrected, divided)
            errors[kind][source(name)].append(point.error)
            misses[kind].append(miss(source(name), point, corrected))
        print(name, info, flush=True)
    here, known = environment(()), all_tails(misses)
    lines = [
        "# Written by benchmarks/held_out.py.",
        f'date = "{here["date"][:10]}"',
        f'commit = "{here["commit"]}"',
        f"unseen = {unseen(misses, known):.3f}",
    ]
    for kind in sorted(errors):
        each = ", ".join(f"{name} = {np.mean(set_errors):.4f}" for name, set_errors in errors[kind].items())
        points = sum(map(len, errors[kind].values()))
        of = known[kind]
        links = ", ".join(f'"{link}"' for link in sorted({row.link for row in misses[kind]} - {""}))
        lines += ["", "[[error]]", f'kind = "{kind}"', f"points = {points}", f"sets = {{{each}}}"]
        lines += [f"low = {of.low:.3f}", f"high = {of.high:.3f}", f"links = [{links}]"]
        if of.launch_s:
            lines.append(f"launch_s = {of.launch_s:.6f}")
        if groups_of(misses[kind]) < LEAST_GROUPS:
            lines.append(f'tails_of = "all {kind.partition(",")[0]}"')
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
