"""Published runs with state or activations in the host's memory, next to Paceline's predictions.

    python benchmarks/offload_published.py [--out results/offload_published.csv]

``offload_published.csv`` has a run a line: its source, the options of ``paceline predict``, and what was measured. Measures:
``step_s``, a step; ``host_s``, the part of it that the host takes; ``tflops``, eight times parameters and tokens over a step;
``ratio``, the step over that of ``baseline``. A run with something in ``seen`` gave a constant and is not counted.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shlex
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

from rows import append

from paceline.cli import main as paceline
from paceline.exit_codes import ExitCode

HERE = Path(__file__).parent
COLUMNS = ("id", "measure", "published", "predicted", "low", "high", "error", "inside", "waits_for", "seen", "url")
TOKENS = 512 * 1024
"""Tokens of a step of the run in TFLOPS."""
PASSES = 8.0
"""FLOPs of a parameter and a token with recomputation, as Ren et al. 2021 count them."""


def predicted(command: str) -> dict[str, Any]:
    """Return the JSON answer of ``paceline predict``. Raises RuntimeError if it is refused."""
    out = io.StringIO()
    with chdir(HERE), redirect_stdout(out):
        code = paceline(["predict", *shlex.split(command), "--json"])
    if code not in (ExitCode.DONE, ExitCode.NO):
        raise RuntimeError(f"refused: {command}")
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


def scored() -> Iterator[dict[str, object]]:
    """Yield each run with its prediction."""
    with (HERE / "offload_published.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        answer, measured = predicted(row["command"]), float(row["published"])
        seconds = [answer[name] for name in ("step_time_s", "low_s", "high_s")]
        if row["measure"] == "host_s":
            host = answer["exposed"]["host"]
            seconds = [host, *(host + end - seconds[0] for end in seconds[1:])]
        if row["measure"] == "ratio":
            base = predicted(row["baseline"])["step_time_s"]
            seconds = [each / base for each in seconds]
        if row["measure"] == "tflops":
            flops = PASSES * 10e9 * TOKENS / 1e12
            seconds = [flops / each for each in (seconds[0], seconds[2], seconds[1])]
        here, low, high = seconds
        yield {
            **{name: row[name] for name in ("id", "measure", "published", "seen", "url")},
            **{"predicted": f"{here:.4g}", "low": f"{low:.4g}", "high": f"{high:.4g}", "error": f"{here / measured - 1:+.3f}"},
            "inside": low <= measured <= high,
            "waits_for": answer["bottleneck"],
        }


def main() -> None:
    """Print the table, and append it to a file if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    rows = list(scored())
    for row in rows:
        print(" ".join(f"{row[name]!s:>22}" for name in COLUMNS[:-2]))
        if out:
            append(out, COLUMNS, row)
    errors = [abs(float(str(row["error"]))) for row in rows if not row["seen"]]
    print(f"{len(errors)} runs: median {median(errors):.1%}, inside {sum(bool(r['inside']) for r in rows if not r['seen'])}")


if __name__ == "__main__":
    main()
