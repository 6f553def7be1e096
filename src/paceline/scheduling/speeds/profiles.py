"""Measured profiles of models: step times by placement and batch, and gradient noise by epoch and batch.

Columns are those of the published simulators of Pollux and Sia (``pollux_sia_step_times.csv``, ``pollux_sia_validation.csv``).
An optional column ``better`` of the second file tells whether ``less`` or ``more`` of a model's metric is better.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.array_types import Array, Ints
from paceline.csv_rows import Row, read
from paceline.errors import UserError, unknown
from paceline.scheduling.speeds.goodput import BatchLimits, Noise, StepSeconds

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

STEP_COLUMNS = ("cluster", "model", "placement", "num_nodes", "num_gpus", "local_bsz", "step_time", "sync_time")
EPOCH_COLUMNS = ("model", "batch_size", "epoch", "progress", "iteration", "metric", "grad_sqr", "grad_var")
STEP_FILE, EPOCH_FILE = "pollux_sia_step_times.csv", "pollux_sia_validation.csv"
DEVICES: Mapping[str, str] = {"aws": "T4", "rtx": "RTX 2080 Ti", "dgx-ext": "A100 SXM 40GB"}
"""Device of each cluster of the profiles (Sia, SOSP 2023, section 4)."""
MOST_NODES = 16
"""Most nodes in the profiles. More nodes count as this many (Pollux's simulator)."""
LESS_IS_BETTER = frozenset({"deepspeech2", "yolov3"})
"""Models whose metric is an error rate or a loss (Pollux, OSDI 2021, table 1). For the others higher is better."""
LOCAL_MOST = {"yolov3": 8}
"""Samples of a device and pass that fit its memory, if the profile has more (Pollux's simulator)."""


class PackedSteps:
    """Step and exchange times on packed placements, a row for each key; -1 for times that were not yet requested."""

    def __init__(self) -> None:
        self._rows = np.zeros((0, 2))

    def rows(self, count: int, spare: int) -> Array:
        """Return at least ``count`` rows. If they must grow, add ``spare`` more."""
        if count > len(self._rows):
            grown = np.full((count - 1 + spare, 2), -1.0)
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        return self._rows


class StepSpeed(StepSeconds):
    """Steps of one model on one kind of device, measured or predicted."""

    @property
    @abstractmethod
    def local_range(self) -> tuple[int, int]:
        """Least and largest batch of a device."""

    @property
    @abstractmethod
    def alone(self) -> float:
        """Samples a second of one device at its largest batch."""

    @abstractmethod
    def local_most(self, placement: Sequence[int]) -> int:
        """Largest batch of a device on a placement."""

    @abstractmethod
    def measured(self, placement: Sequence[int], local: int, crossed: int = 0) -> tuple[float, float]:
        """Seconds of a step and of its exchange. ``crossed``: as ``Fleet.crossed``."""


@dataclass(frozen=True, eq=False)
class MeasuredSpeed(StepSpeed):
    """Step and exchange times of one model on one kind of device.

    Attributes:
        tables: local batches, steps and exchanges by placement (devices of each node, in its smallest rotation).
        points: (nodes, devices, local batch) and (step, exchange), for placements without a table.
        devices_per_node: devices of a node of the measured cluster.
    """

    tables: Mapping[tuple[int, ...], tuple[Array, Array, Array]]
    points: tuple[Array, Array]
    devices_per_node: int
    _known: dict[tuple[tuple[int, ...], int], tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)
    _packed: PackedSteps = field(default_factory=PackedSteps, repr=False, compare=False)

    @cached_property
    def _interpolator(self) -> LinearNDInterpolator:
        from scipy.interpolate import LinearNDInterpolator

        return LinearNDInterpolator(*self.points)

    @cached_property
    def local_range(self) -> tuple[int, int]:
        """Least and largest local batch of the tables."""
        sizes = [size for table in self.tables.values() for size in (table[0][0], table[0][-1])]
        return int(min(sizes)), int(max(sizes))

    @cached_property
    def alone(self) -> float:
        """Return approximate samples a second of one device: largest local batch / longest step (Sia's bootstrap)."""
        local, step, _ = self.tables[(1,)]
        return float(local.max() / step.max())

    def local_most(self, placement: Sequence[int]) -> int:
        """Return the largest local batch measured on this placement, or on one with as many nodes and devices."""
        table = self.tables.get(_rotation(tuple(placement)))
        if table is not None:
            return int(table[0][-1])
        nodes, devices, local = self.points[0].T
        like = (nodes >= min(len(placement), MOST_NODES)) & (devices >= sum(placement))
        return int(local[like].max()) if like.any() else self.local_range[1]

    def measured(self, placement: Sequence[int], local: int, crossed: int = 0) -> tuple[float, float]:
        """Return the seconds of a step and of its exchange; NaN if not measured.

        Args:
            placement: devices of each node, such as (4, 4, 2). ``local``: samples of a device and pass.
            crossed: racks, which have no effect because they were not measured.
        """
        key = (tuple(placement), local)
        if key not in self._known:
            self._known[key] = self._look_up(*key)
        return self._known[key]

    def _look_up(self, placement: tuple[int, ...], local: int) -> tuple[float, float]:
        table = self.tables.get(_rotation(placement))
        if table is None:
            step, exchange = self._interpolator([min(len(placement), MOST_NODES), sum(placement), local])[0]
        elif table[0][0] <= local <= table[0][-1]:
            step, exchange = (np.interp(local, table[0], column) for column in table[1:])
        else:
            return float("nan"), float("nan")
        return float(step), float(exchange)

    def step_s(self, nodes: Ints, devices: Ints, local: Ints) -> tuple[Array, Array]:
        """Return the seconds of a step on packed placements: full nodes, then one more; see ``StepSeconds``."""
        width = self.local_range[1] + 2  # the last column stands for all that is beyond, where nothing was measured
        keys = devices * width + np.clip(local, 0, width - 1)
        steps = self._packed.rows(int(keys.max(initial=0)) + 1, width)
        for key in np.unique(keys[steps[keys, 0] == -1.0]).tolist():
            count, size = divmod(key, width)
            step, exchange = self.measured(packed(count, self.devices_per_node), size)
            steps[key] = step, step - exchange
        return steps[keys, 0], steps[keys, 1]


def _rotation(placement: tuple[int, ...]) -> tuple[int, ...]:
    """Return the smallest rotation of a placement, its key in the tables."""
    return min(placement[i:] + placement[:i] for i in range(len(placement)))


def packed(devices: int, per_node: int) -> tuple[int, ...]:
    """Return the devices of each node if they fill one node after another."""
    full, rest = divmod(devices, per_node)
    return (per_node,) * full + ((rest,) if rest else ())


@dataclass(frozen=True)
class EpochTable:
    """Course of a training by batch and epoch; arrays of shape (batches, epochs).

    Attributes:
        batches: ascending.
        progress: equivalent steps of the least batch after each epoch. ``iterations``: steps after each epoch.
        metric: metric after each epoch. Higher is better; errors and losses are negative.
        signal, variance: squared norm and variance of the gradient in each epoch.
    """

    batches: Ints
    progress: Array
    iterations: Array
    metric: Array
    signal: Array
    variance: Array

    @property
    def count(self) -> int:
        """Number of epochs of a complete training."""
        return int(self.progress.shape[1])

    @cached_property
    def ends(self) -> Array:
        """Progress at the end of each epoch: the least over the batches, which differ by less than a step in ten thousand."""
        return np.asarray(self.progress.min(axis=0))

    def noise(self, batch: float, epoch: int) -> Noise:
        """Return the noise at a batch, interpolated."""
        return Noise(
            float(np.interp(batch, self.batches, self.signal[:, epoch])),
            float(np.interp(batch, self.batches, self.variance[:, epoch])),
        )

    def steps(self, batch: float, epoch: int) -> float:
        """Return the steps at one batch from the start to the end of an epoch."""
        return float(np.interp(batch, self.batches, self.iterations[:, epoch]))


@dataclass(frozen=True)
class ModelProfile:
    """Measurements of a model: steps by device, and its epochs."""

    model: str
    speeds: Mapping[str, StepSpeed]
    epochs: EpochTable

    def limits(self, device: str) -> BatchLimits:
        """Return the batches that were measured on a device."""
        least, most = self.speed(device).local_range
        batches = self.epochs.batches
        return BatchLimits(int(batches[0]), int(batches[-1]), least, min(most, LOCAL_MOST.get(self.model, most)))

    def speed(self, device: str) -> StepSpeed:
        """Return the steps on a kind of device. Raises UserError if it was not measured."""
        if device not in self.speeds:
            raise unknown(f"device of the profile {self.model!r}", device, self.speeds)
        return self.speeds[device]


def read_profiles(folder: str | Path, clusters: Mapping[str, str] = DEVICES) -> dict[str, ModelProfile]:
    """Read profiles by model.

    Args:
        folder: folder of ``STEP_FILE`` and ``EPOCH_FILE``.
        clusters: clusters of the file that are read, and the device of each.

    Raises:
        UserError: a missing or damaged file, with the row and the column.
    """
    lacks = [name for name in (STEP_FILE, EPOCH_FILE) if not (Path(folder) / name).exists()]
    if lacks:
        raise UserError(f"`profiles` {folder} lacks {' and '.join(lacks)}", "give the folder that holds them")
    speeds: dict[str, dict[str, MeasuredSpeed]] = defaultdict(dict)
    groups: dict[tuple[str, str], list[tuple[str, tuple[int, int, float, float, float]]]] = defaultdict(list)
    for row in read(Path(folder) / STEP_FILE, STEP_COLUMNS):
        if row.text("cluster") in clusters:
            step, local = row.positive("step_time"), row.positive("local_bsz")
            nodes, devices = row.whole("num_nodes"), row.whole("num_gpus")
            if step is None or local is None or nodes is None or devices is None:
                raise UserError(f"{row.place}: a step without its time, batch, nodes or devices")
            values = (nodes, devices, local, step, row.number_of("sync_time") or 0.0)
            placement = row.text("placement")
            if not (placement == "" or placement.isdecimal()):
                raise row.wrong("placement", "the devices of each node, such as 44")
            groups[row.text("model"), row.text("cluster")].append((placement, values))
    for (model, cluster), rows in groups.items():
        speeds[model][clusters[cluster]] = _measured_speed(rows)
    epochs = _epochs(Path(folder) / EPOCH_FILE)
    return {model: ModelProfile(model, speeds[model], epochs[model]) for model in speeds if model in epochs}


def _measured_speed(rows: Sequence[tuple[str, tuple[int, int, float, float, float]]]) -> MeasuredSpeed:
    placed: dict[tuple[int, ...], list[tuple[float, float, float]]] = defaultdict(list)
    sums: dict[tuple[int, int, float], list[tuple[float, float]]] = defaultdict(list)
    scattered: list[tuple[tuple[int, int, float], tuple[float, float]]] = []
    for placement, (nodes, devices, local, step, exchange) in rows:
        key = (nodes, devices, local)
        if placement:
            placed[tuple(int(digit) for digit in placement)].append((local, step, exchange))
            sums[key].append((step, exchange))
        else:
            scattered.append((key, (step, exchange)))
    means = [(key, tuple(np.mean(values, axis=0))) for key, values in sorted(sums.items())]
    keys, values = zip(*[*means, *scattered], strict=True)
    tables = {
        placement: tuple(np.array(column) for column in zip(*sorted(table), strict=True)) for placement, table in placed.items()
    }
    per_node = max((max(placement) for placement in tables), default=1)
    return MeasuredSpeed(tables, (np.array(keys, float), np.array(values, float)), per_node)  # type: ignore[arg-type]


def _epochs(path: Path) -> dict[str, EpochTable]:
    rows: dict[str, dict[int, list[tuple[float, ...]]]] = defaultdict(lambda: defaultdict(list))
    stated: dict[str, bool | None] = {}
    for row in read(path, EPOCH_COLUMNS):
        batch = row.whole("batch_size")
        if batch is None:
            raise row.wrong("batch_size", "a whole number above 0")
        stated[row.text("model")] = _less_is_better(row)
        rows[row.text("model")][batch].append(tuple(_number(row, column) for column in EPOCH_COLUMNS[2:]))
    less = {model: model in LESS_IS_BETTER if falls is None else falls for model, falls in stated.items()}
    return {model: _epoch_table(batches, less[model]) for model, batches in rows.items()}


def _less_is_better(row: Row) -> bool | None:
    """Return the value of the column ``better``; None if empty."""
    word = row.text("better")
    if word not in ("", "less", "more"):
        raise row.wrong("better", "less or more: which metric is better")
    return word == "less" if word else None


def _number(row: Row, column: str) -> float:
    """Parse the number in a cell, which may be negative."""
    try:
        value = float(row.text(column))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise row.wrong(column, "a number")
    return value


def _epoch_table(batches: Mapping[int, list[tuple[float, ...]]], falls: bool) -> EpochTable:
    sizes = sorted(batches)
    count = min(len(rows) for rows in batches.values())
    table = np.array([sorted(batches[size])[:count] for size in sizes], float)  # (batches, epochs, columns)
    _, progress, iterations, metric, signal, variance = np.moveaxis(table, 2, 0)
    return EpochTable(np.array(sizes), progress, iterations, -metric if falls else metric, signal, variance)
