"""The tables of ``docs/validation.md``: for every set, what is visible of it, and the errors beside those of the baselines.

    python benchmarks/validation_table.py FOLDER --out RESULTS/validation.csv

FOLDER holds the CSV files, with the names below. RESULTS is benchmarks/results. Its file keeps the first table of every commit
that it was run on; the last table printed compares the oldest figures of each line with these.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

from rows import append, read

from paceline.validation import Info, Validation, validate
from paceline.validation.case import HoldOut

FILES = {
    "neusight": "neusight_model_latency",
    "mlperf": "mlperf_training",
    "pollux_sia": "pollux_sia_dataparallel",
    "llmfoundry": "llmfoundry_mpt_fsdp",
    "lambda": "lambda_single_node",
    "tf_benchmarks": "tf_benchmarks_2017_k80_p100",
    "nvidia_dle": "nvidia_dle",
    "vtrain": "vtrain_megatron_a100",
    "mlperf v2.0 to v3.1": "mlperf_training_v2_v3",
    "megatron_bridge": "megatron_bridge_h100",
    "dgxc": "nvidia_dgxc_h100_bf16",
}
"""Files by set; what follows the first word says which rows of the set."""
RUNS = (
    ("mlperf", "up_to=16"),
    ("mlperf", "one_node"),
    ("mlperf", "none"),
    ("neusight", "none"),
    ("pollux_sia", "none"),
    ("pollux_sia", "up_to=8"),
    ("llmfoundry", "none"),
    ("llmfoundry", "none, model held out"),
    ("llmfoundry", "one_node"),
    ("lambda", "none"),
    ("lambda", "one_device"),
    ("tf_benchmarks", "none"),
    ("tf_benchmarks", "one_device"),
    ("nvidia_dle", "none"),
    ("vtrain", "none"),
    ("vtrain", "up_to=2"),
    ("mlperf v2.0 to v3.1", "none"),
    ("mlperf v2.0 to v3.1", "one_node"),
    ("mlperf v2.0 to v3.1", "up_to=16"),
    ("megatron_bridge", "none"),
    ("megatron_bridge", "none, model held out"),
    ("dgxc", "none"),
    ("dgxc", "none, model held out"),
)
"""Each with what is visible of it, and what the constants were fitted without where that is not usual."""
HEAD = ("set", "seen", "points", "cover", "MAPE", "median", "p90", "in 80 %", "wait, points", "baseline: MAPE / ours (rows)")
KEPT = {"points": "rows", "coverage": "coverage", "mape": "mape", "median": "median", "p90": "p90", "interval_share": "inside"}
"""Figures that the file keeps, and its columns. Shares are fractions."""
SCALES = ((1, 8), (9, 15), (16, 16), (17, 64), (65, 256), (257, 1024), (1025, inf), (16, inf))
"""Numbers of devices, from and to; the last is that of the target on pollux_sia."""
BY_SCALE = (("mlperf", "none"), ("mlperf", "up_to=16"), ("mlperf", "one_node"), ("pollux_sia", "up_to=8"))


def percent(value: float | None) -> str:
    """A fraction as a percentage."""
    return "-" if value is None else f"{100 * value:.1f}"


def line(*cells: str) -> str:
    """A row of Markdown."""
    return "| " + " | ".join(cells) + " |"


def run(folder: str, name: str, info: str) -> Validation:
    """One of ``RUNS``."""
    seen, _, without = info.partition(", ")
    hold_out: HoldOut | None = "model" if without == "model held out" else None
    return validate(name.split()[0], Path(folder) / f"{FILES[name]}.csv", Info.parse(seen), hold_out)


def row(name: str, info: str, done: Validation) -> str:
    """One line of the first table."""
    figures: Mapping[str, Any] = done.to_json()
    own, count = figures["mape_on_baseline_rows"], figures["baseline_points"]
    cells = [
        f"{baseline} {percent(error)} / {percent(own[baseline])} ({count[baseline]})"
        for baseline, error in figures["baselines"].items()
    ]
    shares = (percent(figures[key]) for key in ("coverage", "mape", "median", "p90", "interval_share"))
    wait = f"{figures['sync_share_points']:.1f}" if "sync_share_points" in figures else "-"
    nothing = done.info.kind != "none" and not done.seen  # the file has no such row: said, or one would think that it helped
    visible = f"{info} (0 rows)" if nothing else info
    return line(name, visible, str(figures["points"]), *shares, wait, ", ".join(cells) or "-")


def scales(done: Validation) -> Iterator[str]:
    """Lines of the second table: the groups of single scales, averaged by their points."""
    groups = [group for group in done.groups if group["by"] == "scale" and group["points"]]
    for low, high in SCALES:
        chosen = [group for group in groups if low <= int(group["name"]) <= high]
        if points := sum(group["points"] for group in chosen):
            name = str(low) if low == high else f"{low} and more" if high == inf else f"{low} to {high}"
            means = (sum(g[key] * g["points"] for g in chosen) / points for key in ("mape", "interval_share"))
            yield line(done.name, str(done.info), name, str(points), *map(percent, means))


def compared(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Lines of the last table: the oldest and the newest figures of each line of ``RUNS``. A line that was never run before has
    no older ones; a line whose rows became more names both numbers."""
    by_line: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for kept in rows:
        by_line.setdefault((str(kept["set"]), str(kept["seen"])), []).append(kept)
    for key in RUNS:
        if key in by_line:
            old, new = by_line[key][0], by_line[key][-1]
            before = old if old is not new else dict.fromkeys(old)
            shares = (percent(each[column]) for column in ("mape", "inside") for each in (before, new))
            yield line(*key, str(before["commit"] or "new"), *shares, str(before["rows"] or "-"), str(new["rows"]))


def main(folder: str, out: Path | None) -> None:
    """Print the tables as Markdown, and keep the first in ``out``."""
    print(line(*HEAD) + "\n|" + "---|" * len(HEAD))
    by_scale = []
    for name, info in RUNS:
        done = run(folder, name, info)
        print(row(name, info, done), flush=True)
        if (name, info) in BY_SCALE:
            by_scale += scales(done)
        if out:
            figures = {column: round(done.total[key], 4) for key, column in KEPT.items()}
            append(out, ("set", "seen", *KEPT.values()), {"set": name, "seen": info, **figures})
    heads = ("set", "seen", "devices", "points", "MAPE", "in 80 %")
    print("\n" + line(*heads) + "\n|" + "---|" * len(heads))
    print("\n".join(by_scale))
    if out:
        heads = ("set", "seen", "before, at", "MAPE before", "now", "in 80 % before", "now", "rows before", "now")
        print("\n" + line(*heads) + "\n|" + "---|" * len(heads))
        print("\n".join(compared(read(out))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path)
    main(**vars(parser.parse_args()))
