"""Budget of a slimmed network: a latency, a speed-up, a size, or a loss of accuracy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from paceline.errors import UserError, unknown
from paceline.units import format_bytes, format_seconds, parse_bytes, parse_seconds

Kind = Literal["latency", "speedup", "size", "accuracy"]
Phase = Literal["", "decode", "prefill"]
LEGAL = "latency=5ms, speedup=3x, size=4MB or accuracy=-1pt, for decoders decode=2x, decode=5ms, prefill=2x or prefill=50ms"
PHASES: tuple[Phase, ...] = ("decode", "prefill")
"""Runs of a decoder that a budget may limit: one token with a cache, or a prompt."""
_SPEEDUP = re.compile(r"([0-9]*\.?[0-9]+)\s*[x×]?")
_POINTS = re.compile(r"-?([0-9]*\.?[0-9]+)\s*(?:pts?|points?|%)?")


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget of one of four kinds.

    Attributes:
        value: seconds, a factor, bytes, or percentage points that may be lost.
        phase: the run of a decoder that a latency or a speed-up is of; empty for other networks.
    """

    kind: Kind
    value: float
    phase: Phase = ""

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse one of ``LEGAL``. Raises UserError for anything else."""
        kind, sign, value = (part.strip() for part in text.partition("="))
        if not sign:
            raise UserError(f"budget {text!r}", f"write it as {LEGAL}")
        for phase in PHASES:
            if kind == phase:
                if _SPEEDUP.fullmatch(value):
                    return cls("speedup", _factor(kind, value), phase)
                return cls("latency", parse_seconds(value), phase)
        if kind == "latency":
            return cls("latency", parse_seconds(value))
        if kind == "size":
            return cls("size", parse_bytes(value))
        if kind == "speedup":
            return cls("speedup", _factor(kind, value))
        if kind == "accuracy":
            points = _number(_POINTS, value)
            if not 0 <= points < 100:
                raise UserError(f"a loss of accuracy of {value!r}", "give percentage points, such as accuracy=-1pt")
            return cls("accuracy", points)
        raise unknown("budget", kind, ("latency", "speedup", "size", "accuracy", *PHASES))

    def of(self, whole: float) -> float:
        """Return the budget in seconds or bytes.

        Args:
            whole: seconds or bytes of the whole network.

        Raises:
            UserError: the whole network meets it already, or the budget is a loss of accuracy.
        """
        if self.kind == "accuracy":
            raise UserError("a loss of accuracy says no latency", "give latency, speedup or size")
        amount = whole / self.value if self.kind == "speedup" else self.value
        if amount >= whole:
            show = format_bytes if self.kind == "size" else format_seconds
            raise UserError(f"the whole network takes {show(whole)}: it meets {self} already", "give a smaller budget")
        return amount

    def __str__(self) -> str:
        if self.kind == "latency":
            return f"{self.phase or 'latency'}={format_seconds(self.value).replace(' ', '')}"
        if self.kind == "size":
            return f"size={format_bytes(self.value).replace(' ', '')}"
        return f"{self.phase or 'speedup'}={self.value:g}x" if self.kind == "speedup" else f"accuracy=-{self.value:g}pt"


def _factor(kind: str, value: str) -> float:
    """Parse a speed-up. Raises UserError for one that is not above 1, with the inverse of a share of the time."""
    factor = _number(_SPEEDUP, value)
    if 0 < factor < 1:
        what = f"{kind}={value} would be slower: a speed-up is a factor above 1"
        raise UserError(what, f"for {factor:.0%} of the time give {kind}={1 / factor:.3g}x")
    if not 1 < factor < float("inf"):
        raise UserError(f"a speed-up of {value!r}", f"give a number above 1, such as {kind}=3x")
    return factor


def _number(pattern: re.Pattern[str], text: str) -> float:
    match = pattern.fullmatch(text)
    return float(match[1]) if match else float("nan")
