"""Predicted step time beside the measured one, on the machine at hand: the demo's runs, several times over.

    python benchmarks/step_time.py --repeats 3 --out RESULTS/step_time.csv

RESULTS is benchmarks/results. One row a run: what was predicted before it, what was measured in it, the error.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from rows import append

from paceline.strategy import Strategy
from paceline.training.runs.train import train_run
from paceline.training.runs.training_run import TrainingRun

COLUMNS = (
    "workers",
    "compression",
    "exchange",
    "repeat",
    "predicted_ms",
    "low_ms",
    "high_ms",
    "measured_ms",
    "measured_p10_ms",
    "measured_p90_ms",
    "error",
)


def main() -> None:
    """Run every case and add its row to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--compressions", nargs="+", default=["dense", "terngrad"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    errors: list[float] = []
    for repeat in range(options.repeats):
        for workers in options.workers:
            for compression in options.compressions:
                row = measure(workers, compression, options.epochs)
                errors.append(float(row["error"]))
                append(options.out, COLUMNS, {**row, "repeat": repeat})
                print({k: row[k] for k in ("workers", "compression", "predicted_ms", "measured_ms", "error")}, flush=True)
    absolute = [abs(e) for e in errors]
    inside = sum(e <= 0.25 for e in absolute)
    print(f"median |error| {statistics.median(absolute):.1%}, worst {max(absolute):.1%}, within 25 %: {inside}/{len(absolute)}")


def measure(workers: int, compression: str, epochs: int) -> dict[str, object]:
    """One run of LeNet-5 on digits."""
    strategy = Strategy.of(world_size=workers, global_batch_size=64, compression=compression)
    with tempfile.TemporaryDirectory() as out:
        record, predicted = train_run(TrainingRun(model="lenet5", data="digits", strategy=strategy, epochs=epochs, out=out))
    return {
        "workers": workers,
        "compression": compression,
        "exchange": strategy.gradient_exchange.exchange.name,
        **{
            f"{name}_ms": round(1e3 * value, 2)
            for name, value in (
                ("predicted", predicted.step_time_s),
                ("low", predicted.low_s),
                ("high", predicted.high_s),
                ("measured", record.step_time_s),
                ("measured_p10", record.low_s),
                ("measured_p90", record.high_s),
            )
        },
        "error": round(predicted.step_time_s / record.step_time_s - 1, 3),
    }


if __name__ == "__main__":
    main()
