"""Quantities that a line of a log, an object of JSON or a column of a table states, and their numbers in text."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

QUANTITIES: Mapping[str, str] = {
    "step": "number of the step",
    "total": "number of the last step of its progress bar",
    "rank": "process that wrote it",
    "step_s": "seconds of a step",
    "steps_per_s": "steps a second",
    "tokens_per_s": "tokens a second of all devices",
    "device_tokens_per_s": "tokens a second of one device",
    "samples_per_s": "samples a second of all devices",
    "clock_s": "seconds since a fixed moment",
    "smoothed_step_s": "smoothed seconds of a step",
    "smoothed_steps_per_s": "smoothed steps a second",
    "tokens_total": "tokens since the start of the run",
    "global_batch": "samples of a step",
    "memory_bytes": "peak memory of a device in bytes",
    "device_tflops": "model TFLOP/s of one device",
}
"""Quantities of one record by name."""
MOST = 200_000
"""Most records that are kept. More change no median, and the memory of a long log stays small."""
NAN = math.nan
_GROUPS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL_COMMA = re.compile(r"\d+,\d+")
_STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_ELAPSED = re.compile(r"(?:(\d+) days?, )?(?:(\d+):)?(\d+):(\d\d)(?:\.(\d+))?")


def parse_number(text: str, grouped: bool = False) -> float:
    """Return the number in a text; NaN for any other content, and for an infinite number.

    Args:
        grouped: True if the writer separates thousands by commas. Otherwise a comma is a decimal sign.
    """
    text = text.strip()
    if "," in text:
        if (grouped or text.count(",") > 1 or "." in text) and _GROUPS.fullmatch(text):
            text = text.replace(",", "")
        elif _DECIMAL_COMMA.fullmatch(text):
            text = text.replace(",", ".")
    try:
        value = float(text)
    except ValueError:
        return NAN
    return value if math.isfinite(value) else NAN


def stamp_seconds(line: str) -> float:
    """Return the date and time in a line as seconds since 1970; NaN without one. A time without fraction is a whole number."""
    found = _STAMP.search(line)
    if not found:
        return NAN
    *parts, fraction = found.groups()
    try:
        moment = datetime(*map(int, parts), tzinfo=UTC)  # type: ignore[arg-type, misc]
    except ValueError:
        return NAN
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


def elapsed_seconds(text: str) -> float:
    """Return ``H:MM:SS``, ``MM:SS`` or ``1 day, H:MM:SS`` in seconds; NaN for any other text."""
    found = _ELAPSED.fullmatch(text.strip())
    if not found:
        return NAN
    days, hours, minutes, seconds, fraction = found.groups()
    whole = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole + (float(f"0.{fraction}") if fraction else 0.0)


@dataclass(frozen=True)
class StepRecords:
    """Quantities of the steps of a run: one column each, NaN where a record lacks it."""

    columns: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in QUANTITIES})

    def add(self, values: Mapping[str, float]) -> None:
        """Add one record, up to ``MOST``."""
        if len(self) < MOST:
            for name, column in self.columns.items():
                column.append(values.get(name, NAN))

    def __len__(self) -> int:
        return len(self.columns["step"])
