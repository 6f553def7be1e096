"""Quantities of Kubernetes, such as ``4``, ``3920m`` or ``16Gi``, as numbers."""

from __future__ import annotations

import re

_UNITS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {f"{unit}i": 1024.0 ** (power + 1) for power, unit in enumerate("KMGTPE")}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))((?:[eE][+-]?\d+)|[numkMGTPE]?i?|Ki)")


def quantity(text: str | int | float) -> float:
    """Return the number of a quantity. Raises ValueError for any other text."""
    said = _QUANTITY.fullmatch(str(text).strip())
    if said is None:
        raise ValueError(f"{text!r} is not a quantity of Kubernetes")
    number, unit = said.groups()
    if unit[:1] in ("e", "E") and len(unit) > 1 and unit != "Ei":
        return float(number + unit)
    scale = {**_UNITS, **_BINARY}.get(unit)
    if scale is None:
        raise ValueError(f"{text!r} is not a quantity of Kubernetes")
    return float(number) * scale
