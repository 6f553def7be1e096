"""Fit the kernels of convolutions by memory format, and score them on families of networks that the fit did not see.

    python benchmarks/vision_networks.py FOLDER TABLES [--kept] [--results FILE.csv]

FOLDER has `timm_rtx3090.csv` and `timm_rtx3090_older_pytorch.csv` (huggingface/pytorch-image-models, results of benchmark.py,
Apache-2.0), and `pytorch_gpu_benchmark.csv` (ryujaehun/pytorch-gpu-benchmark @3f47a9e). TABLES keeps the layer tables: those
that it lacks are traced, which takes two seconds of processor time each and needs torch and timm; ``--kept`` leaves them out.

Fitted: `convolutions` and `cast_share` of calibration/constants.toml, on rows of PyTorch 1.12. Held out: each family of
networks by the beginning of its name, in ten folds; and the other sources, other releases and other cards whole. Rows of a
network of another number of parameters than the traced one's are left out, as are TResNets in channels last, whose kernels in
place are not in the traced network.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import re
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from paceline.calibration.constants import Efficiency, efficiency
from paceline.csv_rows import Row, read
from paceline.errors import UserError
from paceline.prediction.passes import compute, convolutions
from paceline.prediction.passes.compute import operation_seconds, optimizer_seconds
from paceline.prediction.passes.host import host_launches, host_seconds
from paceline.prediction.passes.operation_table import OperationTable, operation_table
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.validation.case import Case
from paceline.validation.sets import adapter
from paceline.workload import Workload

Array = NDArray[np.float64]
FILES = ("timm_rtx3090.csv", "timm_rtx3090_older_pytorch.csv", "pytorch_gpu_benchmark.csv")
FOLDS = 10
PRIOR = 0.02
"""Weight of the shipped numbers, which only decides what no row says."""
PREFIX = re.compile(r"^(?:tf|gluon|jx|legacy|tv|ssl|swsl|ig|dm|ens_adv|eca|se)_")
NAMES = (*convolutions._FIT, "cast_share")
SHIPPED = (*convolutions._FIT.values(), compute.CAST_SHARE)
FIELDS = ("date", "commit", "python", "rows of", "family", "format", "networks", "rows", "cold", "mean error", "median", "bias")


@dataclass(frozen=True)
class Point:
    """One row: its case, its family and the layer table's device."""

    case: Case
    source: str
    network: str
    family: str

    @property
    def last(self) -> bool:
        """True if the convolutions run in channels last."""
        order = self.case.setting.strategy.memory_format
        return convolutions.is_channels_last(self.case.workload, order, "ordinary")

    @property
    def order(self) -> str:
        """Memory format of the images."""
        return self.case.setting.strategy.memory_format or "contiguous"


@dataclass(frozen=True)
class Steps:
    """Rows of one card and one precision, with all operations of one order in one table."""

    points: Sequence[Point]
    tables: Sequence[tuple[OperationTable, NDArray[np.int64], Array, bool]]
    fixed: Array
    host: Array

    def seconds(self) -> Array:
        """Return the seconds of each row's step by the constants of the moment."""
        strategy, cluster = self.points[0].case.setting.strategy, self.points[0].case.setting.cluster
        total = np.zeros(len(self.points))
        for table, row, count, last in self.tables:
            each = operation_seconds(table, 1, strategy.precision, cluster.device, constants(), channels_last=last)
            total += np.bincount(row, each.kernels * count, len(self.points))
        return np.maximum(total, self.host) + self.fixed

    def measured(self) -> Array:
        """Return the measured seconds of each row's step."""
        return np.array([p.case.step_s for p in self.points])


@cache
def constants() -> Efficiency:
    """Return the constants of ordinary software."""
    return efficiency("ordinary")


def family_of(name: str) -> str:
    """Return the beginning of a network's name that it shares with its family."""
    found = re.match(r"[a-z]+", PREFIX.sub("", name))
    return found[0] if found else name


def points_of(path: Path, tables: Path, only_kept: bool) -> Iterator[Point]:
    """Yield the rows of a file that can be modelled."""
    keep = tables_in(tables, only_kept)
    case_of = adapter("published").case
    with patch.object(Workload, "named", keep):
        for row in read(path, adapter("published").texts):
            name = row.text("model").partition(" ")[0]
            case = case_of(row)
            if isinstance(case, Case) and is_network(row, case):
                yield Point(case, source_of(row), name, family_of(name))


def is_network(row: Row, case: Case) -> bool:
    """Return whether the traced network is the measured one."""
    stated = re.search(r"params_M ([\d.]+)", row.text("other_options"))
    same = stated is None or abs(case.workload.num_parameters / 1e6 / float(stated[1]) - 1) < 0.03
    return same and not (row.text("model").startswith("tresnet") and case.setting.strategy.memory_format == "channels_last")


def source_of(row: Row) -> str:
    """Return what the rows of a file share: the release of PyTorch, or the card and its precision."""
    release = re.search(r"pt(\d)(\d+)", row.text("source"))
    if release:
        return f"timm, PyTorch {release[1]}.{release[2]}"
    return f"torchvision, {row.text('device')}, {row.text('precision').partition(' ')[0]}"


def tables_in(folder: Path, only_kept: bool) -> Callable[..., Workload]:
    """Return ``Workload.named`` that reads a kept table, and keeps a traced one unless only kept ones count."""
    named = Workload.named
    kept: dict[str, Workload | None] = {}

    def keep(name: str, seq_len: int | None = None, **choices: Any) -> Workload:
        key = "-".join([name.replace("/", "-"), str(choices.get("inputs", "")), str(choices.get("fused_attention", True))])
        path = folder / f"{key}.json"
        if key not in kept:
            try:
                kept[key] = Workload.load(path) if path.exists() else None if only_kept else named(name, seq_len, **choices)
            except UserError:
                kept[key] = None
            if kept[key] is not None and not path.exists():
                kept[key].save(path)  # type: ignore[union-attr]
        if (found := kept[key]) is None:
            raise UserError(f"no network {name}")
        return found

    return keep


def steps_of(points: Sequence[Point]) -> list[Steps]:
    """Return the rows grouped by card and precision."""
    groups: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        groups[point.case.setting.cluster.device.name, point.case.setting.strategy.precision].append(point)
    return [joined(group) for group in groups.values()]


def joined(points: Sequence[Point]) -> Steps:
    """Return the operations of rows in two tables, one for each order, for a micro batch of one."""
    device, e = points[0].case.setting.cluster.device, constants()
    parts: dict[bool, list[tuple[OperationTable, int, int]]] = defaultdict(list)
    fixed, host = [], []
    for number, point in enumerate(points):
        workload, strategy = point.case.workload, point.case.setting.strategy
        parts[point.last].append((operation_table(workload), strategy.micro_batch_size, number))
        optimizer = OPTIMIZERS[strategy.optimizer]
        fixed.append(sum(optimizer_seconds(optimizer, workload.num_parameters, len(workload.parameters), device, e)))
        launches = host_launches(workload, e, device, strategy.precision)
        host.append(host_seconds(device, e) * float(launches.sum()))
    tables = [(*concatenated(own), last) for last, own in parts.items()]
    return Steps(points, tables, np.array(fixed), np.array(host))


def concatenated(parts: Sequence[tuple[OperationTable, int, int]]) -> tuple[OperationTable, NDArray[np.int64], Array]:
    """Return one table of many, the row of each operation, and how often it runs."""
    columns: dict[str, list[Any]] = defaultdict(list)
    of_row, count = [], []
    for table, batch, number in parts:
        for field in fields(OperationTable):
            columns[field.name].append(getattr(table, field.name))
        for name in ("sizes", "joined"):
            columns[name][-1] = getattr(table, name) * np.where(table.grows > 0, batch, 1.0)
        columns["flops"][-1], columns["bytes"][-1] = table.flops * batch, table.bytes * batch
        rows = len(table.calls)
        of_row.append(np.full(rows, number))
        count.append(np.bincount(table.row, minlength=rows).astype(np.float64))
    whole = {name: np.concatenate(values) for name, values in columns.items() if name != "layers"}
    return OperationTable(**whole, layers=1), np.concatenate(of_row), np.concatenate(count)


def with_constants(values: Sequence[float], run: Callable[[], Array]) -> Array:
    """Return the result of ``run`` under other constants."""
    fit = dict(zip(NAMES, map(float, values), strict=True))
    cast = fit.pop("cast_share")
    with patch.object(convolutions, "_FIT", fit), patch.object(compute, "CAST_SHARE", cast):
        return run()


def log_errors(groups: Iterable[Steps]) -> Array:
    """Return the logarithm of predicted over measured seconds of each row."""
    return np.concatenate([np.log(group.seconds() / group.measured()) for group in groups])


def fitted(groups: Sequence[Steps], weights: Array) -> Array:
    """Return the constants that fit the rows of weight 1."""
    start = np.log(SHIPPED)

    def residuals(values: Array) -> Array:
        errors = with_constants(np.exp(values), lambda: log_errors(groups))
        return np.concatenate([errors * weights, PRIOR * (values - start)])

    return np.exp(np.asarray(least_squares(residuals, start, loss="soft_l1", f_scale=0.1, max_nfev=8).x))


def scored(points: Sequence[Point], errors: Array, cold: bool) -> Iterator[dict[str, object]]:
    """Yield a line for each source and format, and for each of its families of several networks."""
    lines: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for number, point in enumerate(points):
        for family in ("all", point.family):
            lines[point.source, family, point.order].append(number)
    for (source, family, order), members in sorted(lines.items()):
        networks = {points[i].network for i in members}
        if family != "all" and (len(networks) < 2 or not source.startswith("timm, PyTorch 1.12")):
            continue
        off = np.expm1(errors[members])
        yield {
            "rows of": source,
            "family": family,
            "format": order,
            "networks": len(networks),
            "rows": len(members),
            "cold": "yes" if cold else "no",
            "mean error": f"{np.abs(off).mean():.3f}",
            "median": f"{np.median(np.abs(off)):.3f}",
            "bias": f"{off.mean():+.3f}",
        }


def main() -> None:
    """Fit, score and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--kept", action="store_true", help="only networks whose tables are kept")
    parser.add_argument("--results", type=Path)
    asked = parser.parse_args()
    asked.tables.mkdir(exist_ok=True)
    points = [point for name in FILES for point in points_of(asked.folder / name, asked.tables, asked.kept)]
    seen = [point for point in points if point.source == "timm, PyTorch 1.12"]
    others = [point for point in points if point.source != "timm, PyTorch 1.12"]
    groups = steps_of(seen)
    ordered = [point for group in groups for point in group.points]
    fold = np.array([zlib.crc32(point.family.encode()) % FOLDS for point in ordered])
    errors = np.zeros(len(ordered))
    for number in range(FOLDS):
        values = fitted(groups, (fold != number).astype(float))
        errors[fold == number] = with_constants(values, lambda: log_errors(groups))[fold == number]
    values = fitted(groups, np.ones(len(ordered)))
    print(json.dumps({name: round(float(value), 4) for name, value in zip(NAMES, values, strict=True)}))
    rest = steps_of(others)
    lines = [*scored(ordered, errors, cold=True)]
    if rest:
        lines += scored(
            [p for group in rest for p in group.points], with_constants(values, lambda: log_errors(rest)), cold=True
        )
    head = stamp()
    for line in lines:
        print(*line.values(), sep="\t")
    if asked.results:
        with asked.results.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows({**head, **line} for line in lines)


def stamp() -> Mapping[str, str]:
    """Return date, commit and Python of a row."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return {"date": datetime.now(UTC).date().isoformat(), "commit": commit, "python": platform.python_version()}


if __name__ == "__main__":
    main()
