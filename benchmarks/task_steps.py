"""Published steps and verdicts of preference and reward training against predicted ones.

    python benchmarks/task_steps.py [--out results/task_steps.csv]

No constant was fitted to these rows, which are in ``task_steps.toml`` with their sources.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rows import append

from paceline.cli.arguments.prediction_inputs import prediction_inputs, predictor
from paceline.cli.command_line import build_parser
from paceline.cli.parser import parse

COLUMNS = ("row", "quantity", "published", "predicted", "error")
ROWS = Path(__file__).with_suffix(".toml")
FITS = "fits"
VERDICTS = {"fits": 1.0, "may not fit": 0.5, "does not fit": 0.0}


@dataclass(frozen=True)
class TaskRow:
    """One published figure of a step and the predicted one. Verdicts are 1 if the step fits, 0 if not, 0.5 if it may not."""

    name: str
    quantity: str
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative error of a predicted figure."""
        return self.predicted / self.published - 1

    @property
    def verdict(self) -> str:
        """A predicted verdict, compared with the published one."""
        return "unsure" if self.predicted == 0.5 else "right" if self.predicted == self.published else "wrong"


def rows(path: Path = ROWS) -> Iterator[TaskRow]:
    """Yield every row with its prediction."""
    for name, row in tomllib.loads(path.read_text(encoding="utf-8")).items():
        yield TaskRow(name, row["quantity"], float(row["published"]), predicted(row))


def predicted(row: Mapping[str, Any]) -> float:
    """Return the predicted figure of a row."""
    options = parse(build_parser(), ["predict", *shlex.split(row["command"])])
    p = predictor(options).step(*prediction_inputs(options))
    figures = {FITS: VERDICTS[p.fit], "peak": p.memory_bytes / 2**30, "step": p.step_time_s * row.get("times", 1), **p.parts}
    return float(figures[row["quantity"]])


def main() -> None:
    """Print the table, the median error and the verdicts, and append the rows to a file if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    found = list(rows())
    print(f"{'row':<22}{'quantity':<12}{'published':>10}{'predicted':>10}{'error':>9}")
    for row in found:
        error = row.verdict if row.quantity == FITS else f"{row.error:+.0%}"
        print(f"{row.name:<22}{row.quantity:<12}{row.published:>10.3g}{row.predicted:>10.3g}{error:>9}")
        if out:
            values = (row.name, row.quantity, f"{row.published:.4g}", f"{row.predicted:.4g}", error)
            append(out, COLUMNS, dict(zip(COLUMNS, values, strict=True)))
    figures = [abs(row.error) for row in found if row.quantity != FITS]
    verdicts = [row.verdict for row in found if row.quantity == FITS]
    print(f"median of {len(figures)} absolute errors: {statistics.median(figures):.0%}")
    print(f"verdicts: {verdicts.count('right')} of {len(verdicts)} right, {verdicts.count('wrong')} wrong")


if __name__ == "__main__":
    main()
