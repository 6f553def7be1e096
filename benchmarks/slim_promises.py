"""Promises of slimming, kept or not: predicted against measured latency, and the budget by another clock: rows of a CSV file.

    nice -n -5 python benchmarks/slim_promises.py --out RESULTS/slim_promises.csv
    python benchmarks/slim_promises.py --only unet lstm --out FILE
    python benchmarks/slim_promises.py --small-lstm --out RESULTS/slim_promises.csv
    python benchmarks/slim_promises.py --tokens --out RESULTS/slim_promises.csv
    python benchmarks/slim_promises.py --short --out FILE
    python benchmarks/slim_promises.py --summary --out RESULTS/slim_promises.csv --page docs/slim.md

RESULTS is benchmarks/results. One row an architecture of ``slim_reach.py`` that is traced in seconds (``SLOW`` are left out).
Weights are random and nothing is trained: latency does not depend on it. Each layer has its own width. The budget is the
first of ``BUDGETS`` that is met.

- ``error``: predicted over measured latency of the slimmed network, less 1, each relative to the whole one; ``table_error``:
  the same without the correction by one measured network. Measured is the median of ratios in turns, by the processor time of
  the process, with its quartiles. The promise is 15 %.
- ``over``: the slimmed network, after the removal that keeps the budget, over the budget, less 1. It is measured in a fresh
  process by its processor time (``fresh_ratio.py``): the least of each turn, the median of ratios. The promise is 5 %, on both
  sides: a network that became much smaller than asked is counted apart.

--small-lstm takes an LSTM of 50 to 100 µs to a third, with weights of three seeds, each in three tries. Its clock drifts most.
--tokens slims three language models to the time of a token and of a prompt (``token_promises.py``).

--summary measures nothing: it prints the page's sentences and table (``promise_tables.py``), and the rows that break a promise.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from promise_tables import SMALL, TOKENS, misses, renew, section
from reach_networks import NETWORKS, Made
from rows import append, read
from token_promises import TRIES, token_promise

from paceline.edge.kept_budget import shrunk
from paceline.errors import UserError, shorten
from paceline.slimming.export.onnx_export import feed, open_session, to_onnx
from paceline.slimming.slim import Slim

COLUMNS = (
    "architecture",
    "from",
    "budget",
    "whole_ms",
    "predicted",
    "measured",
    "low",
    "high",
    "error",
    "table_error",
    "other_clock",
    "over",
    "seconds",
    "load",
    "why",
)
BUDGETS = (2.0, 1.5, 1.2, 1.1)
SLOW = ("vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "levit_128s", "res2net50_14w_8s", "pit_ti_224", "mobilevit_xxs")
SHORT = ("lstm", "conv3d")
SEEDS, REPEATS = 3, 3


def main(arguments: list[str] | None = None) -> None:
    """Measure and add rows, or print their summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[name for name in NETWORKS if name not in SLOW], choices=list(NETWORKS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--short", action="store_true", help="two small networks")
    parser.add_argument("--small-lstm", action="store_true", help="an LSTM below 0.1 ms, three seeds, three tries")
    parser.add_argument("--tokens", action="store_true", help="three language models, to the time of a token and of a prompt")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--page", type=Path, help="with --summary: the page whose part is written again")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.summary:
        rows = read(options.out)
        print("\n".join([section(rows, list(NETWORKS)), *misses(rows)]))
        if options.page:
            renew(options.page, rows, list(NETWORKS))
        return
    done = {row["architecture"] for row in read(options.out)} if options.out.exists() else set()
    tries = {f"{SMALL} seed {seed} try {number}": seed for seed in range(SEEDS) for number in range(REPEATS)}
    for name in SHORT if options.short else tries if options.small_lstm else TRIES if options.tokens else options.only:
        if name not in done:
            row = made_row(name, TOKENS, partial(token_promise, *TRIES[name])) if name in TRIES else None
            row = row or (small_lstm(name, tries[name]) if name in tries else promise(name, *NETWORKS[name]))
            append(options.out, COLUMNS, row)
            print(*(row.get(each, "") for each in ("architecture", "budget", "error", "over", "why")), flush=True)


class Small(torch.nn.Module):
    """Two LSTM layers and an output, over 12 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.output = torch.nn.LSTM(16, 96, 2, batch_first=True), torch.nn.Linear(96, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sequences to their last outputs."""
        result: torch.Tensor = self.output(self.layers(x)[0][:, -1])
        return result


def small_lstm(name: str, seed: int) -> dict[str, object]:
    """Row of a try with the small LSTM."""
    return promise(name, SMALL, lambda: (Small(), (torch.randn(1, 12, 16),)), seed, (3.0, *BUDGETS))


def promise(
    name: str, library: str, make: Callable[[], Made], seed: int = 0, budgets: Sequence[float] = BUDGETS
) -> dict[str, object]:
    """Row of one architecture."""
    return made_row(name, library, lambda: kept_promise(make(), budgets), seed)


def made_row(name: str, library: str, figures: Callable[[], dict[str, object]], seed: int = 0) -> dict[str, object]:
    """Row with the figures, or with the reason why there are none."""
    start = time.thread_time()
    row: dict[str, object] = {"architecture": name, "from": library}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weights that are removed before they are zero
            torch.manual_seed(seed)
            row |= figures()
    except UserError as error:
        row["why"] = shorten(error.message)
    except Exception as error:  # a network that does not run is a row
        row["why"] = shorten(f"{type(error).__name__}: {error}")
    return row | {"seconds": f"{time.thread_time() - start:.1f}", "load": f"{os.getloadavg()[0]:.1f}"}


def kept_promise(made: Made, budgets: Sequence[float]) -> dict[str, object]:
    """Predicted and measured ratios of a network at its budget."""
    model, inputs = made[0].eval(), made[1]
    slim = Slim(model, inputs, budget=f"speedup={budgets[0]:g}x", widths="free")
    small, refusal = None, None
    for budget in budgets:
        slim = Slim(model, inputs, budget=f"speedup={budget:g}x", table=slim.table, widths="free")
        try:
            small = slim.shrink().eval()
            break
        except UserError as error:
            refusal = error
    if small is None:
        raise refusal or UserError("no budget", "give one")
    whole_s, power = slim.whole.median_s, float(slim.times.to_json()["power"])
    predicted = (slim.predicted_s or 0.0) / whole_s
    found = slim.latency({"whole": model, "small": small})
    measured, low, high = (each / found["whole"].median_s for each in _quartiles(found["small"]))
    _, kept, _ = shrunk(slim)
    other = other_clock(model, kept.eval(), slim.inputs)
    return {
        "budget": str(slim.budget),
        "whole_ms": f"{1e3 * found['whole'].median_s:.4f}",
        "predicted": f"{predicted:.4f}",
        "measured": f"{measured:.4f}",
        "low": f"{low:.4f}",
        "high": f"{high:.4f}",
        "error": f"{predicted / measured - 1:.3f}",
        "table_error": f"{predicted ** (1 / power) / measured - 1:.3f}",
        "other_clock": f"{other:.4f}",
        "over": f"{other * slim.budget.value - 1:.3f}",
    }


def _quartiles(latency: Any) -> tuple[float, float, float]:
    return latency.median_s, latency.low_s, latency.high_s


def other_clock(whole: torch.nn.Module, small: torch.nn.Module, inputs: tuple[Any, ...]) -> float:
    """Latency of the small network over the whole one's, measured in a fresh process."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for each, name in ((whole, "whole"), (small, "small")):
            file = to_onnx(each, inputs, folder / f"{name}.onnx")
        np.savez(folder / "inputs.npz", **dict(feed(open_session(file), inputs)))
        command = [sys.executable, str(Path(__file__).with_name("fresh_ratio.py")), directory]
        return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)


if __name__ == "__main__":
    main()
