"""Write ``calibration/held_out.toml``: the error of each kind of prediction on published runs that were held out.

    python benchmarks/held_out.py FOLDER

FOLDER holds the CSV files, with the names that ``validation_table.py`` gives them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from validation_table import FILES, run

import paceline.calibration.held_out_error as there
from paceline.record import environment

RUNS = (
    *((name, "none") for name in FILES),
    ("mlperf", "one_node"),
    ("pollux_sia", "up_to=8"),
    ("llmfoundry", "one_node"),
    ("vtrain", "up_to=2"),
)
"""Runs whose rows are pooled; each sees what it names."""


def main(folder: str) -> None:
    """Validate every set, pool its rows by kind and write the figures."""
    errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, info in RUNS:
        for point in run(folder, name, info).points:
            level = "ordinary" if point.case.software == "ordinary" else "tuned"
            divided = any(s.strategy.parallelism.model_devices > 1 for s in point.case.settings)
            kind = there.kind(level, max(1, point.case.keys.nodes), info != "none", divided)
            errors[kind][name.split()[0]].append(point.error)
        print(name, info, flush=True)
    here = environment(())
    lines = [
        "# Written by benchmarks/held_out.py.",
        f'date = "{here["date"][:10]}"',
        f'commit = "{here["commit"]}"',
    ]
    for kind in sorted(errors):
        each = ", ".join(f"{name} = {np.mean(set_errors):.4f}" for name, set_errors in errors[kind].items())
        points = sum(map(len, errors[kind].values()))
        lines += ["", "[[error]]", f'kind = "{kind}"', f"points = {points}", f"sets = {{{each}}}"]
    Path(there.__file__).with_name(there.FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
