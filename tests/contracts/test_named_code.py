"""Names of code in pages and docstrings stand for something: ``planning.search.plan`` is a module, or a name in one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import paceline

SRC = Path(paceline.__file__).parent
ROOT = Path(__file__).parents[2]
MODULES = {".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path for path in SRC.rglob("*.py")}
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py" and "." not in name} - {"__init__"}
NAME = re.compile(r"`(?:paceline\.)?([a-z_]+(?:\.\w+)+)`")
OBJECTS = {"strategy.world_size", "workload.with_lora", "workload.frozen"}
"""Attributes of a variable that has the name of a package."""
FILES = (".csv", ".json", ".jsonl", ".md", ".toml", ".txt")


def unknown(text: str) -> Iterator[str]:
    """Dotted names that begin with a package and name neither a module nor something in one."""
    for name in NAME.findall(text):
        parts = name.split(".")
        if parts[0] not in PACKAGES or name in OBJECTS or name in MODULES or name.endswith(FILES):
            continue
        owners = (".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1))
        owner = next(owner for owner in owners if owner in MODULES)
        rest = parts[owner.count(".") + 1]
        if not re.search(rf"\b{rest}\b", MODULES[owner].read_text(encoding="utf-8")):
            yield name


def test_a_name_that_stands_for_nothing_is_seen() -> None:
    text = (
        "`planning.search.plan`, `paceline.planning.nothing`, `planning.search.plan.nobody`, `torch.nothing`, `workload.frozen`"
    )
    assert [*unknown(text)] == ["planning.nothing", "planning.search.plan.nobody"]


def test_names_of_code_stand_for_something() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found = {(path.name, name) for path in (*pages, *MODULES.values()) for name in unknown(path.read_text(encoding="utf-8"))}
    assert found == set()
