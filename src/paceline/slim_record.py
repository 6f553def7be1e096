"""What slimming a network gave, as plain data: before and after, predicted and measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from paceline.errors import UserError, shorten, shown

VERSION = 1
_T = TypeVar("_T")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
}
"""What JSON has for a field of a type."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A network on the target.

    Attributes:
        latency_s: median of one run; ``low_s`` and ``high_s``: quartiles.
        accuracy: share of the held-out labels that it predicts right; ``loss``: mean cross-entropy there. None: no data given.
        parameters: weights. ``file_bytes``: of the exported file.
    """

    latency_s: float
    low_s: float
    high_s: float
    parameters: int
    file_bytes: int
    accuracy: float | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Width:
    """Of a layer, before and after: its structures, such as filters, heads or hidden units, or the rows of a kernel."""

    layer: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class LayerLatency:
    """Seconds of a layer: measured on the target before and after, and predicted for after."""

    layer: str
    before_s: float
    after_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A network on the path: latency, and the accuracy that it had after its last training."""

    name: str
    latency_s: float
    predicted_s: float
    accuracy: float | None


@dataclass(frozen=True)
class SlimRecord:
    """One slimmed network.

    Attributes:
        model: its name; ``data``, ``method``, ``target``, ``budget``: as they were asked for. ``threads``: of the runtime.
        whole: before. ``slimmed``: after; None where it is only predicted. ``quantised``: the slimmed one in int8.
        predicted_s: latency that the layers' tables say for the slimmed network; 0: unknown.
        kept: what stayed whole and why, by place. ``notes``: what else a reader must know.
        environment: of the measurements. ``files``: what was written, by name; ``sizes``: their bytes on the disk.
    """

    model: str
    data: str
    method: str
    target: str
    budget: str
    threads: int
    whole: Measured
    slimmed: Measured | None
    predicted_s: float
    widths: tuple[Width, ...] = ()
    layers: tuple[LayerLatency, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    quantised: Measured | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def speedup(self) -> float:
        """Of the slimmed network; what is predicted where it was not measured."""
        after = self.slimmed.latency_s if self.slimmed else self.predicted_s
        return self.whole.latency_s / after if after else 1.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SlimRecord:
        """The inverse of ``to_json``. Raises UserError for anything else."""
        try:
            values = dict(data)
            if (version := values.pop("version")) != VERSION:
                raise UserError(f"a record of slimming of version {shown(version)}", f"this release reads version {VERSION}")
            for name in ("whole", "slimmed", "quantised"):
                values[name] = _made(Measured, values[name]) if name == "whole" or values[name] is not None else None
            for name, kind in (("widths", Width), ("layers", LayerLatency), ("curve", CurvePoint)):
                values[name] = tuple(_made(kind, each) for each in values[name])
            for name in ("kept", "environment", "files"):
                values[name] = dict(values[name])
            values["notes"] = tuple(map(str, values["notes"]))
            return _made(cls, values)
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise UserError(f"this is no record of slimming: {shorten(f'{type(error).__name__}: {error}')}") from error


def _made(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """A dataclass of plain data. Raises TypeError or ValueError where a field is missing, of another type or not finite."""
    made = kind(**values)
    for each in fields(kind):  # type: ignore[arg-type]
        value, types = getattr(made, each.name), _TYPES.get(str(each.type), (object,))
        if not isinstance(value, types) or isinstance(value, bool):
            raise TypeError(f"{each.name} is {shown(value)}")
        if isinstance(value, int | float) and not math.isfinite(value):
            raise ValueError(f"{each.name} is {value}")
    return made


@dataclass(frozen=True, slots=True)
class WidthPrediction:
    """The whole network where every layer keeps a share of its structures.

    Attributes:
        share: of the structures. ``latency_s``: predicted. ``weight_bytes``: in fp32.
    """

    share: float
    latency_s: float
    weight_bytes: float


@dataclass(frozen=True)
class SlimPrediction:
    """Before any training.

    Attributes:
        latency_s: of the whole network, measured. ``layers``: seconds of each layer in it.
        budget_share: the largest share of structures in all layers alike that meets the budget; None: none does, or it is a
            loss of accuracy.
    """

    model: str
    method: str
    target: str
    budget: str
    threads: int
    latency_s: float
    widths: tuple[WidthPrediction, ...]
    layers: Mapping[str, float]
    budget_share: float | None
    kept: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"version": VERSION, **asdict(self)}


__all__ = ["CurvePoint", "LayerLatency", "Measured", "SlimPrediction", "SlimRecord", "Width", "WidthPrediction"]
