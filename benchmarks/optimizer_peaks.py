"""Published peaks of memory against predicted ones, for optimizers, updates and stored weights.

    python benchmarks/optimizer_peaks.py [--out results/optimizer_peaks.csv]

No constant was fitted to these rows. Runs of one device are in ``optimizer_peaks.toml`` with their sources. The prediction
leaves out what PyTorch's counters leave out: the context, and paged state.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rows import append

from paceline.cli.arguments.prediction_inputs import prediction_inputs, predictor
from paceline.cli.command_line import build_parser
from paceline.cli.parser import parse
from paceline.strategy import OPTIMIZERS

COLUMNS = ("row", "published_gib", "predicted_gib", "error")
ROWS = Path(__file__).with_suffix(".toml")
UNITS = {"GB": 1e9, "GiB": 2.0**30, "MiB": 2.0**20}
"""Bytes of the units of published peaks."""


@dataclass(frozen=True)
class Peak:
    """One published peak and the predicted one, in bytes."""

    name: str
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.published - 1


def peaks(path: Path = ROWS) -> Iterator[Peak]:
    """Yield every row with its prediction."""
    for name, row in tomllib.loads(path.read_text(encoding="utf-8")).items():
        yield Peak(name, row["published"] * UNITS[row["unit"]], predicted_bytes(row))


def predicted_bytes(row: Mapping[str, Any]) -> float:
    """Return the bytes that a row's counter would show."""
    with tempfile.TemporaryDirectory() as folder:
        command = row["command"]
        if "config" in row:
            (Path(folder) / "config.json").write_text(json.dumps(row["config"]), encoding="utf-8")
            command = command.replace("CONFIG", folder)
        options = parse(build_parser(), ["predict", *shlex.split(command)])
        prediction = predictor(options).step(*prediction_inputs(options))
    paged = OPTIMIZERS[prediction.strategy["optimizer"]].paged and row["counted"] != "device"
    counted = {
        "device": prediction.memory_bytes,
        "reserved": prediction.reserved_bytes,
        "allocated": prediction.allocated_bytes,
    }
    return counted[row["counted"]] - (prediction.memory["optimizer state"] if paged else 0.0)


def main() -> None:
    """Print the table and the median error, and append the rows to a file if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    found = list(peaks())
    print(f"{'row':<26}{'published GiB':>14}{'predicted GiB':>14}{'error':>8}")
    for peak in found:
        published, predicted = peak.published / 2**30, peak.predicted / 2**30
        print(f"{peak.name:<26}{published:>14.2f}{predicted:>14.2f}{peak.error:>+8.1%}")
        if out:
            values = (peak.name, f"{published:.2f}", f"{predicted:.2f}", f"{peak.error:+.3f}")
            append(out, COLUMNS, dict(zip(COLUMNS, values, strict=True)))
    print(f"median of absolute errors: {statistics.median(abs(peak.error) for peak in found):.1%}")


if __name__ == "__main__":
    main()
