"""SVG figure with the width of the page: x positions are shares of the width, text sizes and heights are in pixels.

So text has the same size on every screen, nothing is cut off, and a figure is written in less than a millisecond. Colours are
classes of the page's style, so one picture serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

LINE = 18.0
"""Pixels from one line of text to the next."""
CHARACTER = 6.3
"""Pixels of a character, on average, in type of 12 pixels."""
NARROW, WIDE = 250.0, 600.0
"""Pixels of the axis on a phone of 390 pixels, and the least on a screen of 1,280: what text has to fit into."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Range of values along an axis, from ``low`` to ``high``; both above zero on a logarithmic axis."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value: 0 at ``low``, 1 at ``high``, clipped to both."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(max(value, self.low)) if self.log else value
        return min(1.0, max(0.0, (at - low) / (high - low))) if high > low else 0.5

    def ticks(self, most: int = 6) -> list[float]:
        """Return at most ``most`` round values within the scale: 1, 2, 5 times powers of ten."""
        if self.log and self.high >= 10 * self.low:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            for steps in ((1, 2, 5), (1, 3), (1,)):
                marks = [n * 10.0**e for e in range(first, last + 1) for n in steps]
                marks = [mark for mark in marks if self.low <= mark <= self.high]
                if len(marks) <= most:
                    return marks
            return marks[:: math.ceil(len(marks) / most)]
        rough = (self.high - self.low) / most
        if not rough > 0:
            return [self.low]
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(n * power for n in (1, 2, 5, 10, 20) if n * power >= rough * (1 - 1e-9))
        count = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(count, count + most + 1) if n * step <= self.high * (1 + 1e-9)]


def tick(value: float) -> str:
    """Format a round value at an axis: ``0.5``, ``2,000``."""
    return f"{value:,.6g}"


class Plot:
    """Shapes and texts of one figure. ``x`` is a share of the width from 0 to 1, ``y`` pixels from the top."""

    def __init__(self) -> None:
        self._shapes: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> None:
        """Draw a bar in the colours of ``kind``, at least a pixel wide."""
        size = f'width="{_share(width)}"' if width > 0.002 else 'width="1.5"'
        self._add(f'<rect class="{kind}" x="{_share(x)}" y="{y:g}" {size} height="{height:g}"/>', tip)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draw a straight line."""
        self._add(f'<line class="{kind}" x1="{_share(x1)}" y1="{y1:.1f}" x2="{_share(x2)}" y2="{y2:.1f}"/>')

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a line through all points."""
        for (x1, y1), (x2, y2) in pairwise(points):
            self.line(x1, y1, x2, y2, kind)

    def dot(self, x: float, y: float, kind: str, tip: str = "", radius: float = 4) -> None:
        """Draw a point."""
        self._add(f'<circle class="{kind}" cx="{_share(x)}" cy="{y:.1f}" r="{radius:g}"/>', tip)

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start", dx: float = 0) -> None:
        """Write text with its baseline at ``y``; ``dx`` moves it by pixels."""
        classes = f' class="{kind}"' if kind else ""
        moved = f' dx="{dx:g}"' if dx else ""
        placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._add(f'<text{classes} x="{_share(x)}" y="{y:g}"{moved}{placed}>{escape(text)}</text>')

    def fitting(self, x: float, y: float, room: float, text: str, anchor: str = "start", dx: float = 0) -> bool:
        """Write text if it fits into the share ``room`` of the width, at least on wide screens. Return whether it fits."""
        needed = CHARACTER * len(text) + abs(dx) + 4
        if needed > room * WIDE:
            return False
        self.text(x, y, text, "" if needed <= room * NARROW else "wide-only", anchor, dx)
        return True

    def x_axis(self, y: float, top: float, marks: Sequence[tuple[float, str]], label: str) -> float:
        """Draw vertical grid lines from ``top`` to ``y``, with texts and an axis title below. Returns the y below all."""
        for x, text in marks:
            self.line(x, top, x, y, "grid")
            self.text(x, y + LINE - 3, text, "axis", "middle")
        self.text(0, y + 2 * LINE, label, "axis")
        return y + 2 * LINE + 6

    def key(self, y: float, kind: str, text: str) -> None:
        """Draw a square of ``kind`` with its text, below ``y``."""
        self._add(f'<rect class="{kind}" x="0" y="{y + 3:g}" width="11" height="11"/>')
        self.text(0, y + 13, text, dx=18)

    def y_axis(self, marks: Sequence[tuple[float, str]]) -> None:
        """Draw horizontal grid lines with texts to their left."""
        for y, text in marks:
            self.line(0, y, 1, y, "grid")
            self.text(0, y + 4, text, "axis", "end", -8)

    def legend(self, y: float, items: Sequence[tuple[str, str]]) -> float:
        """Draw a short line of each ``kind`` with its text, one below the other. Returns the y below them."""
        for kind, text in items:
            self._add(f'<line class="{kind}" x1="0" y1="{y - 4:g}" x2="26" y2="{y - 4:g}"/>')
            self.text(0, y, text, "", dx=34)
            y += LINE
        return y

    def svg(self, height: float, label: str, kind: str = "") -> str:
        """Return the ``<svg>`` element; ``label`` is the text for screen readers, ``kind`` a class for its margins."""
        classes = f"plot {kind}".strip()
        head = f'<svg class="{classes}" role="img" aria-label="{escape(label)}" width="100%" height="{height:g}">'
        return f"{head}{''.join(self._shapes)}</svg>"

    def _add(self, shape: str, tip: str = "") -> None:
        self._shapes.append(f"<g><title>{escape(tip)}</title>{shape}</g>" if tip else shape)


def _share(value: float) -> str:
    return f"{100 * value:.2f}%"
