"""Fit the constants of the prediction on published measurements and write ``src/paceline/calibration/constants.toml``.

    python benchmarks/fit_prediction.py FOLDER [--only NAME ...]

FOLDER holds the CSV files that ``paceline validate`` reads. Each constant has a prior, a value from physics or from a
datasheet, and the measurements move it. The loss is of the logarithms of predicted to measured seconds, and an outlier cannot
rule it (soft L1). Every group of rows (set, model, device, precision) counts as much as any other.

Then each device that several sources measured gets a factor on its seconds (``device_effects``), in no fit without its chip.

Beside the constants of all rows the file holds those fitted without each chip (all boards of an architecture), each model and
each scale (one device, several, several nodes), for predictions that must not have seen it:
``paceline.calibration.constants.efficiency(level, without=NAME)``. ``fit_rows.py`` says which rows are read.

The fit without a model leaves out few rows: it starts at the fit of all rows and keeps the derivatives and the waits found
there (chord method). Those without a chip or a scale start from the priors.

``--only`` fits the constants of these names. In every fit the others are those that the file has without the same name, and the
waits are those with the fit of all rows.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from fit_rows import FILES, KERNELS, Point, constants_of, host_cases, points, scales, whole_step
from scipy.optimize import least_squares

from paceline.array_types import Array, Bools
from paceline.calibration.constants import LEVELS, Efficiency, SoftwareLevel, efficiency
from paceline.calibration.uncertainty import Z80
from paceline.validation.case import Case

TARGET = Path(__file__).parents[1] / "src/paceline/calibration/constants.toml"
HELD_OUT = TARGET.with_name("constants_held_out.toml")
LEAST = {
    "ordinary": {"base": 0.12, "device": 0.12, "model": 0.04},
    "tuned": {"base": 0.04, "device": 0.08, "model": 0.04},
}
"""Sigmas at least, by level. Submitters of one system differ by 4 %, framework code as people write it by three times that. A
chip's rows are 5 % off those of others in the mean; a new architecture gets half as much again, in ordinary software twice."""
SOURCES = 2
"""Sources at least that a device's own factor is taken from."""
CONVOLVING = 0.5
"""Share of the time from which on a row is one of convolutions on ordinary cores."""
OUTLIER = 0.15
STEP = 2e-3
"""Step of a derivative, in logarithms."""
ROUNDS = 2
"""Fits, each with the waits that the model has with the constants of the one before."""


@dataclass(frozen=True)
class Constant:
    """Where a constant is, what it is before any measurement, and by which factor that may be off (one sigma)."""

    part: str
    name: str
    prior: float
    factor: float
    low: float
    high: float


GRAPH_LAUNCH = 4e-6
"""Seconds at most between kernels of tuned software, which launches graphs of them. Chosen in sight of MLPerf's rows on several
nodes, which small steps of new chips would otherwise make slower."""


def constants() -> Iterator[Constant]:
    """What is fitted; every other number of the file stays as it is."""
    yield Constant("shared", "vector_share", 0.95, 1.05, 0.7, 1.0)
    yield Constant("shared", "feeding", 0.25, 1.4, 0.05, 0.5)
    yield Constant("shared", "conv_share", 0.85, 1.15, 0.5, 1.0)
    yield Constant("shared", "winograd", 4.0, 1.1, 2.25, 4.0)
    yield Constant("shared", "depth", 30.0, 2.0, 1.0, 200.0)
    yield Constant("shared", "matrix_depth", 100.0, 1.5, 10.0, 400.0)
    yield Constant("shared", "small_tile", 0.95, 1.05, 0.7, 1.0)
    yield Constant("joules", "at least 12 nm", 0.06e12, 1.1, 0.03e12, 0.12e12)
    yield Constant("joules", "Ampere GA100", 0.06e12, 1.1, 0.03e12, 0.12e12)
    yield Constant("matrix_joules", "at least 12 nm", 0.4e12, 1.3, 0.15e12, 0.8e12)
    yield Constant("matrix_joules", "Ampere GA10x", 0.45e12, 1.3, 0.2e12, 0.8e12)
    for level, shares in (("ordinary", (0.75, 0.6, 0.7, 0.7, 6e-6)), ("tuned", (0.85, 0.7, 0.7, 0.8, 2.5e-6))):
        for name, prior in zip(("matrix_share", "matrix_conv_share", "attention_share"), shares, strict=False):
            yield Constant(level, name, prior, 1.2, 0.3, 1.0)
        yield Constant(level, "memory_share", shares[3], 1.15, 0.4, 0.95)
        most_launch = GRAPH_LAUNCH if level == "tuned" else 3e-5
        yield Constant(level, "launch_s", shares[4], 1.5, 1e-6, most_launch)
    yield Constant("tuned", "kept_share", 0.75, 1.15, 0.4, 1.0)
    yield Constant("tuned", "yearly_gain", 1.03, 1.03, 1.0, 1.15)
    yield Constant("tuned", "straggler_spread", 0.01, 1.5, 0.002, 0.05)
    yield Constant("ordinary", "element_rate", 3.6, 1.3, 1.5, 15.0)


FITTED = tuple(constants())
HOSTS = tuple(np.geomspace(1e-5, 2e-4, 14).tolist())
"""Seconds a kernel of the host that are tried, and what is expected before any measurement, with the same factor as above."""
USUAL_HOST, HOST_FACTOR = 3e-5, 2.0
OLD = ("Pascal", "Volta", "Turing")


def applied(values: Array) -> dict[SoftwareLevel, Efficiency]:
    """The efficiencies of both levels with these values of ``FITTED``."""
    efficiencies = {}
    for level in LEVELS:
        base = efficiency(level)
        changed: dict[str, Any] = {"device_effects": {}, "joules": dict(base.joules), "matrix_joules": dict(base.matrix_joules)}
        for constant, value in zip(FITTED, values.tolist(), strict=True):
            if constant.part.endswith("joules"):
                names = (constant.name,) if constant.name in changed[constant.part] else OLD
                changed[constant.part].update({name: value for name in names if name in changed[constant.part]})
            elif constant.part in ("shared", level):
                launch = {**base.launch_s, **dict.fromkeys(("gpu", "tpu", "accelerator"), value)}
                changed[constant.name] = launch if constant.name == "launch_s" else value
        efficiencies[level] = replace(base, **changed)
    return efficiencies


@dataclass(frozen=True)
class Neighbour:
    """The fit of all rows: its values, the points with the waits there, and the derivatives of each point's residuals, (rows,
    constants)."""

    values: Array
    points: Sequence[Point]
    slopes: Sequence[Array]

    def without(self, exclude: str) -> Array:
        """The values of ``FITTED`` from all points but those of ``exclude``, found with these derivatives."""
        chosen = [(p, of) for p, of in zip(self.points, self.slopes, strict=True) if exclude not in p.names]
        used, slopes = [p for p, _ in chosen], np.concatenate([of for _, of in chosen])
        return _solved(used, np.log(self.values), np.full(len(FITTED), True), slopes)


def neighbour(read: Sequence[Point], values: Array) -> Neighbour:
    """The fit of all rows, whose result is ``values``, as the start of others."""
    levels = applied(values)
    used = [p.at(levels) for p in read]
    here = [residual(p, levels) for p in used]
    slopes = [np.zeros((len(of), len(FITTED))) for of in here]
    for column, constant in enumerate(FITTED):
        step = STEP if np.log(values[column]) + STEP < np.log(constant.high) else -STEP
        levels = applied(values * np.exp(step * (np.arange(len(values)) == column)))
        for point, of, slope in zip(used, here, slopes, strict=True):
            if point.moved_by is None or point.moved_by[column]:
                slope[:, column] = (residual(point, levels) - of) / step
    return Neighbour(values, used, slopes)


def fit_constants(read: Sequence[Point], exclude: str = "", only: Collection[str] = ()) -> Array:
    """The values of ``FITTED`` from all points but those of the chip, model or scale ``exclude``.

    The search starts from the priors, also without ``exclude``: what others' fits found says something of the excluded rows.

    Args:
        only: names of the constants that are fitted; empty for all.
    """
    prior = np.log([c.prior for c in FITTED])
    own = [p for p in read if exclude not in p.names]
    if only:
        free = np.array([c.name in only for c in FITTED])
        return _solved(own, np.where(free, prior, np.log(in_file(exclude))), free)
    values = np.exp(prior)
    for _ in range(ROUNDS):
        used = [p.at(applied(values)) for p in own]
        values = _solved(used, np.log(values), np.full(len(prior), True))
    return values


def in_file(exclude: str = "") -> Array:
    """The values of ``FITTED`` that the file has without ``exclude``."""
    levels = {level: efficiency(level, exclude) for level in LEVELS}

    def value(constant: Constant) -> float:
        part = getattr(levels["ordinary"], constant.part, None)
        if part is not None:
            return float(part.get(constant.name, part[OLD[-1]]))
        of = levels["tuned" if constant.part == "tuned" else "ordinary"]
        return float(of.launch_s["gpu"] if constant.name == "launch_s" else getattr(of, constant.name))

    return np.array([value(constant) for constant in FITTED])


def residual(point: Point, levels: Mapping[SoftwareLevel, Efficiency]) -> Array:
    """What the point is missed by in the sum of squares, (rows,): a group counts as much as any other."""
    return _loss(np.log(point.predict(levels) / point.measured)) / np.sqrt(len(point.measured))


def _solved(used: Sequence[Point], start: Array, free: Bools, slopes_near: Array | None = None) -> Array:
    """The values that fit best, searched from the logarithms ``start``; only the ``free`` ones move.

    Args:
        slopes_near: derivatives of all residuals, (rows, constants), which are kept.
    """
    columns = np.flatnonzero(free)
    prior, sigma, low, high = (np.log([getattr(FITTED[c], n) for c in columns]) for n in ("prior", "factor", "low", "high"))

    def every(logs: Array) -> Array:
        whole = start.copy()
        whole[columns] = logs
        return whole

    ends = np.cumsum([len(p.measured) for p in used])
    rows = [slice(end - len(p.measured), end) for p, end in zip(used, ends.tolist(), strict=True)]

    def residuals(logs: Array) -> Array:
        levels = applied(np.exp(every(logs)))
        return np.concatenate([*(residual(p, levels) for p in used), 0.1 * (logs - prior) / sigma])

    def jacobian(logs: Array) -> Array:
        if slopes_near is not None:
            return np.concatenate([slopes_near[:, columns], np.diag(0.1 / sigma)])
        here = residuals(logs)
        slopes = np.concatenate([np.zeros((ends[-1], len(logs))), np.diag(0.1 / sigma)])
        for column in range(len(logs)):
            step = STEP if logs[column] + STEP < high[column] else -STEP
            levels = applied(np.exp(every(logs + step * (np.arange(len(logs)) == column))))
            for point, of in zip(used, rows, strict=True):
                if point.moved_by is None or point.moved_by[columns[column]]:
                    slopes[of, column] = (residual(point, levels) - here[of]) / step
        return slopes

    begin = np.clip(start[columns], low + 1e-6, high - 1e-6)
    solution = least_squares(residuals, begin, jac=jacobian, bounds=(low, high), xtol=1e-3, ftol=1e-3)
    return np.asarray(np.exp(every(solution.x)))


def moved_by(point: Point) -> Bools:
    """Which constants move the point's seconds, (constants,): tried far to both sides of what is expected."""
    logs, far = np.log([c.prior for c in FITTED]), np.log([c.factor for c in FITTED])
    here = point.work(applied(np.exp(logs)))

    def moves(column: int) -> bool:
        only = far * (np.arange(len(logs)) == column)
        return any((point.work(applied(np.exp(logs + side * only))) != here).any() for side in (-3, -1, 1, 3))

    return np.array([moves(column) for column in range(len(logs))])


def _loss(error: Array) -> Array:
    """Soft L1: its square grows like the error itself beyond ``OUTLIER``."""
    z = (error / OUTLIER) ** 2
    return np.asarray(np.sign(error) * OUTLIER * np.sqrt(2 * (np.sqrt(1 + z) - 1)))


def host(cases: Sequence[Case], values: Array, exclude: str = "") -> float:
    """Seconds of the host a kernel in ordinary software, from steps of all micro batches: the value that fits best beside the
    constants ``values``. Every network on a device counts as much as any other."""
    levels = applied(values)
    groups: dict[tuple[str, ...], list[Array]] = {}
    for case in cases:
        chip = case.setting.cluster.device.chip
        if exclude in (chip, case.workload.name, *scales(case)):
            continue
        constants = constants_of(case, levels)
        seconds = [whole_step(case, replace(constants, host_s=host_s)).seconds for host_s in HOSTS]
        groups.setdefault((case.workload.name, chip), []).append(_loss(np.log(np.array(seconds) / case.step_s)) ** 2)
    fits = sum((np.mean(group, axis=0) for group in groups.values()), np.zeros(len(HOSTS)))
    prior = (0.1 * np.log(np.array(HOSTS) / USUAL_HOST) / np.log(HOST_FACTOR)) ** 2
    return HOSTS[int(np.argmin(fits + prior))]


def folds(read: Sequence[Point], cases: Sequence[Case], only: Collection[str] = ()) -> dict[str, tuple[Array, float]]:
    """The constants and the host of all rows (by an empty name), and without each chip, each model and each scale."""
    models = sorted({p.model for p in read} - {""})
    names = ["", *sorted({name for p in read for name in p.names} - {*models})]
    _ROWS[:] = [read, cases, only, None]  # the processes of the pool are forks
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        found = dict(zip(names, pool.map(fold, names), strict=True))
    _ROWS[3] = None if only else neighbour(read, found[""][0])
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        return found | dict(zip(models, pool.map(fold, models), strict=True))


_ROWS: list[Any] = []
"""Points, cases and names of ``folds``, and the fit of all rows once it is known."""


def fold(name: str) -> tuple[Array, float]:
    """The constants and the host without ``name``."""
    read, cases, only, whole = _ROWS
    values = whole.without(name) if whole else fit_constants(read, name, only)
    print(f"without {name or 'nothing'}", file=sys.stderr, flush=True)
    return values, efficiency("ordinary", name).host_s if only else host(cases, values, name)


def table(read: Sequence[Point], held_out: Mapping[str, Array], all_rows: Array) -> str:
    """Mean absolute error and bias of every group: of all rows' constants, and of those without its chip, model or scale."""
    heads = "".join(f"{name:>16}" for name in ("chip out", "model out", "scale out"))
    lines = [f"{'set / model or kernel / device / precision / software / scale':<84}{'rows':>5}{'in':>7}{heads}"]
    for p in read:
        cells = []
        for values in (all_rows, *(held_out.get(name) for name in (p.chip, p.model, next(iter(p.scales), "")))):
            error = p.predict(applied(values)) / p.measured - 1 if values is not None else np.array([np.nan])
            cells.append((float(np.abs(error).mean()), float(np.median(error))))
        (inside, _), *outside = cells
        text = "".join(f"{a:>8.1%}{b:>+8.1%}" for a, b in outside)
        lines.append(f"{' / '.join(p.group):<84}{len(p.measured):>5}{inside:>7.1%}{text}")
    return "\n".join(lines)


def written(values: Array) -> dict[str, Any]:
    """The constants as the file has them: parts, and in them names."""
    levels = applied(values)
    file: dict[str, Any] = {"shared": {"joules": {}, "matrix_joules": {}}, "ordinary": {}, "tuned": {}}
    for constant, value in zip(FITTED, values.tolist(), strict=True):
        if constant.part.endswith("joules"):
            file["shared"][constant.part] = dict(getattr(levels["ordinary"], constant.part))
        else:
            file[constant.part][constant.name] = value
    return file


@dataclass(frozen=True)
class Missed:
    """A point and its errors, logarithms of predicted to measured seconds (rows,), without its chip and without its model."""

    point: Point
    device: Array
    model: Array


def missed(read: Sequence[Point], held_out: Mapping[str, Array]) -> list[Missed]:
    """The steps on GPUs that do not convolve on ordinary cores most of the time: what those add is an estimate
    (``Sigmas.conv``)."""
    rows = [p for p in read if p.model and p.kind == "gpu" and p.plain_conv < CONVOLVING]
    return [Missed(p, _error(p, held_out[p.chip]), _error(p, held_out[p.model])) for p in rows]


def _error(point: Point, values: Array) -> Array:
    return np.asarray(np.log(point.predict(applied(values)) / point.measured))


def sigmas(rows: Sequence[Missed], name: str, values: Array) -> dict[str, dict[str, float]]:
    """Of work, by level, without the rows of ``name``: what ``values`` miss, and what is added without the chip or the model.

    Such that 80 % of a level's rows lie within 1.28 of them; of a level that has no others, of all levels' rows.
    """
    rows = [row for row in rows if name not in row.point.names]

    def of(level: SoftwareLevel) -> dict[str, float]:
        own = [row for row in rows if row.point.level == level] or rows

        def miss(logs: Sequence[Array]) -> float:
            return float(np.quantile(np.abs(np.concatenate(logs)), 0.8)) / Z80

        least = LEAST[level]
        base = max(least["base"], miss([_error(row.point, values) for row in own]))
        beyond = {"device": miss([row.device for row in own]), "model": miss([row.model for row in own])}
        return {"base": base, **{k: max(least[k], max(v**2 - base**2, 0.0) ** 0.5) for k, v in beyond.items()}}

    return {level: of(level) for level in LEVELS}


def source(point: Point) -> str:
    """Who published it: MLPerf's rounds count as one, and so do the tables of one framework."""
    first, _, rest = point.group[0].partition(" ")
    return rest if first == "published" else first


def source_means(rows: Sequence[Missed], name: str, values: Array, level: SoftwareLevel) -> dict[str, dict[str, list[float]]]:
    """Logarithms of measured over predicted seconds, medians of groups, by device and source, without the rows of ``name``."""
    logs: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.point.level == level and name not in row.point.names:
            of = logs.setdefault(row.point.group[2], {}).setdefault(source(row.point), [])
            of.append(-float(np.median(_error(row.point, values))))
    return logs


def shrunk(sources: Sequence[Sequence[float]], sigma: Mapping[str, float]) -> float:
    """Posterior mean of normal errors: the prior has the sigma ``device``, each source ``base``."""
    return sum(float(np.mean(own)) for own in sources) / (len(sources) + (sigma["base"] / sigma["device"]) ** 2)


def device_effects(
    rows: Sequence[Missed], name: str, values: Array, level: SoftwareLevel, sigma: Mapping[str, float]
) -> dict[str, float]:
    """Factors on the seconds of devices without the rows of ``name``, from what several sources' steps took beyond ``values``.
    A source counts once."""
    found = source_means(rows, name, values, level)
    return {d: float(np.exp(shrunk([*of.values()], sigma))) for d, of in sorted(found.items()) if len(of) >= SOURCES}


def sources_left_out(rows: Sequence[Missed], values: Array) -> str:
    """What the factors of others are worth: errors of each source on a device that others measured too."""
    errors: list[tuple[float, float]] = []
    for level, sigma in sigmas(rows, "", values).items():
        for of in source_means(rows, "", values, level).values():
            for left_out, logs in of.items() if len(of) > 1 else ():
                factor = shrunk([own for name, own in of.items() if name != left_out], sigma)
                errors.append((float(np.mean(np.abs(logs))), float(np.mean(np.abs(np.array(logs) - factor)))))
    without, with_factor = np.mean(errors, axis=0)
    return f"{len(errors)} sources left out: {without:.1%}, with the factor of the device from others {with_factor:.1%}"


def parts(rows: Sequence[Missed], name: str, values: Array) -> dict[str, dict[str, Any]]:
    """The constants without ``name`` as the file has them, with what they miss."""
    file = written(values)
    for level, sigma in sigmas(rows, name, values).items():
        file[level]["device_effects"] = device_effects(rows, name, values, level, sigma)
        file[level]["sigmas"] = sigma
    return file


def to_toml(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Parts with their names; a part of a part is an inline table."""
    lines = []
    for part, entries in parts.items():
        lines.append(f"[{part}]")
        lines += [f"{_key(name)} = {_value(value)}" for name, value in entries.items()]
        lines.append("")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list):
        return "[\n" + "".join(f'    "{item}",\n' for item in value) + "]"
    return repr(float(f"{value:.4g}"))


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() else f'"{name}"'


ABOUT = "[about.matmul_share]"
"""From here on the file says where constants come from, and has the assumed ones: the fit keeps it."""
HEAD_HELD_OUT = """\
# What differs from constants.toml where the fit did not see a chip, a model or a scale; written beside it by fit_prediction.py.
"""
HEAD = """\
# Constants of the prediction; calibration/constants.py says what they mean. Written by benchmarks/fit_prediction.py on {date}.
# Fitted on:{rows}
# Not fitted: matmul_share is the least of the catalogue's measured NVIDIA boards; FLOP/J in fp32 of Ada, Hopper, Blackwell
# and GA10x are what the largest boards of the architecture need, which do not throttle, and a fifth more; those of matrix units
# from the A100 on are what the catalogue's measured products took of the board's power; network, intra, other and conv are
# estimates; doubling is what MLPerf's rows on many nodes were missed by beyond that, kind what its rows on a TPU v4 were.
"""


def main(folder: Path, only: Collection[str] = ()) -> None:
    """Fit, print the errors, write the file."""
    read = [replace(point, moved_by=moved_by(point)) for point in points(folder)]
    if only:
        near = fit_constants([p.at(applied(in_file())) for p in read], "", only)
        read = [p.at(applied(near)) for p in read]
    fits = folds(read, () if only else host_cases(folder), only)
    (all_rows, host_s), held_out = fits.pop(""), {name: values for name, (values, _) in fits.items()}
    counted = Counter(p.group[0] for p in read for _ in p.measured)
    read = [p.at(applied(all_rows)) for p in read]
    rows_missed = missed(read, held_out)
    rows = "".join(f"\n#   {FILES.get(name, KERNELS)}: {count} rows" for name, count in counted.items())
    head = HEAD.format(date=datetime.datetime.now(datetime.UTC).date(), rows=rows)
    kept = tomllib.loads(TARGET.read_text(encoding="utf-8"))
    constants_now = {part: {**kept[part], **entries} for part, entries in parts(rows_missed, "", all_rows).items()}
    constants_now["ordinary"]["host_s"] = host_s
    seen = {"seen": {"names": sorted(held_out)}}
    about = ABOUT + TARGET.read_text(encoding="utf-8").partition(ABOUT)[2]
    written_parts = to_toml({"sigmas": kept["sigmas"], **seen, **constants_now})
    TARGET.write_text(f"{head}\n{written_parts}\n{about}", encoding="utf-8")
    apart = {_key(name): parts(rows_missed, name, values) for name, values in held_out.items()}
    for name, (_, own) in fits.items():
        apart[_key(name)]["ordinary"]["host_s"] = own
    HELD_OUT.write_text(HEAD_HELD_OUT + "\n" + to_toml(apart), encoding="utf-8")
    print(table(read, held_out, all_rows))
    print(sources_left_out(rows_missed, all_rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=sorted({c.name for c in FITTED}), default=())
    arguments = parser.parse_args()
    main(arguments.folder, arguments.only)
