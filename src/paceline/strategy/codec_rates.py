"""Rates of codecs on one core of a CPU, each with its source. GPUs are bound by their memory."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.hardware.device import Fact

MEASURED = "median of 15 calls on 100 MB, one core of an AMD EPYC with AVX-512; benchmarks/results/codec_speed.csv"
ASSUMED = "assumption, not measured"


@dataclass(frozen=True, slots=True)
class CodecRate:
    """Bytes/s of fp32 that one core encodes, and that it decodes and adds."""

    encode: Fact
    decode: Fact


def cpu_rate(encode: float, decode: float, source: str = MEASURED, date: str = "2026-11-21") -> CodecRate:
    """Return a rate from GB/s. After a new measurement, change it where the compression is declared."""
    return CodecRate(Fact(encode * 1e9, source, date), Fact(decode * 1e9, source, date))
