"""The files of ``schedule_better.py`` and ``schedule_pollux.py --part error`` as Markdown tables and a picture.

    python benchmarks/schedule_summary.py RESULTS [--picture RESULTS/schedule_error.svg]

RESULTS is benchmarks/results. The first table has paceline beside the best published policy. The second, and the picture, have
every policy's mean completion where its speeds, or the work left, are wrong, beside the same without an error.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rows import read

Row = Mapping[str, Any]
Curves = Mapping[str, Mapping[float, float]]
"""By policy: error -> mean completion beside that without an error."""
KINDS = {"error": "error of speeds", "work_error": "error of the work left"}
FLAT = 5e-4
"""A policy whose curve stays within so much looks at no such belief."""


def main() -> None:
    """Print the tables; draw the picture if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    print(better(read(options.results / "schedule_better.csv")))
    rows = read(options.results / "schedule_pollux.csv")
    for kind in KINDS:
        print("\n" + errors(rows, kind))
    if options.picture:
        picture(rows, options.picture)


def better(rows: Sequence[Row]) -> str:
    """A line for each setting and knowledge, over all of its workloads."""
    lines = [
        "| setting | speeds; work left | mean completion | beside it | ratio (95 %) | 99th percentile | makespan | target |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["workload"] != "all":
            continue
        target = f"{row['target_avg_s'] / row['published_avg_s']:.2f}" if row["target_avg_s"] else "none"
        makespan = row["makespan_s"] / row["beside_makespan_s"]
        lines.append(
            f"| {row['setting']} | {row['speeds']}; {row['work']} | {row['avg_jct_s']:,.0f} s | {row['beside_avg_s']:,.0f} s "
            f"| {row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f}) | {row['p99_ratio']:.2f} "
            f"| {makespan:.2f} | {target} |"
        )
    return "\n".join(lines)


def curves(rows: Sequence[Row], kind: str) -> Curves:
    """The mean over workloads of each policy at each error, beside that without."""
    other = next(name for name in KINDS if name != kind)
    times: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["part"] == "error" and not row[other]:
            times[row["policy"]][row[kind]].append(row["avg_jct_s"])
    return {
        policy: {error: float(np.mean(values) / np.mean(by_error[0.0])) for error, values in sorted(by_error.items())}
        for policy, by_error in times.items()
    }


def errors(rows: Sequence[Row], kind: str) -> str:
    """A line a policy whose completion depends on such beliefs, the least hurt first; the others in one line below."""
    found = curves(rows, kind)
    flat = [policy for policy, curve in found.items() if max(abs(ratio - 1) for ratio in curve.values()) < FLAT]
    sizes = sorted({error for curve in found.values() for error in curve if error})
    lines = [
        f"| {KINDS[kind]} | " + " | ".join(f"{size:.0%}" for size in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    for policy in sorted(set(found) - set(flat), key=lambda name: found[name][sizes[-1]]):
        lines.append(f"| {policy} | " + " | ".join(f"{found[policy][size] - 1:+.1%}" for size in sizes) + " |")
    return "\n".join([*lines, "", f"Unchanged: {', '.join(flat) or 'none'}."])


def picture(rows: Sequence[Row], path: Path) -> None:
    """Mean completion against the error, one panel a kind of error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(KINDS), figsize=(10.5, 4.2), sharey=True, layout="constrained")
    for axes, kind in zip(panels, KINDS, strict=True):
        found = curves(rows, kind)
        for number, (policy, curve) in enumerate(found.items()):
            if max(abs(ratio - 1) for ratio in curve.values()) < FLAT:
                continue
            wide = policy == "paceline"
            style = {"color": "#c55a11", "lw": 2.5} if wide else {"lw": 1.0, "ls": ("-", "--", "-.", ":")[number % 4]}
            percent = [100 * error for error in curve]
            axes.plot(percent, [100 * (ratio - 1) for ratio in curve.values()], label=policy, **style)
        axes.axhline(0, color="grey", lw=0.8)
        axes.set(xlabel=f"{KINDS[kind]}, standard deviation, %")
        if axes.get_lines()[1:]:
            axes.legend(fontsize=7, ncols=2)
    panels[0].set(ylabel="longer mean completion, %")
    figure.savefig(path)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
