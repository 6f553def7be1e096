"""Fit the curves of matrix products to measured products and write ``src/paceline/calibration/products.json``.

    python benchmarks/fit_products.py FOLDER --out RESULTS/product_fit.csv

FOLDER holds ``gemm_aiconfigurator.csv.gz``, the measured products of NVIDIA AIConfigurator (commit 095f58a51, Apache-2.0).
RESULTS is benchmarks/results. Each chip and precision has a curve of physical numbers (``ProductCurve``). They move from a
prior that all chips share. A table of corrections follows, which is smooth and small where few rows support it.

The results are errors of rows that the curve has not seen: families of (n, k), ranges of m, and whole chips, whose curve is
that of the nearest chip, scaled by the datasheet. Arc Pro B60 is fitted for comparison only. Rows of int8 and int4 are not
read, nor those of precisions that the catalogue does not give a device (blocks of fp8 on L40S).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rows import append
from scipy.optimize import least_squares

from paceline import hardware
from paceline.array_types import Array, Bools
from paceline.calibration.attention import family
from paceline.calibration.constants import efficiency
from paceline.calibration.product_curves import KNOTS, ProductCurve, product_curve
from paceline.hardware.device import Device, Fact
from paceline.prediction.passes.products import corner_weights, measured_seconds, overhead_seconds

COLUMNS = ("held_out", "device", "precision", "curve_of", "rows", "median_error", "p90_error", "bias")
TARGET = Path(__file__).parents[1] / "src/paceline/calibration/products.json"
FILE = "gemm_aiconfigurator.csv.gz"
SOURCE = "NVIDIA AIConfigurator, ai-dynamo/aiconfigurator @095f58a51, Apache-2.0: measured matrix products, fitted"
SYSTEMS = {
    "a100_sxm": "A100 SXM 80GB",
    "l40s": "L40S",
    "h100_sxm": "H100 SXM",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "gb200": "GB200",
    "b60": "Arc Pro B60",
}
PRECISIONS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4"}
PRIORS = {
    "share": (0.88, 1.1, 0.3, 1.05),
    "sustained": (0.88, 1.1, 0.5, 1.0),
    "heating_s": (2e-3, 3.0, 2e-5, 0.1),
    "feed": (0.02, 2.0, 0.002, 0.3),
    "memory": (0.85, 1.1, 0.3, 1.0),
    "launch_s": (2.5e-6, 1.4, 5e-7, 1e-4),
    "tile_s": (4e-7, 3.0, 1e-8, 1e-4),
    "whole": (0.5, 1.5, 0.05, 1.0),
    "sharpness": (3.0, 1.5, 1.2, 12.0),
    "split": (512.0, 2.0, 64.0, 8192.0),
    "written": (2.0, 2.0, 0.05, 20.0),
    "reread": (0.5, 2.0, 0.01, 5.0),
    "cached": (3e5, 2.0, 2e4, 3e6),
    "cached_sharpness": (5.0, 1.5, 1.0, 20.0),
    "cast_bytes": (5.0, 1.5, 0.3, 20.0),
    "cast_s": (6e-6, 1.5, 1e-7, 1e-4),
    "cast_cached": (0.5, 1.3, 0.05, 1.0),
}
"""What a number is before any measurement, by which factor that may be off (one sigma), and its bounds."""
PRIOR_WEIGHT = 0.01
OUTLIER = 0.08
ROWS = 1500
"""Rows of a curve that its physical numbers are fitted to, at most."""
STARTS = 2
SMOOTH, SMALL = 3.0, 1.0
"""Weights of second differences and of the size of corrections, in rows of one neighbourhood."""
FOLDS = 3
SHAPE = tuple(len(knots) for knots in KNOTS)
NONE = np.zeros(0)

Rows = Array
"""Measured products, (products, [m, n, k, seconds])."""


def read(path: Path) -> dict[tuple[str, str], Rows]:
    """Rows by device and precision."""
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    with gzip.open(path, "rt", newline="") as stream:
        for row in csv.DictReader(stream):
            key = SYSTEMS[row["system"]], PRECISIONS.get(row["gemm_dtype"], "")
            if key[1] in device_of(key[0]).precisions:
                sizes = float(row["m"]), float(row["n"]), float(row["k"])
                found.setdefault(key, []).append((*sizes, float(row["latency"]) / 1e3))
    return {key: np.array(rows) for key, rows in found.items()}


def device_of(name: str) -> Device:
    """A device of the catalogue, or Arc Pro B60 by Intel's datasheet."""
    if name != "Arc Pro B60":
        return hardware.device(name)

    def fact(value: float) -> Fact:
        return Fact(value, "Intel, Arc Pro B60 specifications", "2026-11-29")

    peaks = {"fp32": fact(12.28e12), "bf16": fact(98.5e12), "fp8": fact(98.5e12)}
    return Device(
        name=name,
        kind="gpu",
        peak_flops=peaks,
        memory=fact(24 * 2**30),
        memory_bandwidth=fact(456e9),
        link="PCIe 4.0 x16",
        units=fact(160),
        architecture="Xe2",
    )


def start(name: str, precision: str) -> ProductCurve:
    """The curve before any measurement."""
    device = device_of(name)
    assert device.units is not None
    values = {key: prior for key, (prior, *_) in PRIORS.items() if precision != "bf16" or not key.startswith("cast")}
    return ProductCurve(
        chip=name,
        device=name,
        precision=precision,
        peak=device.peak(precision).value,
        units=device.units.value,
        bandwidth=device.memory_bandwidth.value,
        correction=NONE,
        **values,
    )


def fit(name: str, precision: str, rows: Rows) -> ProductCurve:
    """The curve that fits the rows best, with its corrections."""
    draw, base = np.random.default_rng(0), start(name, precision)
    names = [key for key in PRIORS if precision != "bf16" or not key.startswith("cast")]
    prior, factor, low, high = (np.log(column) for column in zip(*(PRIORS[key] for key in names), strict=True))
    m, n, k, measured = rows[draw.permutation(len(rows))[:ROWS]].T

    def curve(logs: Array) -> ProductCurve:
        return replace(base, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def residuals(logs: Array) -> Array:
        errors = np.log(measured_seconds(curve(logs), m, n, k) / measured)
        return np.concatenate([_loss(errors) / np.sqrt(len(errors)), PRIOR_WEIGHT * (logs - prior) / factor])

    begins = [prior, *(prior + draw.normal(size=len(prior)) * factor for _ in range(STARTS - 1))]
    fits = [
        least_squares(
            residuals,
            np.clip(begin, low + 1e-6, high - 1e-6),
            bounds=(low, high),
            diff_step=3e-3,
            xtol=1e-5,
            ftol=1e-5,
            max_nfev=40,
        )
        for begin in begins
    ]
    best = min(fits, key=lambda found: float(found.cost))
    return corrected(curve(best.x), rows)


def _loss(error: Array) -> Array:
    """Soft L1: its square grows like the error itself beyond ``OUTLIER``."""
    z = (error / OUTLIER) ** 2
    return np.asarray(np.sign(error) * OUTLIER * np.sqrt(2 * (np.sqrt(1 + z) - 1)))


def corrected(curve: ProductCurve, rows: Rows) -> ProductCurve:
    """The curve with the table of corrections that fits the rows best, smooth and small. Launch and cast are not corrected.

    Three rounds, in which rows that are far off count less.
    """
    m, n, k, measured = rows.T
    total, overhead = measured_seconds(curve, m, n, k), overhead_seconds(curve, m, n, k)
    part, errors = 1 - overhead / total, np.log(measured / total)
    corners, weights = corner_weights(m, n, k)
    size = int(np.prod(SHAPE))
    design = np.zeros((len(m), size))
    for corner, weight in zip(corners, weights, strict=True):
        np.add.at(design, (np.arange(len(m)), corner), weight * part)
    density = len(m) / size / 8
    penalty = SMOOTH * _second_differences() + SMALL * np.eye(size)
    table = np.zeros(size)
    for _ in range(3):
        trust = 1 / np.sqrt(1 + ((errors - design @ table) / OUTLIER) ** 2)
        weighted = design * trust[:, None]
        table = np.linalg.solve(weighted.T @ design + density * penalty * 0.2, weighted.T @ errors)
    return replace(curve, correction=np.round(table, 3).reshape(SHAPE))


def _second_differences() -> Array:
    """The matrix of the sum of squared second differences along each axis of the table."""
    total = np.zeros((int(np.prod(SHAPE)),) * 2)
    for axis, count in enumerate(SHAPE):
        second = np.diff(np.eye(count), 2, axis=0)
        parts = [np.eye(other) for other in SHAPE]
        parts[axis] = second.T @ second
        total += np.kron(np.kron(parts[0], parts[1]), parts[2])
    return total


def errors(curve: ProductCurve, rows: Rows) -> Array:
    """Relative errors of a curve on rows, (products,)."""
    m, n, k, measured = rows.T
    return measured_seconds(curve, m, n, k) / measured - 1


def families(rows: Rows) -> Array:
    """The fold of each row: all rows of one (n, k) are in one."""
    draw = np.random.default_rng(1)
    _, inverse = np.unique(rows[:, 1:3], axis=0, return_inverse=True)
    return np.asarray(draw.integers(FOLDS, size=inverse.max() + 1)[inverse])


def ranges(rows: Rows) -> Iterator[Bools]:
    """Ranges of m that are left out: the largest and the smallest."""
    m = rows[:, 0]
    yield m > np.unique(m)[-3]
    yield m <= np.quantile(m, 0.2)


def held_out(name: str, precision: str, rows: Rows) -> Iterator[tuple[str, Array]]:
    """Errors of rows that the fit has not seen, by what was left out."""
    fold = families(rows)
    parts = [(fold == number, errors(fit(name, precision, rows[fold != number]), rows)) for number in range(FOLDS)]
    yield "families of n, k", np.concatenate([found[chosen] for chosen, found in parts])
    parts = [(chosen, errors(fit(name, precision, rows[~chosen]), rows)) for chosen in ranges(rows)]
    yield "ranges of m", np.concatenate([found[chosen] for chosen, found in parts])


def cold(name: str, precision: str, rows: Rows) -> Iterator[tuple[str, str, Array]]:
    """Errors of a chip whose products are not known: without itself, and without its family."""
    device = replace(device_of(name), matmul_flops={})
    own = family(device)
    siblings = frozenset(chip for chip in SYSTEMS.values() if family(device_of(chip)) == own)
    for title, without in (("chip", frozenset({name})), ("family", siblings)):
        curve = product_curve(device, precision, efficiency("tuned").matrix_joules, without)
        if precision == "bf16" or curve.cast_bytes:  # else no other chip has the casts that were measured with these products
            yield title, curve.chip, errors(curve, rows)


ABOUT = "Curves of matrix products; calibration/product_curves.py says what they mean. benchmarks/fit_products.py writes it."


def to_json(curves: dict[str, dict[str, ProductCurve]]) -> str:
    """The file of curves: a line for the facts of a chip, and one for each of its curves."""
    chips = {chip: facts_of(chip) for chip in curves}
    tables = {chip: {precision: numbers(curve) for precision, curve in of.items()} for chip, of in curves.items()}
    of_chips = ",\n".join(f"  {json.dumps(chip)}: {{\n{lines(of, 3)}\n  }}" for chip, of in tables.items())
    head = f' "about": {json.dumps(ABOUT)},\n "source": {json.dumps(SOURCE)}'
    return f'{{\n{head},\n "chips": {{\n{lines(chips, 2)}\n }},\n "curves": {{\n{of_chips}\n }}\n}}\n'


def lines(items: dict[str, Any], indent: int) -> str:
    """Members of an object, a line each."""
    compact = ((name, json.dumps(value, separators=(",", ":"))) for name, value in items.items())
    return ",\n".join(f"{' ' * indent}{json.dumps(name)}: {text}" for name, text in compact)


def facts_of(chip: str) -> dict[str, Any]:
    """Facts of a chip that its curves are relative to."""
    device = device_of(chip)
    assert device.units and device.power and device.cycles
    facts = {"units": device.units.value, "cycles": device.cycles, "bandwidth": device.memory_bandwidth.value}
    facts |= {"power": device.power.value, "peak": device.peak("bf16").value}
    if measured := device.matmul_flops.get("bf16"):
        facts["matmul"] = measured.value
    names = {"architecture": device.architecture, "family": family(device)}
    return {**names, **{key: rounded(value, 6) for key, value in facts.items()}}


def numbers(curve: ProductCurve) -> dict[str, Any]:
    """Numbers of a curve, and its table of corrections in thousandths."""
    own = {key: rounded(value, 4) for key in PRIORS if (value := getattr(curve, key))}
    table = np.round(curve.correction.ravel() * 1000).astype(int).tolist()
    return {"peak": rounded(curve.peak, 6), **own, "correction": table}


def rounded(value: float, digits: int) -> float:
    """The value with these significant digits, whole numbers without a point."""
    text = f"{value:.{digits}g}"
    return int(text) if text.isdigit() else float(text)


def main(folder: Path, out: Path) -> None:
    """Fit, write the curves, and append the errors."""
    measured = read(folder / FILE)
    curves: dict[str, dict[str, ProductCurve]] = {}
    rows: list[dict[str, object]] = []

    def note(what: str, key: tuple[str, str], chip: str, found: Array) -> None:
        off = np.abs(found)
        values = {"median_error": np.median(off), "p90_error": np.quantile(off, 0.9), "bias": np.median(found)}
        entry = {"held_out": what, "device": key[0], "precision": key[1], "curve_of": chip, "rows": len(found)}
        rows.append({**entry, **{name: f"{value:.4f}" for name, value in values.items()}})
        print(*rows[-1].values(), file=sys.stderr, flush=True)

    for key, own in measured.items():
        curve = fit(*key, own)
        note("nothing", key, key[0], errors(curve, own))
        if key[0] != "Arc Pro B60":
            curves.setdefault(key[0], {})[key[1]] = curve
    TARGET.write_text(to_json(curves), encoding="utf-8")
    for key, own in measured.items():
        for what, chip, found in cold(*key, own):
            note(what, key, chip, found)
    for key, own in measured.items():
        for what, found in held_out(*key, own):
            note(what, key, key[0], found)
    for row in rows:
        append(out, COLUMNS, row)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    main(arguments.folder, arguments.out)
