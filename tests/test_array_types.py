"""An array type has one name, and a name of one has one definition."""

from __future__ import annotations

import re
from pathlib import Path

import paceline

ALIAS = re.compile(r"^([A-Z]\w*) = (NDArray\[.*\])$", re.MULTILINE)


def test_array_types_are_defined_once() -> None:
    sources = (path.read_text(encoding="utf-8") for path in Path(paceline.__file__).parent.rglob("*.py"))
    aliases = [alias for source in sources for alias in ALIAS.findall(source)]
    names, types = [name for name, _ in aliases], [kind for _, kind in aliases]
    assert "Array" in names
    assert sorted(names) == sorted(set(names)) and sorted(types) == sorted(set(types))
