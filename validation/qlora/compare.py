"""Published runs with frozen weights of 4 bits: their peak memory, speed and fit next to Paceline's.

    python validation/qlora/compare.py [--out FILE]

``runs.csv`` has one run a line: the options of ``paceline predict``, and what was measured. Memory is in GB; ``allocated``
counts PyTorch's tensors, ``device`` all that the board holds. No constant of Paceline was fitted to these runs.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shlex
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from paceline.cli import main as paceline
from paceline.memory_timeline import BEYOND

RUNS = Path(__file__).with_name("runs.csv")
GB = 1e9
NEAR = 0.15
"""Largest error of a memory that counts as met."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A published run next to its prediction.

    Attributes:
        measured_gb, predicted_gb: peak memory of a device. ``memory_error``: the prediction's, as a fraction; None without one.
        speed_error: the same of tokens a second. ``inside``: whether the measured speed is in the range.
        fits: whether it ran; None if the source does not say. ``verdict``: ``fits``, ``may not fit`` or ``does not fit``.
    """

    id: str
    measured_gb: float | None
    predicted_gb: float
    memory_error: float | None
    measured_tokens_per_s: float | None
    predicted_tokens_per_s: float
    speed_error: float | None
    inside: bool | None
    fits: bool | None
    verdict: str

    @property
    def is_dangerous(self) -> bool:
        """True if the answer is fits and the run ran out of memory."""
        return self.fits is False and self.verdict == "fits"

    @property
    def is_refused(self) -> bool:
        """True if the run ran and the answer is does not fit."""
        return self.fits is True and self.verdict == "does not fit"


def scored(row: dict[str, str]) -> Scored:
    """Return one row with its prediction. Raises RuntimeError if the command is refused."""
    words = shlex.split(row["command"])
    answer = predicted(words)
    each = float(words[words.index("--seq-len") + 1])
    tokens, of_step = each * answer["samples_per_s"], each * answer["strategy"]["global_batch_size"]
    beyond = sum(answer["memory"].get(name, 0.0) for name in BEYOND) if row["counts"] == "allocated" else 0.0
    memory = (answer["memory_bytes"] - beyond) / GB
    measured, speed = (float(row[name]) if row[name] else None for name in ("memory", "tokens_per_s"))
    slowest, fastest = of_step / answer["high_s"], of_step / answer["low_s"]
    return Scored(
        id=row["id"],
        measured_gb=measured,
        predicted_gb=round(memory, 2),
        memory_error=round(memory / measured - 1, 3) if measured else None,
        measured_tokens_per_s=speed,
        predicted_tokens_per_s=round(tokens),
        speed_error=round(tokens / speed - 1, 3) if speed else None,
        inside=slowest <= speed <= fastest if speed else None,
        fits={"yes": True, "no": False}.get(row["fits"]),
        verdict=answer["fit"],
    )


def predicted(words: Sequence[str]) -> dict[str, Any]:
    """Return the JSON answer of ``paceline predict``. Raises RuntimeError if it is refused."""
    out = io.StringIO()
    with redirect_stdout(out):
        code = paceline(["predict", *words, "--json"])
    if code not in (None, 0, 3):  # 3: the answer is that it does not fit
        raise RuntimeError(f"refused: {shlex.join(words)}")
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


def summary(runs: Sequence[Scored]) -> str:
    """Return the figures of all runs in one paragraph."""
    memory = [abs(run.memory_error) for run in runs if run.memory_error is not None]
    speed = [abs(run.speed_error) for run in runs if run.speed_error is not None]
    near = sum(error <= NEAR for error in memory)
    inside = sum(run.inside is True for run in runs)
    verdicts = [run for run in runs if run.fits is not None]
    wrong = [run.id for run in verdicts if run.is_dangerous or run.is_refused]
    return (
        f"memory: median error {median(memory):.1%}, {near} of {len(memory)} within {NEAR:.0%}; "
        f"speed: median {median(speed):.1%}, {inside} of {len(speed)} inside the range; "
        f"verdicts: {len(verdicts) - len(wrong)} of {len(verdicts)} right, "
        f"{sum(run.is_dangerous for run in verdicts)} said to fit that ran out of memory"
        + (f"; wrong: {', '.join(wrong)}" if wrong else "")
    )


def main() -> None:
    """Score all runs, print them, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="CSV of the scored runs")
    out = parser.parse_args().out
    with RUNS.open(newline="") as file:
        runs = [scored(row) for row in csv.DictReader(file)]
    for run in runs:
        error = "" if run.memory_error is None else f"{run.memory_error:+.0%}"
        speed = "" if run.speed_error is None else f"{run.speed_error:+.0%}"
        print(f"{run.id:14}{run.measured_gb or '':>8}{run.predicted_gb:9.1f} GB {error:>6} {speed:>6}  {run.verdict}")
    print(summary(runs))
    if out is not None:
        with out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(runs[0])), lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(asdict, runs))


if __name__ == "__main__":
    main()
