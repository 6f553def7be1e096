"""Fit the constants of the prediction on published measurements and write ``src/paceline/calibration/constants.toml``.

    python benchmarks/fit_prediction.py FOLDER

FOLDER holds the CSV files that ``paceline validate`` reads. Each constant has a prior, a value from physics or from a
datasheet, and the measurements move it. The loss is of the logarithms of predicted to measured seconds, and an outlier cannot
rule it (soft L1). Every group of rows (set, model, device, precision) counts as much as any other.

Beside the constants of all rows the file holds those fitted without each chip (all boards of an architecture), each model and
each scale (one device, several), for predictions that must not have seen it:
``paceline.calibration.constants.efficiency(level, without=NAME)``. Rows on several nodes, or on more than ``MOST_DEVICES``
devices, are not read at all.
"""

from __future__ import annotations

import csv
import datetime
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from paceline import hardware
from paceline.calibration.constants import (
    LEVELS,
    MOST_DEVICES,
    ONE_DEVICE,
    SEVERAL_DEVICES,
    Efficiency,
    SoftwareLevel,
    efficiency,
)
from paceline.calibration.uncertainty import Z80
from paceline.csv_rows import read
from paceline.hardware import Device
from paceline.prediction.compute import (
    CONV,
    MATMUL,
    MEMORY,
    Array,
    OperationTable,
    layer_seconds,
    operation_seconds,
    operation_table,
    optimizer_seconds,
)
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.validation.case import Case
from paceline.validation.sets import adapter

TARGET = Path(__file__).parents[1] / "src/paceline/calibration/constants.toml"
HELD_OUT = TARGET.with_name("constants_held_out.toml")
FILES = {
    "neusight": "neusight_model_latency.csv",
    "lambda": "lambda_single_node.csv",
    "tf_benchmarks": "tf_benchmarks_2017_k80_p100.csv",
    "mlperf": "mlperf_training.csv",
    "llmfoundry": "llmfoundry_mpt_fsdp.csv",
}
KERNELS = "neusight_ops_fp32.csv"
LEAST_S = 3e-4
"""Single kernels are timed with the launch, which a queue of them hides: shorter ones are left out."""
DEVICES = dict.fromkeys(("mlperf", "llmfoundry"), MOST_DEVICES)
"""Most devices of a set's rows, where not 1, on one node: their compute dominates."""
LEAST = {
    "ordinary": {"base": 0.12, "device": 0.12, "model": 0.04},
    "tuned": {"base": 0.04, "device": 0.08, "model": 0.04},
}
"""Sigmas at least, by level. Submitters of one system differ by 4 %, framework code as people write it by three times that. A
chip's rows are 5 % off those of others in the mean; a new architecture gets half as much again, in ordinary software twice."""
CONVOLVING = 0.5
"""Share of the time from which on a row is one of convolutions on ordinary cores."""
OUTLIER = 0.15
EVERY, MOST = 20, 8
"""Single kernels and steps of a group that are kept at most, evenly over the file."""


@dataclass(frozen=True)
class Constant:
    """Where a constant is, what it is before any measurement, and by which factor that may be off (one sigma)."""

    part: str
    name: str
    prior: float
    factor: float
    low: float
    high: float


def constants() -> Iterator[Constant]:
    """What is fitted; every other number of the file stays as it is."""
    yield Constant("shared", "vector_share", 0.95, 1.05, 0.7, 1.0)
    yield Constant("shared", "feeding", 0.25, 1.4, 0.05, 0.5)
    yield Constant("shared", "conv_share", 0.85, 1.15, 0.5, 1.0)
    yield Constant("shared", "winograd", 1.5, 1.3, 1.0, 2.25)
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
        yield Constant(level, "launch_s", shares[4], 1.5, 1e-6, 3e-5)
    yield Constant("tuned", "kept_share", 0.75, 1.15, 0.4, 1.0)


FITTED = tuple(constants())
OLD = ("Pascal", "Volta", "Turing")


def applied(values: Array) -> dict[SoftwareLevel, Efficiency]:
    """The efficiencies of both levels with these values of ``FITTED``."""
    efficiencies = {}
    for level in LEVELS:
        base = efficiency(level)
        changed: dict[str, Any] = {"joules": dict(base.joules), "matrix_joules": dict(base.matrix_joules)}
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
class Point:
    """Rows of one group: seconds as a function of the constants, and as measured.

    ``chip``, ``model`` and ``scale`` are the names by which it is held out; a single kernel has but the first.
    ``level`` is the software's; kernels launched one by one before graphs of them are tuned ones all the same. ``kind``: of
    device. ``plain_conv``: share of the time in convolutions on ordinary cores.
    """

    group: tuple[str, ...]
    level: SoftwareLevel
    predict: Callable[[Mapping[SoftwareLevel, Efficiency]], Array]
    measured: Array
    chip: str
    model: str = ""
    scale: str = ""
    kind: str = "gpu"
    plain_conv: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """By which it is held out."""
        return tuple(name for name in (self.chip, self.model, self.scale) if name)


def kernels(path: Path) -> Iterator[Point]:
    """Single kernels in fp32 without TF32, by kind and device."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            if float(row["latency_ms"]) >= LEAST_S * 1e3:
                groups.setdefault((row["op"], row["gpu"]), []).append(row)
    for (kind, gpu), rows in groups.items():
        chosen = rows[:: ceil(len(rows) / EVERY)]
        device, table = hardware.device(gpu), _kernel_table(kind, chosen)
        predict = partial(_kernel_seconds, table=table, device=device)
        yield Point(("kernels", kind, device.name), "ordinary", predict, _column(chosen, "latency_ms") / 1e3, device.chip)


def _column(rows: Sequence[Mapping[str, str]], name: str) -> Array:
    return np.array([float(row[name] or 0) for row in rows])


def _kernel_table(kind: str, rows: Sequence[Mapping[str, str]]) -> OperationTable:
    count, ones = len(rows), np.ones(len(rows))
    batch, m, n, k, width = (_column(rows, name) for name in ("B", "M", "N", "K", "H"))
    window = ones
    if kind == "conv":
        inputs, outputs, size, side = (_column(rows, f"conv_{name}") for name in ("in", "out", "kernel", "input_hw"))
        m, n, k, window = batch * side**2, outputs, inputs * size**2, size**2
        moved, batch = 4 * (batch * side**2 * (inputs + outputs) + inputs * outputs * size**2), ones
    else:
        moved = 4 * batch * (m * k + k * n + m * n) if kind in ("linear", "bmm") else 8 * batch * width
    flops = 2 * batch * m * n * k if kind in ("linear", "bmm", "conv") else 0 * ones
    return OperationTable(
        kind=np.full(count, {"linear": MATMUL, "bmm": MATMUL, "conv": CONV}.get(kind, MEMORY)),
        calls=ones,
        flops=flops,
        bytes=moved,
        fixed_bytes=0 * ones,
        sizes=np.stack([m, n, k, batch], axis=1) * (flops > 0)[:, None],
        grows=np.zeros((count, 4)),
        window=window,
        row=np.arange(count),
        layer=np.arange(count),
        backward=np.zeros(count, dtype=np.bool_),
        layers=count,
    )


def _kernel_seconds(levels: Mapping[SoftwareLevel, Efficiency], table: OperationTable, device: Device) -> Array:
    seconds = operation_seconds(table, 1, "fp32", device, levels["ordinary"])
    return seconds.flops + seconds.bytes + seconds.launch


def steps(name: str, path: Path) -> Iterator[Point]:
    """The rows of a set on few devices, in which compute dominates."""
    reader = adapter(name)
    outcomes = [reader.read(row) for row in read(path, (*reader.texts, *reader.numbers))]
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in outcomes:
        if isinstance(case, Case) and case.keys.nodes == 1 and case.keys.devices <= DEVICES.get(name, 1):
            scale = ONE_DEVICE if case.keys.devices == 1 else SEVERAL_DEVICES
            groups.setdefault((name, case.keys.model, case.keys.device, case.precision, case.software, scale), []).append(case)
    for group, all_cases in groups.items():
        cases = all_cases[:: ceil(len(all_cases) / MOST)]
        device, model = cases[0].settings[0].cluster.device, cases[0].workload.name
        updated = name != "neusight"
        level: SoftwareLevel = "ordinary" if cases[0].software == "ordinary" else "tuned"
        seconds = partial(_step_seconds, cases=cases, table=_together(cases), updated=updated)
        measured = np.array([c.step_s for c in cases])
        yield Point(group, level, seconds, measured, device.chip, model, group[-1], device.kind, _plain_conv(cases[0], level))


def _together(cases: Sequence[Case]) -> OperationTable:
    """The operations of steps as one table: sizes, FLOPs and bytes of the whole micro batch; ``row`` says whose each is."""
    parts, counts = [operation_table(case.workload) for case in cases], []
    for case, part in zip(cases, parts, strict=True):
        strategy = case.settings[0].strategy
        again = 1 + (strategy.parallelism.recompute == "full") * ~part.backward
        counts.append(strategy.parallelism.micro_batches * np.bincount(part.row, again, len(part.kind)))
    owner = np.repeat(np.arange(len(cases)), [len(part.kind) for part in parts])
    each = np.concatenate(counts)
    batch = np.array([case.settings[0].strategy.micro_batch_size for case in cases], dtype=float)[owner]

    def column(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts])

    return OperationTable(
        kind=column("kind"),
        calls=column("calls") * each,
        flops=column("flops") * batch * each,
        bytes=(column("bytes") * batch + column("fixed_bytes")) * each,
        fixed_bytes=0 * each,
        sizes=column("sizes") * np.where(column("grows") > 0, batch[:, None], 1.0),
        grows=np.zeros((len(each), 4)),
        window=column("window"),
        row=owner,
        layer=owner,
        backward=np.zeros(len(each), dtype=np.bool_),
        layers=len(cases),
    )


def _step_seconds(
    levels: Mapping[SoftwareLevel, Efficiency], cases: Sequence[Case], table: OperationTable, updated: bool
) -> Array:
    """Seconds of compute of steps, their optimizer's if they have one; the exchange is taken to be hidden."""
    first = cases[0]
    eager = replace(levels["tuned"], launch_s=levels["ordinary"].launch_s)
    e = eager if first.software == "eager" else levels[first.software]
    device = first.settings[0].cluster.device
    seconds = operation_seconds(table, 1, first.precision, device, e)
    work = np.bincount(table.row, seconds.flops + seconds.bytes + seconds.launch, len(cases))
    return work + np.array([_update(case, device, e) for case in cases]) if updated else work


def _plain_conv(case: Case, level: SoftwareLevel) -> float:
    """Share of the work in convolutions on ordinary cores."""
    setting = case.settings[0]
    passes = layer_seconds(
        case.workload, setting.strategy.micro_batch_size, case.precision, setting.cluster.device, efficiency(level)
    )
    return sum(seconds.plain_conv for seconds in passes) / sum(float(seconds.total.sum()) for seconds in passes)


def _update(case: Case, device: Device, e: Efficiency) -> float:
    strategy = case.settings[0].strategy
    owned = case.workload.num_parameters / (1 if strategy.parallelism.sharding == "ddp" else strategy.world_size)
    return sum(optimizer_seconds(OPTIMIZERS[strategy.optimizer], round(owned), len(case.workload.parameters), device, e))


def fit_constants(points: Sequence[Point], exclude: str = "", start: Array | None = None) -> Array:
    """The values of ``FITTED`` from all points but those of the chip, model or scale ``exclude``, searched from ``start``."""
    used = [p for p in points if exclude not in p.names]
    prior, sigma = np.log([c.prior for c in FITTED]), np.log([c.factor for c in FITTED])

    def residuals(logs: Array) -> Array:
        levels = applied(np.exp(logs))
        errors = [_loss(np.log(p.predict(levels) / p.measured)) / np.sqrt(len(p.measured)) for p in used]
        return np.concatenate([*errors, 0.1 * (logs - prior) / sigma])

    bounds = np.log([c.low for c in FITTED]), np.log([c.high for c in FITTED])
    begin = np.clip(prior if start is None else np.log(start), bounds[0] + 1e-6, bounds[1] - 1e-6)
    solution = least_squares(residuals, begin, bounds=bounds, diff_step=1e-3, xtol=1e-3, ftol=1e-3)
    return np.asarray(np.exp(solution.x))


def _loss(error: Array) -> Array:
    """Soft L1: its square grows like the error itself beyond ``OUTLIER``."""
    z = (error / OUTLIER) ** 2
    return np.asarray(np.sign(error) * OUTLIER * np.sqrt(2 * (np.sqrt(1 + z) - 1)))


def without_each(points: Sequence[Point], all_rows: Array) -> dict[str, Array]:
    """The constants that were fitted without each chip, each model and each scale, by its name."""
    names = sorted({name for p in points for name in p.names})
    with ProcessPoolExecutor(2) as pool:
        fits = pool.map(partial(_without, points, all_rows), names)
        return dict(zip(names, fits, strict=True))


def _without(points: Sequence[Point], all_rows: Array, name: str) -> Array:
    """Searched from all rows' constants, but for what those know of nothing else: a chip's own, all of a scale."""
    own = [constant.name == name or name in (ONE_DEVICE, SEVERAL_DEVICES) for constant in FITTED]
    return fit_constants(points, name, np.where(own, [constant.prior for constant in FITTED], all_rows))


def table(points: Sequence[Point], held_out: Mapping[str, Array], all_rows: Array) -> str:
    """Mean absolute error and bias of every group: of all rows' constants, and of those without its chip, model or scale."""
    heads = "".join(f"{name:>16}" for name in ("chip out", "model out", "scale out"))
    lines = [f"{'set / model or kernel / device / precision / software / scale':<84}{'rows':>5}{'in':>7}{heads}"]
    for p in points:
        cells = []
        for values in (all_rows, *(held_out.get(name) for name in (p.chip, p.model, p.scale))):
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


def sigmas(points: Sequence[Point], held_out: Mapping[str, Array], name: str, values: Array) -> dict[str, dict[str, float]]:
    """Of work, by level, without the rows of ``name``: what ``values`` miss, and what is added without the chip or the model.

    Such that 80 % of a level's rows on GPUs lie within 1.28 of them; of a level that has no others, of all levels' rows. Those
    that convolve on ordinary cores most of the time are left out: what these add is an estimate (``Sigmas.conv``).
    """
    rows = [p for p in points if p.model and name not in p.names and p.kind == "gpu" and p.plain_conv < CONVOLVING]

    def of(level: SoftwareLevel) -> dict[str, float]:
        own = [p for p in rows if p.level == level] or rows

        def miss(chosen: Callable[[Point], Array]) -> float:
            logs = [np.log(p.predict(applied(chosen(p))) / p.measured) for p in own]
            return float(np.quantile(np.abs(np.concatenate(logs)), 0.8)) / Z80

        least = LEAST[level]
        base = max(least["base"], miss(lambda p: values))
        beyond = {"device": miss(lambda p: held_out[p.chip]), "model": miss(lambda p: held_out[p.model])}
        return {"base": base, **{k: max(least[k], max(v**2 - base**2, 0.0) ** 0.5) for k, v in beyond.items()}}

    return {level: of(level) for level in LEVELS}


def parts(points: Sequence[Point], held_out: Mapping[str, Array], name: str, values: Array) -> dict[str, dict[str, Any]]:
    """The constants without ``name`` as the file has them, with what they miss."""
    file = written(values)
    for level, missed in sigmas(points, held_out, name, values).items():
        file[level]["sigmas"] = missed
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


def main(folder: Path) -> None:
    """Fit, print the errors, write the file."""
    points = list(kernels(folder / KERNELS))
    for name, file in FILES.items():
        points += steps(name, folder / file)
    all_rows = fit_constants(points)
    held_out = without_each(points, all_rows)
    counted = Counter(p.group[0] for p in points for _ in p.measured)
    rows = "".join(f"\n#   {FILES.get(name, KERNELS)}: {count} rows" for name, count in counted.items())
    head = HEAD.format(date=datetime.datetime.now(datetime.UTC).date(), rows=rows)
    kept = tomllib.loads(TARGET.read_text(encoding="utf-8"))
    constants_now = {part: {**kept[part], **entries} for part, entries in parts(points, held_out, "", all_rows).items()}
    seen = {"seen": {"names": sorted(held_out)}}
    about = ABOUT + TARGET.read_text(encoding="utf-8").partition(ABOUT)[2]
    written_parts = to_toml({"sigmas": kept["sigmas"], **seen, **constants_now})
    TARGET.write_text(f"{head}\n{written_parts}\n{about}", encoding="utf-8")
    apart = {_key(name): parts(points, held_out, name, values) for name, values in held_out.items()}
    HELD_OUT.write_text(HEAD_HELD_OUT + "\n" + to_toml(apart), encoding="utf-8")
    print(table(points, held_out, all_rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
