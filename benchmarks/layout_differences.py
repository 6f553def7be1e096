"""Error of the predicted ratio of two layouts of one job, and the constants of ``planning.compare.layout_difference``.

    python benchmarks/layout_differences.py FOLDER --out RESULTS/layout_differences.csv [--write]

FOLDER holds the CSV files of ``plan_regret.py``. Every pair of layouts of one job (as there) has an error: the logarithm of the
measured over the predicted ratio of their steps. Predictions are cold: constants without the chip. A set counts once, and so do
the jobs of a set and the pairs of a job. Forms of the variance, all with one value for every pair (``base``):

- ``base``: nothing else
- ``waits``: launches, links and bubbles, by the difference of their shares of the step, squared
- ``choices``: tensor, pipeline, context and micro batch by their doublings, sharding and recomputation where they differ

Each is fitted without a set and scored on it: ``nll`` is the mean negative log likelihood of a normal distribution, ``inside``
the share of pairs within 80 %. ``--write`` writes the constants of ``waits``, fitted on all sets, to the package.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import date
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from plan_regret import TABLES, Measured, choices, scored
from rows import append
from scipy.optimize import minimize

from paceline.planning.compare import layout_difference
from paceline.planning.compare.layout_difference import WAITS, wait_shares

COLUMNS = ("form", "without", "pairs", "nll", "inside", "rms", *("base", *WAITS))
Array = NDArray[np.float64]
Z80 = 1.2816
LEAST, MOST, USUAL = -12.0, 2 * math.log(5.0), -3.0
"""Logarithms of a variance: the bounds, a standard deviation of at most 5, and the value that no pair contradicts."""


def of_base(one: Measured, other: Measured) -> list[float]:
    """No feature."""
    del one, other
    return []


def of_waits(one: Measured, other: Measured) -> list[float]:
    """Squared differences of the shares of the step."""
    first, second = (wait_shares(x.exposed, x.predicted_s) for x in (one, other))
    return [(first[kind] - second[kind]) ** 2 for kind in WAITS]


def of_choices(one: Measured, other: Measured) -> list[float]:
    """What differs between the layouts."""
    x, y = one.layout, other.layout
    m, n = x.parallelism, y.parallelism
    sizes = ((m.tensor, n.tensor), (m.pipeline, n.pipeline), (m.context, n.context), (x.micro_batch_size, y.micro_batch_size))
    doublings = [abs(math.log2(a / b)) for a, b in sizes]
    return [*doublings, float(m.sharding != n.sharding), float(m.recompute != n.recompute)]


FORMS: Mapping[str, Callable[[Measured, Measured], list[float]]] = {
    "base": of_base,
    "waits": of_waits,
    "choices": of_choices,
}
Table = tuple[Array, Array, Array]
"""Features with a leading 1, squared errors, and weights of the pairs of a set."""


def table(jobs: Mapping[Hashable, Sequence[Measured]], features: Callable[[Measured, Measured], list[float]]) -> Table:
    """Pairs of all jobs of a set."""
    rows, errors, weights = [], [], []
    for layouts in jobs.values():
        pairs = list(combinations(layouts, 2))
        for one, other in pairs:
            rows.append([1.0, *features(one, other)])
            errors.append(math.log(one.measured_s / other.measured_s) - math.log(one.predicted_s / other.predicted_s))
            weights.append(1 / len(pairs) / len(jobs))
    return np.array(rows), np.square(errors), np.array(weights)


def fitted(tables: Sequence[Table]) -> Array:
    """Variances of the features with the greatest likelihood."""

    def loss(logs: Array) -> float:
        variances = np.exp(logs)
        return sum(likelihood(of, variances) for of in tables) + 1e-3 * float(np.sum((logs - USUAL) ** 2))

    count = tables[0][0].shape[1]
    starts = (np.full(count, start) for start in (-4.0, -2.0))
    found = [minimize(loss, start, method="L-BFGS-B", bounds=[(LEAST, MOST)] * count) for start in starts]
    return np.exp(min(found, key=lambda result: result.fun).x)


def likelihood(of: Table, variances: Array) -> float:
    """Mean negative log likelihood, without its constant."""
    features, squared, weights = of
    variance = features @ variances
    return float(weights @ (np.log(variance) + squared / variance)) / 2


def main() -> None:
    """Fit and score, and add a row for each form and set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    sets = {name: of for name in TABLES if (of := choices(scored(options.folder, name)))}
    for form, features in FORMS.items():
        tables = {name: table(of, features) for name, of in sets.items()}
        for without, of in tables.items():
            variances = fitted([other for name, other in tables.items() if name != without])
            rows, squared, weights = of
            inside = float(weights @ (squared < Z80**2 * (rows @ variances)))
            figures = (f"{likelihood(of, variances):.3f}", f"{inside:.3f}", f"{math.sqrt(weights @ squared):.3f}")
            sigmas = [f"{sigma:.3f}" for sigma in np.sqrt(variances)] if form == "waits" else [""] * (1 + len(WAITS))
            values = dict(zip(COLUMNS, (form, without, len(squared), *figures, *sigmas), strict=True))
            append(options.out, COLUMNS, values)
            print(*(f"{name} {value}" for name, value in values.items()), sep=", ", flush=True)
        if options.write and form == "waits":
            write(np.sqrt(fitted(list(tables.values()))), sets)


def write(sigmas: Array, sets: Mapping[str, Mapping[Hashable, Sequence[Measured]]]) -> None:
    """Write the constants to the package."""
    pairs = {name: sum(len(of) * (len(of) - 1) // 2 for of in jobs.values()) for name, jobs in sets.items()}
    source = "pairs of layouts of one job, cold predictions: " + ", ".join(f"{name} {n:,}" for name, n in pairs.items())
    lines = ["# Written by benchmarks/layout_differences.py.", f'date = "{date.today()}"', f'source = "{source}"']
    lines += ["", "[sigma]"]
    lines += [f"{name} = {sigma:.3f}" for name, sigma in zip(("base", *WAITS), sigmas, strict=True)]
    place = Path(layout_difference.__file__).parents[2] / "calibration" / layout_difference.FILE
    place.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
