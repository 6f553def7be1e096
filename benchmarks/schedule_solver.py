"""The solver of large decisions next to the direct one, on workloads that are small enough for both.

    python benchmarks/schedule_solver.py --out RESULTS/schedule_solver.csv [--data SHARED/data] [--workloads philly/1 ...]

RESULTS is benchmarks/results. Up to 2,000 choices the integer program is solved directly. Above, devices get prices and choices
are rounded at them. Here the second way decides everything, on Sia's workloads and cluster of three types. A row a policy and
workload, and a row ``all``: the mean completion under both, and how far the total of a decision lies beyond that of the direct
solver, where both decide on the same choices (above 0: worse). Both stop within 0.01 % of the best total.
``paceline`` knows datasheets and stated lengths, as in ``schedule_better.py``; ``sia`` what jobs saw of themselves.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
from rows import append
from schedule_better import SETTINGS, Sia
from schedule_sia import simulated as under_sia

import paceline.scheduling.policies.paceline as paceline_policy
import paceline.scheduling.policies.sia as sia_policy
from paceline.array_types import Bools, Ints
from paceline.scheduling.policies.solvers import integer_program
from paceline.scheduling.policies.solvers.integer_program import TIME_LIMIT_S, least_sum
from paceline.scheduling.policies.solvers.useful_choices import Choices
from paceline.scheduling.simulate.schedule import ClusterSchedule
from paceline.scheduling.speeds.profiles import ModelProfile, read_profiles

COLUMNS = (
    "policy", "workload", "jobs", "decisions", "direct_avg_s", "priced_avg_s", "ratio", "ratio_se", "beyond_mean_percent",
    "beyond_p99_percent", "direct_s", "priced_s",
)  # fmt: skip
WORKLOADS = (*(f"philly/{n}" for n in range(1, 5)), *(f"saturn/{n}" for n in range(1, 6)))
POLICIES: Mapping[str, ModuleType] = {"paceline": paceline_policy, "sia": sia_policy}


class BothSolvers:
    """Solver that decides one way, and solves each problem the other way too.

    Args:
        priced: True if the way of large problems decides.
        compares: True if the other way is tried.
    """

    def __init__(self, priced: bool, compares: bool) -> None:
        self._priced, self._compares = priced, compares
        self.beyond: list[float] = []
        self.seconds = {True: 0.0, False: 0.0}

    def __call__(self, choices: Choices, capacity: Ints, time_limit_s: float = TIME_LIMIT_S) -> Bools | None:
        """As ``least_sum``."""
        found = {priced: self._solved(choices, capacity, time_limit_s, priced) for priced in {self._priced, self._decided_too}}
        if len(found) == 2 and found[True] is not None and found[False] is not None:
            direct, priced = (float(choices.cost[found[way]].sum()) for way in (False, True))
            if direct < 0:
                self.beyond.append((priced - direct) / -direct)
        return found[self._priced]

    @property
    def _decided_too(self) -> bool:
        return not self._priced if self._compares else self._priced

    def _solved(self, choices: Choices, capacity: Ints, time_limit_s: float, priced: bool) -> Bools | None:
        usual, begun = integer_program.DIRECT, time.process_time()
        integer_program.DIRECT = 0 if priced else 1 << 40
        try:
            return least_sum(choices, capacity, time_limit_s)
        finally:
            integer_program.DIRECT = usual
            self.seconds[priced] += time.process_time() - begun


@contextmanager
def solving(module: ModuleType, solver: BothSolvers) -> Iterator[None]:
    """Let a policy solve its programs so."""
    module.least_sum = solver  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.least_sum = least_sum  # type: ignore[attr-defined]


def schedule(data: Path, profiles: Mapping[str, ModelProfile], policy: str, workload: str) -> ClusterSchedule:
    """The schedule of a workload."""
    setting = SETTINGS["sia philly"]
    if policy == "sia":
        return under_sia(data, profiles, setting.cluster, workload, "sia")[0]
    trace, number = workload.split("/")
    return Sia(data, profiles, replace(setting, trace=trace)).schedule(number, "predicted", stated=True)


def measured(data: Path, profiles: Mapping[str, ModelProfile], policy: str, workload: str) -> tuple[dict[str, object], float]:
    """A row, and the ratio of the mean completions."""
    direct, priced = BothSolvers(priced=False, compares=False), BothSolvers(priced=True, compares=True)
    with solving(POLICIES[policy], direct):
        usual = [outcome.jct_s for outcome in schedule(data, profiles, policy, workload).outcomes]
    with solving(POLICIES[policy], priced):
        forced = [outcome.jct_s for outcome in schedule(data, profiles, policy, workload).outcomes]
    ratio = float(np.mean(forced) / np.mean(usual))
    row = {
        "policy": policy,
        "workload": workload,
        "jobs": len(usual),
        "decisions": len(priced.beyond),
        "direct_avg_s": round(float(np.mean(usual)), 1),
        "priced_avg_s": round(float(np.mean(forced)), 1),
        "ratio": round(ratio, 4),
        "beyond_mean_percent": f"{100 * float(np.mean(priced.beyond)):.3g}",
        "beyond_p99_percent": f"{100 * float(np.percentile(priced.beyond, 99)):.3g}",
        "direct_s": round(priced.seconds[False], 1),
        "priced_s": round(priced.seconds[True], 1),
    }
    return row, ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[2] / "shared"))
    parser.add_argument("--data", type=Path, default=shared / "data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    options = parser.parse_args()
    profiles = read_profiles(options.data / "profiles")
    for policy in options.policies:
        rows, ratios = [], []
        for workload in options.workloads:
            row, ratio = measured(options.data, profiles, policy, workload)
            rows.append(row)
            ratios.append(ratio)
            report(options.out, row)
        error = float(np.std(ratios, ddof=1)) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
        whole: dict[str, object] = {"policy": policy, "workload": "all", "ratio": round(float(np.mean(ratios)), 4)}
        report(options.out, whole | {"ratio_se": round(error, 4)})


def report(out: Path, row: Mapping[str, object]) -> None:
    """Add the row and print it."""
    append(out, COLUMNS, {**dict.fromkeys(COLUMNS, ""), **row})
    print(" ".join(f"{column}={value}" for column, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
