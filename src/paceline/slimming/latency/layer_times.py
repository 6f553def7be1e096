"""Prediction of the latency of a slimmed network, from the times of its operations at other widths on ONNX Runtime.

The time of a network is a sum: a call of the runtime; each operation with weights, from a table of its widths; reading its
weights if all weights together exceed a cache; every other step, in proportion to its remaining elements; and a constant cost
of each node. The sum is scaled to the measured latency of the whole network, and sums of smaller networks by the same factor.
One narrower network may be measured in turns with the whole one: ratios are then raised to the power that fits it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from math import log, prod
from typing import Any

import numpy as np

from paceline.array_types import Ints
from paceline.errors import UserError, unknown
from paceline.slimming.latency.latency import Latency
from paceline.slimming.latency.onnx_nodes import OnnxNode, call_seconds, node_seconds, seconds
from paceline.slimming.latency.step_times import least_of, shape_key, step_seconds
from paceline.slimming.latency.weight_reading import seconds_per_byte
from paceline.slimming.latency.width_tables import WORD, Part, Ranges, WidthTable, measured_table, parts_of, table_seconds
from paceline.slimming.structures.structures import Labelled, Structures

REST = "the rest"
VERSION = 3
POWERS, NEAR_WHOLE = (0.5, 2.0), 0.9
"""Range of the correction's power, beyond which the measurement is doubted, and the share above which there is none."""
Progress = Callable[[int, int], None]
"""Callback with the number of timed operations and their total."""


@dataclass(frozen=True)
class MeasuredLayers:
    """Measured times as plain data.

    Attributes:
        tables: tables of each operation. ``fixed_s``: constant part of the network. ``steps``: shrinking part of each step.
        reading: seconds that a byte of each operation's weights adds to its table.
        power: of ratios of sums to the whole network, so that one narrower network has its measured ratio.
    """

    tables: tuple[WidthTable, ...]
    fixed_s: float
    steps: tuple[float, ...]
    reading: tuple[float, ...]
    power: float = 1.0


class LayerTimes:
    """Predicted latency of a network whose structures were removed.

    Args:
        structures: structures of the network, with its operations.
        whole: measured latency of the whole network.
        round_to: widths are timed at multiples of it, or of the runtime's blocks.
        progress: called after each operation.
    """

    def __init__(
        self,
        structures: Structures,
        whole: Latency,
        *,
        round_to: int = 8,
        threads: int = 1,
        progress: Progress | None = None,
    ) -> None:
        parts = parts_of(structures)
        self._build(structures, whole, parts, _measure(structures, parts, round_to, threads, progress))

    def _build(self, structures: Structures, whole: Latency, parts: list[Part], measured: MeasuredLayers) -> None:
        self._structures, self.whole, self._parts, self._measured = structures, whole, parts, measured
        self._left = _Left(structures)
        self._widths = [_Widths.of(part, structures, self._left) for part in parts]
        by_tensors: dict[tuple[tuple[int, ...], ...], float] = defaultdict(float)
        for step, cost in zip(structures.steps, measured.steps, strict=True):
            by_tensors[tuple(map(self._left.numbers, least_of(step)))] += cost
        self._steps = dict(by_tensors)
        self._left.close()
        self._known: dict[tuple[int, int, int, tuple[int, ...]], float] = {}
        self._scale, self._power = 1.0, measured.power
        self._scale = whole.median_s / sum(self._uncorrected().values())

    def rescaled(self, whole: Latency) -> LayerTimes:
        """Return the tables with another measurement of the whole network."""
        made = LayerTimes.__new__(LayerTimes)
        made._build(self._structures, whole, self._parts, self._measured)
        return made

    def corrected(self, removed: Collection[int], ratio: float) -> LayerTimes:
        """Return the tables so that the network without some structures takes a measured share of the whole network's time.

        Shares of other networks are raised to the same power. One near 1, or a power beyond ``POWERS``, corrects nothing.

        Args:
            ratio: latency without them / latency of the whole network, timed in turns.
        """
        share = sum(self._uncorrected(removed).values()) / self.whole.median_s
        if not 0 < ratio < 1 or not 0 < share < NEAR_WHOLE:
            return self
        power = log(ratio) / log(share)
        made = LayerTimes.__new__(LayerTimes)
        kept = replace(self._measured, power=min(max(power, POWERS[0]), POWERS[1]))
        made._build(self._structures, self.whole, self._parts, kept)
        return made

    def seconds(self, removed: Collection[int] = ()) -> float:
        """Return the seconds of the network without some structures."""
        return sum(self.by_layer(removed).values())

    def by_layer(self, removed: Collection[int] = ()) -> dict[str, float]:
        """Return the seconds of each operation, by its module or its weight; the remainder is under ``REST``."""
        found = self._uncorrected(removed)
        factor = self._correction(sum(found.values()))
        return found if factor == 1 else {name: factor * each for name, each in found.items()}

    def _correction(self, seconds: float) -> float:
        """Return the factor on an uncorrected sum."""
        return (seconds / self.whole.median_s) ** (self._power - 1) if seconds and self._power != 1 else 1.0

    def _uncorrected(self, removed: Collection[int] = ()) -> dict[str, float]:
        counts = self._left.counts(removed)
        found: dict[str, float] = defaultdict(float)
        for number, (part, width) in enumerate(zip(self._parts, self._widths, strict=True)):
            found[part.name] += self._scale * self._part_seconds(number, *width.left(counts))
        shares: list[float] = (counts / self._left.sizes).tolist()
        steps = sum(cost * min(prod(shares[n] for n in one) for one in each) for each, cost in self._steps.items())
        found[REST] = self._scale * (self._measured.fixed_s + steps)
        return dict(found)

    def low_rank(self, ranks: Mapping[str, int], threads: int = 1) -> float:
        """Return the seconds of the whole network with some layers split in two (``low_rank_nodes``)."""
        return sum(took for *_, took in self.low_rank_nodes(ranks, threads)) + self.by_layer()[REST]

    def low_rank_nodes(self, ranks: Mapping[str, int], threads: int = 1) -> list[tuple[str, OnnxNode, float]]:
        """Return ``nodes`` of the whole network with some layers split in two: one with as many outputs as the rank, then a
        pointwise one.

        Args:
            ranks: by the names of ``by_layer``.

        Raises:
            UserError: no such convolution or linear layer.
        """
        found, known, left = [], dict[OnnxNode, float](), set(ranks)
        for (name, node, took), part, reading in zip(self.nodes(), self._parts, self._measured.reading, strict=True):
            pair = part.as_two(ranks[name]) if name in ranks else None
            if pair is None:
                found.append((name, node, took))
                continue
            left.discard(name)
            sizes = part.weight_bytes(part.entering, ranks[name]), WORD * ranks[name] * part.node.leaving
            for thin, size in zip(pair, sizes, strict=True):
                if thin not in known:
                    known[thin] = seconds(thin, threads)
                found.append((name, thin, self._scale * (known[thin] + reading * size)))
        if left:
            may = [part.name for part in self._parts if part.as_two(1)]
            raise unknown("layer of a low rank", next(name for name in ranks if name in left), may)
        return found

    def nodes(self, removed: Collection[int] = ()) -> list[tuple[str, OnnxNode, float]]:
        """Return name, widths and seconds of each remaining operation."""
        counts, found = self._left.counts(removed), []
        scale = self._scale * (self._correction(sum(self._uncorrected(removed).values())) if removed else 1.0)
        for number, (part, width) in enumerate(zip(self._parts, self._widths, strict=True)):
            entering, leaving, kernel = width.left(counts)
            if entering and leaving:
                took = scale * self._part_seconds(number, entering, leaving, kernel)
                found.append((part.name, part.at(entering, leaving, kernel), took))
        return found

    def _part_seconds(self, number: int, entering: int, leaving: int, kernel: tuple[int, ...]) -> float:
        key = number, entering, leaving, kernel
        if not (entering and leaving):  # of a removed branch
            return 0.0
        if key not in self._known:
            part, measured = self._parts[number], self._measured
            reading = measured.reading[number] * part.weight_bytes(entering, leaving, kernel)
            self._known[key] = table_seconds(part, measured.tables[number], entering, leaving, kernel) + reading
        return self._known[key]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for another process with the same network."""
        measured = self._measured
        return {
            "version": VERSION,
            "whole": asdict(self.whole),
            "weights": [part.weight for part in self._parts],
            "tables": [table.to_json() for table in measured.tables],
            "fixed_s": measured.fixed_s,
            "steps": list(measured.steps),
            "reading": list(measured.reading),
            "power": measured.power,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], structures: Structures) -> LayerTimes:
        """Invert ``to_json``.

        Args:
            structures: structures of the same network.

        Raises:
            UserError: the data are of another network, or no table.
        """
        parts = parts_of(structures)
        try:
            if data["version"] != VERSION:
                raise UserError(f"the table is of version {data['version']}", f"this release reads version {VERSION}")
            tables = tuple(WidthTable.from_json(each) for each in data["tables"])
            steps = tuple(float(each) for each in data["steps"])
            measured = MeasuredLayers(
                tables, float(data["fixed_s"]), steps, tuple(map(float, data["reading"])), float(data.get("power", 1.0))
            )
            whole = Latency(**data["whole"])
            same = list(data["weights"]) == [part.weight for part in parts] and len(tables) == len(parts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"these are no times of layers: {type(error).__name__}: {error}", "measure them again") from error
        if not same or len(steps) != len(structures.steps) or len(measured.reading) != len(parts):
            raise UserError("the table is of another network", "measure it again")
        made = cls.__new__(cls)
        made._build(structures, whole, parts, measured)
        return made


@dataclass(frozen=True, slots=True)
class _Widths:
    """Counts that determine a part's widths, and units per channel or feature.

    Attributes:
        kernel: counts of its rows, then of its columns.
    """

    entering: int
    leaving: int
    kernel: tuple[int, ...]
    per_group: float
    gates: int

    @classmethod
    def of(cls, part: Part, structures: Structures, left: _Left) -> _Widths:
        out, into = structures.units[part.weight][:2]
        if part.inputs_first:
            out, into = into, out
        grouped = part.node.window is not None and part.node.window.groups > 1
        leaving = left.number(out)
        entering = leaving if grouped else left.number(into)
        kernel = tuple(map(left.number, structures.units[part.weight][2:])) if part.node.kind == "conv" else ()
        return cls(entering, leaving, kernel, part.entering / len(out) if grouped else 1.0, part.gates)

    def left(self, counts: Ints) -> tuple[int, int, tuple[int, ...]]:
        """Return the remaining inputs and outputs and the size of the kernel; () if it is no convolution."""
        entering, leaving = round(int(counts[self.entering]) * self.per_group), int(counts[self.leaving]) // self.gates
        return entering, leaving, tuple(int(counts[each]) for each in self.kernel)


def _measure(
    structures: Structures, parts: list[Part], round_to: int, threads: int, progress: Progress | None
) -> MeasuredLayers:
    """Time every operation and step once for each of its shapes."""
    tables: dict[Any, WidthTable] = {}
    ordered = []
    left = _Left(structures)
    widths = [_Widths.of(part, structures, left) for part in parts]
    left.close()
    counts = left.counts([each.number for each in structures.every])
    for number, (part, width) in enumerate(zip(parts, widths, strict=True), 1):
        least = Ranges(*width.left(counts))
        key = part.node, least
        if key not in tables:
            tables[key] = measured_table(part, least, round_to, threads)
        ordered.append(tables[key])
        if progress is not None:
            progress(number, len(parts))
    costs: dict[tuple[object, ...], tuple[float, float]] = {}
    for step in structures.steps:
        if (shape := shape_key(step)) not in costs:
            costs[shape] = step_seconds(step, threads)
    each = [costs[shape_key(step)] for step in structures.steps]
    around = sum(2 for part in parts if part.node.kind == "linear" and len(part.node.inputs) != 2)
    fixed = call_seconds(threads) + sum(cost for cost, _ in each) + around * node_seconds(threads)
    sizes = [part.weight_bytes(part.entering, part.node.leaving) for part in parts]
    return MeasuredLayers(
        tuple(ordered), fixed, tuple(cost for _, cost in each), seconds_per_byte([part.node for part in parts], sizes, threads)
    )


class _Left:
    """Counts of remaining units by kind of tensor. Tensors with the same units share one count."""

    def __init__(self, structures: Structures) -> None:
        self._roots = structures.forest.roots
        self._last = max([0, *(int(units.max()) for dims in structures.units.values() for units in dims if len(units))])
        self._known: dict[bytes, int] = {}
        self._every: list[Ints] = []

    def number(self, units: Ints) -> int:
        """Return the index of these units' count."""
        roots = np.ascontiguousarray(self._roots(units).ravel())
        found = self._known.setdefault(roots.tobytes(), len(self._every))
        if found == len(self._every):
            self._every.append(roots)
        return found

    def numbers(self, tensor: Labelled) -> tuple[int, ...]:
        """Return the indices of the counts that determine the remaining part of a tensor."""
        return tuple(self.number(one) for one in tensor.fields if self._roots(one).any())

    def close(self) -> None:
        """Build the arrays after all numbers are assigned."""
        self._flat = np.concatenate([*self._every, np.zeros(1, np.int64)])
        self._last = max(self._last, int(self._flat.max()))  # steps may have units that no weight has
        self._starts = np.cumsum([0, *(len(each) for each in self._every)])  # the last is of what was added
        self.sizes = np.array([len(each) for each in self._every], np.int64)

    def counts(self, removed: Collection[int]) -> Ints:
        """Return the count of each number."""
        stays = np.ones(self._last + 1, np.int64)
        stays[list(removed)] = 0
        return np.add.reduceat(stays[self._flat], self._starts)[:-1]
