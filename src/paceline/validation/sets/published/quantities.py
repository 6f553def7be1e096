"""Seconds of a step and bytes of memory from the measured quantity of a row, whatever its unit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_NUMBER = re.compile(r"\s*([0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*(\S*)", re.IGNORECASE)
_TIME: Mapping[str, float] = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "seconds": 1.0,
    "min": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
}
_BYTES: Mapping[str, float] = {"b": 1.0, "bytes": 1.0, "mb": 1e6, "mib": 2.0**20, "gb": 1e9, "gib": 2.0**30, "g": 2.0**30}
_MEMORY = re.compile(r"memory|alloc|reserved|gpu_ram|(?:^|_)mem(?:_|$)|vram|hbm", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Measured:
    """Value of a row in SI units and its kind.

    Attributes:
        kind: ``step`` (seconds of an optimizer step), ``micro_step`` (of a micro batch), ``samples`` and ``tokens``
            (a second, of all devices), ``flops`` (a second, of one device), ``utilisation`` (share of a device's peak),
            ``memory`` (bytes of a device).
    """

    kind: str
    value: float


def is_memory(metric: str) -> bool:
    """Return whether a metric is of a device's memory."""
    return _MEMORY.search(metric) is not None


def measured(metric: str, text: str, devices: int) -> Measured | None:
    """Return the value of a row; None where it has none, such as ``OOM``, or where the metric is unknown.

    Args:
        metric: name such as ``iteration_time_ms``, ``tokens_per_s_per_device``, ``minutes_per_1000_iterations``.
        text: the value, maybe with its unit.
    """
    found = _NUMBER.match(text)
    value = float(found[1].replace(",", "")) if found else 0.0
    unit = found[2].casefold().rstrip(".") if found else ""
    if not 0 < value < math.inf:
        return None
    name = metric.casefold()
    if is_memory(name):
        own = next((part for part in reversed(name.split("_")) if part in _BYTES and len(part) > 1), "")
        return Measured("memory", value * _BYTES.get(unit or own, 2.0**30))
    name = re.sub(r"[\s/]+", "_", name.replace("/", "_per_")).replace("__", "_")
    each = devices if re.search(r"per_(device|gpu|chip|accelerator|card)", name) else 1
    if re.search(r"(^|_)(mfu|hfu)(_|$)", name):
        return Measured("utilisation", value / 100 if value > 1 or "%" in text or "percent" in name else value)
    if "flop" in name:
        scale = 1e15 if "pflop" in name else 1e12 if "tflop" in name else 1.0
        return Measured("flops", value * scale / (devices if each == 1 and "total" in name else 1))
    if matched := re.search(r"(?:(\w+?)_)?per_(\d+)_iterations", name):
        return Measured("micro_step", value * _TIME.get(matched[1] or "s", 1.0) / int(matched[2]))
    if matched := re.search(rf"({_COUNTED})s?_per_(?:(?:device|gpu|chip|card)_per_)?s(?:ec(?:ond)?)?(?:_|$)", name):
        return Measured(_KINDS[matched[1]], value * each)
    if re.search(r"step_?time|iter(?:ation)?_?time|(?:time|s|sec|seconds)_per_(step|iter)|_per_it(?:er\w*)?$|latency", name):
        own = next((part for part in reversed(name.split("_")) if part in _TIME), "s")
        return Measured("step", value * _TIME.get(unit, _TIME[own]))
    if re.search(r"(^|_)(steps?|iter(?:ation)?s?|it)_per_s(ec\w*)?$", name):
        return Measured("step", 1 / value)
    return None


_KINDS: Mapping[str, str] = {
    "token": "tokens",
    **dict.fromkeys(("sample", "image", "img", "sequence", "seq", "example", "utterance", "item"), "samples"),
}
_COUNTED = "|".join(_KINDS)
"""Units of a rate, in names such as ``tokens_per_s`` and ``img/sec``."""
