"""The table of ``docs/validation.md``: every set, what may be seen of it, and the errors beside those of the baselines.

    python benchmarks/validation_table.py FOLDER

FOLDER holds the CSV files, by the names below.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from paceline.validation import Info, validate

FILES = {
    "neusight": "neusight_model_latency",
    "mlperf": "mlperf_training",
    "pollux_sia": "pollux_sia_dataparallel",
    "llmfoundry": "llmfoundry_mpt_fsdp",
    "lambda": "lambda_single_node",
    "tf_benchmarks": "tf_benchmarks_2017_k80_p100",
    "nvidia_dle": "nvidia_dle",
    "vtrain": "vtrain_megatron_a100",
}
RUNS = (
    ("neusight", "none"),
    ("mlperf", "none"),
    ("mlperf", "one_node"),
    ("pollux_sia", "none"),
    ("pollux_sia", "up_to=8"),
    ("llmfoundry", "none"),
    ("llmfoundry", "one_device"),
    ("llmfoundry", "one_node"),
    ("lambda", "none"),
    ("lambda", "one_device"),
    ("tf_benchmarks", "none"),
    ("tf_benchmarks", "one_device"),
    ("nvidia_dle", "none"),
    ("vtrain", "none"),
    ("vtrain", "up_to=2"),
)
HEAD = ("set", "seen", "points", "cover", "MAPE", "median", "p90", "in 80 %", "baselines (MAPE)")


def percent(value: float | None) -> str:
    """A fraction as a percentage."""
    return "-" if value is None else f"{100 * value:.1f}"


def row(name: str, info: str, figures: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    shares = (figures[key] for key in ("coverage", "mape", "median", "p90", "interval_share"))
    baselines = ", ".join(f"{one} {percent(error)}" for one, error in figures["baselines"].items())
    return name, info, str(figures["points"]), *map(percent, shares), baselines or "-"


def main(folder: str) -> None:
    """Print the table as Markdown, and the groups that the targets name."""
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    for name, info in RUNS:
        done = validate(name, Path(folder) / f"{FILES[name]}.csv", Info.parse(info))
        print("| " + " | ".join(row(name, info, done.total)) + " |", flush=True)
        if (name, info) == ("mlperf", "none"):
            eight = next(group for group in done.groups if group["by"] == "scale" and group["name"] == "8")
            print("| " + " | ".join(row("mlperf, 8 accelerators", info, eight)) + " |")
        if "sync_share_points" in done.total:
            print(f"| {name}, share of the wait | {info} | | | {done.total['sync_share_points']:.1f} points | | | | |")


if __name__ == "__main__":
    main(sys.argv[1])
