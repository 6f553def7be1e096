"""Record of slimming a network, as plain data: before and after, predicted and measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from statistics import NormalDist
from typing import Any, TypeVar

from paceline.errors import UserError, shorten, shown

VERSION = 1
_T = TypeVar("_T")
_Z = NormalDist().inv_cdf(0.975)
_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
}
"""JSON types of a field's type."""


UNMEASURED = {"tensorrt": "TensorRT", "coreml": "Core ML"}
"""Targets that do not run here, with their official names."""
TIMED_ELSEWHERE = "onnxruntime"
"""Runtime whose latencies stand in the answers for such a target."""


def unmeasured_note(target: str) -> str:
    """Return the sentence that says what was not measured."""
    checks = {
        "tensorrt": "compared on ONNX Runtime and held against the parser's published rules",
        "coreml": "converted, not run",
    }
    said = f"Unmeasured on {UNMEASURED[target]}: each latency is of ONNX Runtime on this processor."
    return f"{said} Files are {checks[target]}."


@dataclass(frozen=True, slots=True)
class SlimMeasurement:
    """Measurements of a network on the target.

    Attributes:
        latency_s: median of one run; ``low_s`` and ``high_s``: quartiles.
        accuracy: share of the held-out labels that it predicts right; ``loss``: mean cross-entropy there. None: no data given.
        parameters: weights. ``file_bytes``: bytes of the exported file.
    """

    latency_s: float
    low_s: float
    high_s: float
    parameters: int
    file_bytes: int
    accuracy: float | None = None
    loss: float | None = None


def accuracy_range(accuracy: float, labels: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of an accuracy (Wilson, JASA 1927).

    Args:
        accuracy: share of ``labels`` predicted right, each taken as an independent draw.
    """
    middle = accuracy + _Z**2 / (2 * labels)
    spread = _Z * math.sqrt((accuracy * (1 - accuracy) + _Z**2 / (4 * labels)) / labels)
    whole = 1 + _Z**2 / labels
    return max((middle - spread) / whole, 0.0), min((middle + spread) / whole, 1.0)


@dataclass(frozen=True, slots=True)
class Width:
    """Structures of a layer before and after, such as filters, heads or hidden units, or the rows of a kernel."""

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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A network that may meet the budget: smaller, with fewer bits, or both.

    Attributes:
        way: one of ``WAYS``. ``weights``: form of the weights. ``file``: name of its file.
        predicted_bytes: bytes of the file by its weights, scales and zero points, before it was written.
        meets: ``yes`` or ``no``, as measured; empty if the budget is a loss of accuracy.
    """

    way: str
    weights: str
    file: str
    measured: SlimMeasurement
    predicted_bytes: float
    meets: str


SMALLER, FEWER_BITS, BOTH, BOTH_EASED = "smaller", "fewer bits", "both", "both, less removed"
WAYS = (SMALLER, FEWER_BITS, BOTH, BOTH_EASED)
"""Ways to a budget. ``BOTH``: the network that meets it in fp32, with fewer bits. ``BOTH_EASED``: a wider network that meets it
only with fewer bits."""


@dataclass(frozen=True, slots=True)
class Training:
    """How the networks of a record were trained.

    Attributes:
        epochs: epochs of each stage that led to the slimmed network. ``lr``: peak of the whole network's. ``batch``: samples a
            step, over all ``workers``. ``compression``: compression of gradients.
        distill: weight of the whole network's outputs in the loss of the slimmed one.
    """

    epochs: Mapping[str, int]
    optimizer: str
    lr: float
    batch: int
    workers: int
    compression: str
    distill: float
    seed: int


class _Timed:
    """Runtime of the latencies of a record or a prediction."""

    target: str

    @property
    def timed_on(self) -> str:
        """Runtime of the latencies: the target, if it runs here."""
        return TIMED_ELSEWHERE if self.target in UNMEASURED else self.target


@dataclass(frozen=True)
class SlimRecord(_Timed):
    """One slimmed network.

    Attributes:
        model: its name; ``data``, ``method``, ``target``, ``budget``: as asked for. ``threads``: those of the runtime.
        training: how it was trained; ``held_out``: number of labels of the accuracies. None and 0 in older records.
        whole: before. ``slimmed``: after; None if only predicted. ``quantised``: the slimmed one in int8.
        predicted_s: latency of the slimmed network by the layers' tables; 0: unknown.
        kept: reasons why parts stayed whole, by place. ``notes``: further remarks.
        clock: latency of the whole network at the end relative to before training. A budget of latency is multiplied by it.
        environment: environment of the measurements. ``files``: written files by name; ``sizes``: their bytes on the disk.
        candidates: networks that were measured against the budget, if forms of weights were asked for.
    """

    model: str
    data: str
    method: str
    target: str
    budget: str
    threads: int
    whole: SlimMeasurement
    slimmed: SlimMeasurement | None
    predicted_s: float
    widths: tuple[Width, ...] = ()
    layers: tuple[LayerLatency, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    quantised: SlimMeasurement | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    training: Training | None = None
    held_out: int = 0
    clock: float = 1.0
    candidates: tuple[Candidate, ...] = ()

    @property
    def meeting(self) -> list[Candidate]:
        """Candidates that meet the budget, those with the least loss on the held-out samples first."""
        good = [each for each in self.candidates if each.meets == "yes"]
        return sorted(
            good, key=lambda each: (-(each.measured.accuracy or 0.0), each.measured.loss or 0.0, each.measured.latency_s)
        )

    @property
    def speedup(self) -> float:
        """Latency of the whole network / latency of the slimmed network, which is predicted if it was not measured."""
        after = self.slimmed.latency_s if self.slimmed else self.predicted_s
        return self.whole.latency_s / after if after else 1.0

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SlimRecord:
        """Read the data of ``to_json``. Raises UserError for other data."""
        try:
            values = dict(data)
            if (version := values.pop("version")) != VERSION:
                raise UserError(f"a record of slimming of version {shown(version)}", f"this release reads version {VERSION}")
            for name in ("whole", "slimmed", "quantised"):
                values[name] = _made(SlimMeasurement, values[name]) if name == "whole" or values[name] is not None else None
            for name, kind in (("widths", Width), ("layers", LayerLatency), ("curve", CurvePoint)):
                values[name] = tuple(_made(kind, each) for each in values[name])
            candidates = [
                {**each, "measured": _made(SlimMeasurement, each["measured"])} for each in values.get("candidates", ())
            ]
            values["candidates"] = tuple(_made(Candidate, each) for each in candidates)
            if values.get("training") is not None:
                values["training"] = made = _made(Training, values["training"])
                if not all(type(number) is int for number in dict(made.epochs).values()):
                    raise TypeError(f"epochs are {shown(made.epochs)}")
            for name in ("kept", "environment", "files"):
                values[name] = dict(values[name])
            values["notes"] = tuple(map(str, values["notes"]))
            return _made(cls, values)
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise UserError(f"this is no record of slimming: {shorten(f'{type(error).__name__}: {error}')}") from error


def _made(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """Build a dataclass from plain data. Raises TypeError or ValueError for a missing, wrongly typed or infinite field."""
    made = kind(**values)
    for each in fields(kind):  # type: ignore[arg-type]
        value, types = getattr(made, each.name), _TYPES.get(str(each.type), (object,))
        if not isinstance(value, types) or isinstance(value, bool):
            raise TypeError(f"{each.name} is {shown(value)}")
        if isinstance(value, int | float) and not math.isfinite(value):
            raise ValueError(f"{each.name} is {value}")
    return made


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """The whole network after one step, which is equal in every layer that takes it.

    Attributes:
        varied: ``width``, ``rank`` or ``sparsity``.
        share: share of its structures or of its full rank that a layer keeps, or of its weights that are zero. ``layers``:
            number of smaller layers.
        latency_s: predicted. ``low_s``, ``high_s``: its range; None on this machine, because its layers are timed.
        weight_bytes: in fp32; in sparse layers with the positions of the remaining weights.
    """

    varied: str
    share: float
    layers: int
    latency_s: float
    weight_bytes: float
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True, slots=True)
class PredictedForm:
    """The whole network in a form of weights, and the least change that meets the budget in that form.

    Attributes:
        weights: the form. ``ratio``: its latency / latency in fp32 in ``low`` to ``high``, timed here; 0: it has no file.
        file_bytes: measured. ``predicted_bytes``: by weights, scales and zero points.
        accuracy: of the whole network in this form; None: it is not trained.
        alone: ``yes``, ``perhaps`` (the range has the budget) or ``no``.
        share: share of structures that stays if the form meets the budget with fewer of them, predicted; None: unknown.
        text: the forecast in words.
    """

    weights: str
    ratio: float
    low: float
    high: float
    file_bytes: int
    predicted_bytes: float
    accuracy: float | None
    alone: str
    share: float | None
    text: str


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """Another processor with its published figures.

    Attributes:
        cores: cores that count. ``one_core``, ``all_cores``: peak in FLOP/s. ``bandwidth``: of the memory, bytes/s.
        sources: sources of these three figures, by name.
    """

    name: str
    cores: int
    one_core: float
    all_cores: float
    bandwidth: float
    sources: Mapping[str, str]


@dataclass(frozen=True)
class SlimPrediction(_Timed):
    """Prediction before any training.

    Attributes:
        threads: threads of the runtime, or cores of ``device``.
        latency_s: latency of the whole network: measured here, or predicted for ``device`` in ``low_s`` to ``high_s``.
        layers: seconds of each layer.
        rows: possible results of the method, from the least change to the most; empty if unknown for the device.
        goal: budget in seconds or bytes; None: it is a loss of accuracy, which is not predicted here.
        meets: the least change that meets the budget, also between the rows; None if unknown.
        int8: what the first of ``forms`` says, in words; empty if none was timed.
        forms: the whole network in other forms of weights, those that meet the budget first.
    """

    model: str
    method: str
    target: str
    budget: str
    threads: int
    latency_s: float
    varied: str
    rows: tuple[PredictedRow, ...]
    layers: Mapping[str, float]
    goal: float | None
    meets: PredictedRow | None
    kept: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    device: PublishedDevice | None = None
    low_s: float | None = None
    high_s: float | None = None
    int8: str = ""
    forms: tuple[PredictedForm, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {"version": VERSION, **asdict(self)}
