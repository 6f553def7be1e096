"""Predicted step times as a surface over devices and batches.

A surface needs a few dozen predictions, and every job of the same model on the same nodes shares it. Steps between its points
are interpolated. Reports of running jobs correct it (``corrected_speed``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.array_types import Array, Ints
from paceline.errors import NotMet
from paceline.prediction import Prediction, StepPredictor
from paceline.scheduling.fleet import NodeGroup
from paceline.scheduling.speeds.profiles import StepSpeed, packed
from paceline.strategy import Strategy
from paceline.workload import Workload

LOCALS = 5
"""Number of batches of a device that are predicted, geometrically spaced."""
DENSE_NODES = 2
"""Nodes up to which every number of devices is predicted. Beyond them, each doubling of the nodes is."""


@dataclass(frozen=True, eq=False)
class PredictedSpeed(StepSpeed):
    """Predicted steps of one network on nodes of one type.

    Attributes:
        locals: samples of a device and pass, ascending; shape (batches,).
        sizes: numbers of packed devices, ascending from 1. ``steps``: seconds; shape (sizes, batches).
        spread: steps of the same devices, one per node; shape (sizes, batches).
        relative_spread: half the 80 % range of a step on one device, relative to it.
        crossed: steps of the same nodes, one per rack; None: one rack.
    """

    group: NodeGroup
    locals: Array
    sizes: Array
    steps: Array
    spread: Array
    relative_spread: float = 0.0
    crossed: Array | None = None

    @property
    def local_range(self) -> tuple[int, int]:
        """Least and largest batch of a device that fits."""
        return int(self.locals[0]), int(self.locals[-1])

    @property
    def alone(self) -> float:
        """Samples a second of one device at its largest batch."""
        return float(self.locals[-1] / self.steps[0, -1])

    def local_most(self, placement: Sequence[int]) -> int:
        """Return the largest batch of a device on a placement."""
        return self.local_range[1]

    def step_s(self, nodes: Ints, devices: Ints, local: Ints) -> tuple[Array, Array]:
        """Return the seconds of a step; see ``StepSeconds``."""
        compute = np.interp(local, self.locals, self.steps[0])
        step = _bilinear(self.sizes, self.locals, self.steps, devices, local)
        wide = nodes > -(-devices // self.group.devices_per_node)
        if wide.any():
            step = np.where(wide, _bilinear(self.sizes, self.locals, self.spread, devices, local), step)
        return step, compute

    def measured(self, placement: Sequence[int], local: int, crossed: int = 0) -> tuple[float, float]:
        """Return the seconds of a step and of its exchange's addition, in the form of a measured profile."""
        devices, batch = np.array([sum(placement)]), np.array([local])
        step, compute = self.step_s(np.array([len(placement)]), devices, batch)
        if crossed and self.crossed is not None:
            step = np.maximum(step, _bilinear(self.sizes, self.locals, self.crossed, devices, batch))
        return float(step[0]), float(max(step[0] - compute[0], 0.0))


def _bilinear(sizes: Array, locals_: Array, table: Array, devices: Ints, local: Ints) -> Array:
    """Interpolate between the points of a table of (sizes, batches)."""
    position = np.interp(devices, sizes, np.arange(len(sizes)))
    low = np.floor(position).astype(int)
    high = np.minimum(low + 1, len(sizes) - 1)
    share = position - low
    column = np.interp(local, locals_, np.arange(len(locals_)))
    left = np.floor(column).astype(int)
    right = np.minimum(left + 1, len(locals_) - 1)
    across = column - left
    below = table[low, left] * (1 - across) + table[low, right] * across
    above = table[high, left] * (1 - across) + table[high, right] * across
    return np.asarray(below * (1 - share) + above * share)


@dataclass(frozen=True, slots=True)
class SurfaceSpec:
    """Input of a predicted surface.

    Attributes:
        local_least, local_most: bounds of a device and pass. Batches that do not fit the memory are left out.
        most_devices: largest number of devices.
        choices: choices of the strategy, such as (("precision", "fp16"),).
        batches: further batches of a device that are predicted.
    """

    workload: Workload
    group: NodeGroup
    local_least: int
    local_most: int
    most_devices: int
    choices: tuple[tuple[str, Any], ...] = ()
    batches: tuple[int, ...] = ()


def predicted_speed(asked: SurfaceSpec, predictor: StepPredictor) -> PredictedSpeed:
    """Predict the surface of a network on nodes of a type.

    Raises:
        NotMet: the least batch does not fit the device; several nodes without a network.
    """
    group = asked.group
    locals_ = _locals(asked, predictor)
    sizes = _sizes(min(asked.most_devices, group.devices), group.devices_per_node)
    shapes = [packed(size, group.devices_per_node) for size in sizes]
    spread = [packed(size, 1) if size <= group.nodes else shape for size, shape in zip(sizes, shapes, strict=True)]

    def step_s(shape: tuple[int, ...], local: int, racks: int = 0) -> float:
        return _step(asked, predictor, shape, local, racks).step_time_s

    def table(shapes: Sequence[tuple[int, ...]]) -> Array:
        return np.array([[step_s(shape, local) for local in locals_] for shape in shapes])

    alone = _step(asked, predictor, (1,), locals_[-1])
    steps = table(shapes)
    wide = np.array([step_s(shape, locals_[-1]) for shape in spread])
    crossed = None
    if group.leaf_nodes:
        over = np.array([step_s(shape, locals_[-1], len(shape)) for shape in shapes])
        crossed = steps + np.maximum(over - steps[:, -1], 0)[:, None]
    return PredictedSpeed(
        group,
        np.array(locals_, float),
        np.array(sizes, float),
        steps,
        steps + np.maximum(wide - steps[:, -1], 0)[:, None],
        (alone.high_s - alone.low_s) / 2 / alone.step_time_s,
        crossed,
    )


def _locals(asked: SurfaceSpec, predictor: StepPredictor) -> list[int]:
    """Return the batches of a device, up to the largest that fits its memory."""
    most = asked.local_most
    while most >= asked.local_least and not _step(asked, predictor, (1,), most).fits:
        most //= 2
    if most < asked.local_least:
        raise NotMet(
            f"{asked.workload.name} with {asked.local_least} samples does not fit a {asked.group.device}",
            "allow other devices, give a smaller least batch, or let it adapt its strategy",
        )
    others = (batch for batch in asked.batches if asked.local_least <= batch <= most)
    return sorted({*(round(value) for value in np.geomspace(asked.local_least, most, LOCALS)), *others})


def _sizes(most: int, per_node: int) -> list[int]:
    dense = range(1, min(most, DENSE_NODES * per_node) + 1)
    nodes = [DENSE_NODES * 2**power for power in range(1, 20)]
    return sorted({*dense, *(n * per_node for n in nodes if n * per_node < most), most})


def _step(asked: SurfaceSpec, predictor: StepPredictor, shape: Sequence[int], local: int, racks: int = 0) -> Prediction:
    devices = sum(shape)
    cluster = asked.group.part(shape, racks)
    strategy = Strategy.of(world_size=devices, global_batch_size=local * devices, **dict(asked.choices))
    return predictor.step(asked.workload, cluster, strategy)
