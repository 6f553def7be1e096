"""How fast a codec runs on one core of a CPU: one table, each number with its source. GPUs are bound by their memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.hardware.device import Fact

ASSUMED = "assumption, not measured yet"


@dataclass(frozen=True, slots=True)
class CodecRate:
    """Bytes/s of fp32 that one core encodes, and that it decodes."""

    encode: Fact
    decode: Fact


def _rate(encode: float, decode: float, source: str = ASSUMED, date: str = "2026-11-21") -> CodecRate:
    """From GB/s."""
    return CodecRate(Fact(encode * 1e9, source, date), Fact(decode * 1e9, source, date))


CPU_RATES: Mapping[str, CodecRate] = {
    "dense": _rate(8, 8),
    "bf16": _rate(8, 8),
    "terngrad": _rate(8, 8),
    "inceptionn": _rate(3, 3),
    "inceptionn-scaled": _rate(3, 3),
    "int8": _rate(5, 5),
    "int4": _rate(5, 5),
    "sign": _rate(6, 6),
    "topk": _rate(2, 2),
    "powersgd": _rate(2, 2),
}
"""By compression. Replace a row by ``_rate(encode, decode, "how it was measured", date)`` when it was."""
