"""Measurements on the machine that will run the job, which replace the estimates of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """A cost that is linear in a size: ``fixed + per_unit * n`` seconds."""

    fixed_s: float
    per_unit_s: float

    def __call__(self, n: float) -> float:
        """Return seconds for ``n`` units."""
        return self.fixed_s + self.per_unit_s * n


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Short measurements with all ranks of a node at work, so that the numbers include contention among them.

    Attributes:
        forward_s, backward_s, optimizer_s: seconds of a step at ``micro_batch_size`` on one rank, without any exchange.
        allreduce, direct: seconds of an all-reduce, and of any other collective, for one chunk, as a function of the bytes
            that the busiest rank sends (``Phase.sent``).
        encode, reduce, decode: seconds of the codec for one chunk, as a function of its elements (encode, decode) or of
            the elements that it decodes and adds (``CodecWork.reduce``).
        ratio: fp32 bytes / encoded bytes of real gradients if the values determine it; 0 if it was not measured.
        overlap: whether exchange and backward pass run on different resources; false if both need the same cores.
        spread: relative half-range of the repetitions, 0.1 for +-10 %.
        source: description of the measurement.
    """

    workload: str
    micro_batch_size: int
    world_size: int
    compression: str
    forward_s: float
    backward_s: float
    optimizer_s: float
    allreduce: Line
    direct: Line
    encode: Line
    reduce: Line
    decode: Line
    overlap: bool
    spread: float
    source: str
    ratio: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """Read a dict of ``to_json``."""
        lines = ("allreduce", "direct", "encode", "reduce", "decode")
        values: dict[str, Any] = {k: Line(**v) if k in lines else v for k, v in data.items()}
        return cls(**values)
