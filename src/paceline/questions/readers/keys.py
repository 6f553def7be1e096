"""Keys of other tools' files: which tool a file is of, and which of its keys do not matter here (``keys.toml``)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from importlib import resources
from typing import Any

from paceline.questions.asked import looked_up
from paceline.strategy.choices.synonyms import MEGATRON, folded


@dataclass(frozen=True, slots=True)
class ToolKeys:
    """Known keys of a tool.

    Attributes:
        title: kind of file, in a sentence.
        framework: name of the software, and ``priority`` among those of several files.
        markers: patterns of keys that tell the tool.
        ignored: pattern of keys that do not matter.
        defaults: what the tool does if its file does not say it.
    """

    title: str
    framework: str
    priority: int
    markers: tuple[re.Pattern[str], ...]
    ignored: re.Pattern[str]
    defaults: Mapping[str, Any]

    def ignores(self, path: Sequence[str]) -> bool:
        """Return whether a key does not matter, by its path or its last part."""
        return any(self.ignored.fullmatch(folded(name)) for name in (".".join(path), path[-1]))

    def marks(self, paths: Iterable[Sequence[str]]) -> int:
        """Return how many markers are among the paths of a file."""
        names = [folded(".".join(path)) for path in paths]
        return sum(any(marker.fullmatch(name) for name in names) for marker in self.markers)


@cache
def tool_keys() -> Mapping[str, ToolKeys]:
    """Return the keys of every tool."""
    table = tomllib.loads((resources.files(__package__) / "keys.toml").read_text(encoding="utf-8"))
    every = tuple(table["every"]["ignored"])
    return {
        tool: ToolKeys(
            title=data["title"],
            framework=data["framework"],
            priority=data["priority"],
            markers=tuple(re.compile(rf"(?:.*\.)?(?:{translate(name)})") for name in data["markers"]),
            ignored=_any_of((*every, *data["ignored"])),
            defaults=data.get("defaults", {}),
        )
        for tool, data in table.items()
        if tool != "every"
    }


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{translate(pattern)})" for pattern in patterns))


def tool_of(paths: Collection[Sequence[str]]) -> str:
    """Return the tool that a file's keys tell, by their markers and then by how many it knows; empty if none does."""
    scores = {
        tool: (keys.marks(paths), sum(looked_up(tool, path) is not None for path in paths))
        for tool, keys in tool_keys().items()
    }
    if any(len(path) > 1 for path in paths):
        del scores[MEGATRON]  # its arguments have no levels; NeMo has the same names in tables
    best = max(scores, key=lambda tool: scores[tool])
    return best if scores[best][0] else ""
