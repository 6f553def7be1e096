"""Answers as rows, and as a table in a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.units import digits3, format_bytes, format_memory, format_seconds

Row = Mapping[str, Any]
"""One line of an answer: names with their units (``step_time_s``, ``memory_bytes``), plain values."""
_UNITS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("samples_per_s", " /s", digits3),
    ("memory_bytes", "", format_memory),
    ("wire_bytes_per_device", "", format_bytes),
    ("_s", "", format_seconds),
    ("usd", " $", digits3),
)
"""Endings of names, the unit behind the number, and how the number is written; the first that fits counts."""


class Tabular:
    """Answer that can be shown as rows."""

    def rows(self) -> Sequence[Row]:
        """Rows of equal form, the best or the only one first."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Rows as an HTML table with units, for notebooks."""
        rows = self.rows()
        head = "".join(f"<th>{html.escape(_title(name))}</th>" for name in rows[0]) if rows else ""
        lines = ["".join(f"<td>{html.escape(_text(name, value))}</td>" for name, value in row.items()) for row in rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        alarm = getattr(self, "headline", "")
        first = f"<p><strong>{html.escape(alarm)}</strong></p>" if alarm else ""
        return f"{first}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _title(name: str) -> str:
    """Return ``step time`` for ``step_time_s``, because the number has the unit."""
    for ending in ("_per_s", "_per_device", "_s"):
        name = name.removesuffix(ending)
    return name.replace("_", " ")


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return "unknown"
    for ending, unit, write in _UNITS:
        if name.endswith(ending):
            return f"{write(value)}{unit}"
    return f"{value:,}" if isinstance(value, int) else digits3(value)
