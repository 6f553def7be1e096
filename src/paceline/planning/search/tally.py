"""Strategies that a plan leaves out, counted by reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Excluded:
    """Strategies that were left out: their number, the reason, and one of them in words."""

    count: int
    reason: str
    example: str = ""

    def __str__(self) -> str:
        return f"{self.count}: {self.reason}{self.example and f' ({self.example})'}"


class Exclusions:
    """Counter of left-out strategies by reason, with the first example of each."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def add(self, reason: str, count: int = 1, example: str = "") -> None:
        """Add ``count`` for a reason."""
        if count:
            self.counts[reason] += count
            self.examples.setdefault(reason, example)

    def excluded(self) -> list[Excluded]:
        """Excluded strategies, the most frequent reason first."""
        return [Excluded(count, reason, self.examples[reason]) for reason, count in self.counts.most_common()]

    def decisive(self) -> list[Excluded]:
        """Excluded strategies, illegal ones first: these have an example, and others were left out by default."""
        return sorted(self.excluded(), key=lambda left: not left.example)
