"""Measured steps from files: run directories of ``paceline train``, or a table of jobs of other software."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline import hardware
from paceline.calibration.observation import Observation
from paceline.csv_rows import Row, read
from paceline.errors import UserError, unknown
from paceline.hardware.cluster import Cluster
from paceline.hardware.placement import parse_sizes
from paceline.record import RunRecord, parse_json
from paceline.rundir import RunDir
from paceline.strategy import GradientExchange
from paceline.strategy.choices.choice_values import Compound, Flag, RealNumber
from paceline.strategy.compression.compressions import DENSE
from paceline.strategy.strategy import CHOICES, Strategy
from paceline.workload import Workload

NEEDED = ("workload", "device", "global_batch", "step_s")
"""Required columns of a table. Each row is a job. ``step_s`` and ``sync_s`` are in seconds."""
_MACHINE = ("devices_per_node", "nodes", "network", "seq_len", "sync_s")
_CHOSEN = {item.column: item for item in CHOICES.values() if item.column}
COLUMNS = (*NEEDED, *_MACHINE, *_CHOSEN)
"""All columns of a table: those of the job, and choices of ``Strategy`` by name. A column that begins with # is a remark."""
PROBE = "write it with paceline hardware probe --json > FILE.json"


def observations(paths: Sequence[str | Path]) -> list[Observation]:
    """Read the observations in files: every run of a directory and every row of a CSV file. Probes contain none.

    Raises:
        UserError: a run or file is missing, broken or empty, a row is impossible, or a JSON file is not a probe.
    """
    steps: list[Observation] = []
    for path in map(Path, paths):
        if is_probe(path):
            _probed(path)
        else:
            steps += _table(path) if path.suffix == ".csv" else _runs(_directory(path))
    return steps


def _directory(path: Path) -> Path:
    """Return the path, which may be a run directory. Raises UserError for a likely log or export."""
    if path.is_file() or (path.suffix and not path.exists()):
        table = f"a log, a trace or an export becomes one: paceline records import {path} --out jobs.csv"
        raise UserError(f"{path} is no run directory and no table of jobs", table)
    return path


def run_records(paths: Sequence[str | Path]) -> list[RunRecord]:
    """Return the records of the run directories among ``paths``, in order. Raises UserError for a missing or broken one."""
    records: list[RunRecord] = []
    for path in map(Path, paths):
        if path.suffix != ".csv" and not is_probe(path):
            records += RunDir(path).read(partial=True).records.values()
    return records


def machine(paths: Sequence[str | Path]) -> Cluster:
    """Return the probed cluster (``FILE.json``); without a probe, the cluster of the last run or row.

    Raises:
        UserError: as ``observations``; several probes.
    """
    probes = [path for path in map(Path, paths) if is_probe(path)]
    if len(probes) > 1:
        raise UserError(f"{' and '.join(map(str, probes))} are probes of a machine each", "give the probe of one machine")
    return _probed(probes[0]) if probes else observations([paths[-1]])[-1].cluster


def is_probe(path: str | Path) -> bool:
    """Return whether the file is read as a probe. Other JSON is refused."""
    return Path(path).suffix == ".json" and not Path(path).is_dir()


def _probed(path: Path) -> Cluster:
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is no file", PROBE)
        return Cluster.from_json(parse_json(path.read_bytes()))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", PROBE) from error
    except (ValueError, KeyError, TypeError, AttributeError, UserError):
        raise UserError(f"{path} is not what a probe writes", PROBE) from None


def _runs(path: Path) -> list[Observation]:
    records = RunDir(path).read(partial=True).records
    steps = [
        Observation.of_record(record, Workload.named(record.workload), Cluster.from_json(record.cluster))
        for record in records.values()
        if record.cluster
    ]
    if not steps:
        why = "its runs do not name their devices" if records else "no run has ended there"
        raise UserError(f"{path} contains no usable run: {why}", f"run paceline train --out {path} (again)")
    return steps


def _table(path: Path) -> list[Observation]:
    rows = read(path, NEEDED)
    for column in rows[0].values:
        if column not in COLUMNS and not column.startswith("#"):
            raise unknown(f"column of {path.name}", column, COLUMNS, "write #NAME for a remark")
    return [observation(row) for row in rows]


def _chosen(row: Row) -> dict[str, Any]:
    """Return the choices of a row by name. An empty cell or the number 0 makes no choice. Raises UserError."""
    chosen: dict[str, Any] = {}

    def owner() -> GradientExchange:
        """Return the exchange whose parts the cells change."""
        return GradientExchange(chosen.get("compression", DENSE))

    for column, item in _CHOSEN.items():
        text = row.text(column)
        if not text:
            continue
        if item.values.counted:
            value: Any = row.whole(column)
        elif isinstance(item.values, RealNumber):
            value = row.number_of(column)
        elif isinstance(item.values, Flag):
            try:
                value = item.values.parse(text, column)
            except UserError:
                raise row.wrong(column, "yes or no") from None
        elif isinstance(item.values, Compound):
            try:
                value = item.values.read_text(text, owner)
            except UserError as error:
                raise UserError(f"{row.place}, column {column}: {error.message}", error.fix) from None
        else:
            value = item.values.from_argument(text)
        if value not in (0, None) or isinstance(item.values, Flag | RealNumber | Compound):
            chosen[item.name] = value
    return chosen


def recorded_choices(strategy: Strategy) -> dict[str, str]:
    """Return the cells of a row for a strategy: choices that every row states, and choices that are not the default.

    The default of an exchange's choice may depend on its compression.
    """
    x = strategy.gradient_exchange
    usual = GradientExchange(x.compression, x.exchange)
    cells: dict[str, str] = {}
    for column, item in _CHOSEN.items():
        owner = getattr(strategy, item.part) if item.part else strategy
        value = getattr(owner, item.field)
        if item.recorded or value != (getattr(usual, item.field) if owner is x else item.default):
            cells[column] = str(item.values.to_argument(value))
    return cells


def observation(row: Row) -> Observation:
    """Return the observation of a row. A missing number is 1, a missing choice the default of ``Strategy``. Raises
    UserError."""

    def whole(column: str) -> int:
        return row.whole(column) or 1

    step, batch = row.positive("step_s"), row.whole("global_batch")
    if step is None or batch is None:
        raise row.wrong("step_s" if step is None else "global_batch", "a number above 0")
    chosen = _chosen(row)
    try:
        sizes = parse_sizes(row.text("devices_per_node")) if "+" in row.text("devices_per_node") else whole("devices_per_node")
        nodes = row.whole("nodes") or (len(sizes) if isinstance(sizes, tuple) else 1)
        cluster = hardware.cluster(row.text("device"), sizes, nodes, row.text("network") or None)
        return Observation(
            workload=Workload.named(row.text("workload"), row.whole("seq_len")),
            cluster=cluster,
            strategy=Strategy.of(
                world_size=cluster.world_size,
                global_batch_size=batch,
                **chosen,
            ),
            step_s=step,
            sync_s=row.number_of("sync_s"),
        )
    except UserError as error:
        raise UserError(f"{row.file}, row {row.number} (line {row.line}): {error.message}", error.fix) from None
