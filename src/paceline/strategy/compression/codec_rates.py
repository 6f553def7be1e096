"""Measured rates of codecs on one CPU core, each with its source. On GPUs memory traffic is the limit instead."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.hardware.device import Fact

MEASURED = "median of 15 calls on 100 MB, one core of an AMD EPYC with AVX-512; benchmarks/results/codec_speed.csv"
ASSUMED = "assumption, not measured"


@dataclass(frozen=True, slots=True)
class CodecRate:
    """Rates of one core in bytes/s of fp32: to encode, and to decode and add."""

    encode: Fact
    decode: Fact


def cpu_rate(encode: float, decode: float, source: str = MEASURED, date: str = "2026-11-21") -> CodecRate:
    """Return a rate given in GB/s. After a new measurement, change the compression's declaration."""
    return CodecRate(Fact(encode * 1e9, source, date), Fact(decode * 1e9, source, date))
