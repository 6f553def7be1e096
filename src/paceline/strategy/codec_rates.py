"""How fast a codec runs on one core of a CPU: one table, each number with its source. GPUs are bound by their memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.hardware.device import Fact

MEASURED = "median of 15 calls on 100 MB, one core of an AMD EPYC with AVX-512; benchmarks/results/codec_speed.csv"
ASSUMED = "assumption, not measured"


@dataclass(frozen=True, slots=True)
class CodecRate:
    """Bytes/s of fp32 that one core encodes, and that it decodes and adds."""

    encode: Fact
    decode: Fact


def _rate(encode: float, decode: float, source: str = MEASURED, date: str = "2026-11-21") -> CodecRate:
    """A rate from GB/s."""
    return CodecRate(Fact(encode * 1e9, source, date), Fact(decode * 1e9, source, date))


CPU_RATES: Mapping[str, CodecRate] = {
    "dense": _rate(8.6, 9.7),
    "bf16": _rate(13.9, 13.9),
    "terngrad": _rate(10.3, 20.7),
    "inceptionn": _rate(10.7, 7.4),
    "inceptionn-scaled": _rate(8.4, 6.9),
    "int8": _rate(10.6, 15.2),
    "int4": _rate(10.6, 17.3),
    "sign": _rate(24.4, 22.6),
    "topk": _rate(8.9, 16.1),
    "powersgd": _rate(2, 2, ASSUMED),
}
"""Rates by compression. After a new measurement, replace the row: ``_rate(encode, decode, "how it was measured", date)``."""
