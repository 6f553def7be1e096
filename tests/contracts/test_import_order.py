"""The order of packages: each imports only what is listed above it, nowhere a cycle, and no file too large to read."""

from __future__ import annotations

import ast
import functools
import statistics
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

import paceline
from source_statements import statements

SRC = Path(paceline.__file__).parent
ORDER = (
    "_native",
    "array_types",
    "names",
    "errors",
    "exit_codes",
    "csv_rows",
    "toml_file",
    "units",
    "tabular",
    "lab",
    "hardware",
    "workload",
    "strategy",
    "questions",
    "record",
    "chrome_trace",
    "memory_timeline",
    "memory_snapshot",
    "trust_history",
    "slim_record",
    "language_record",
    "rundir",
    "calibration",
    "prediction",
    "codecs",
    "nic",
    "models",
    "slimming",
    "training",
    "edge",
    "planning",
    "verbs",
    "scheduling",
    "market",
    "integrations",
    "validation",
    "reporting",
    "serve",
    "cli",
    "__init__",
    "__main__",
)
ENTRY_POINTS = frozenset({"paceline.__main__", "paceline.training.__main__"})
"""What ``python -m`` runs: each starts the command line, so it stands below everything, and nothing imports it."""
TRAINING = ("device_stream", "exchanges", "attach", "optimizers", "runs", "__main__")
"""Rooms of ``training``, in order: who attaches an exchange to a script loads nothing of the trainer."""
PREDICTION = (
    "passes",
    "exchange",
    "step",
    "mesh",
    "tasks",
    "memory",
    "learning",
    "answer",
    "layouts",
    "predictor",
    "correction",
    "bottleneck",
    "transports",
    "asynchronous",
)
"""Rooms of ``prediction``, in order: a strategy goes down from the predictor to the passes, and only results come back."""
FORBIDDEN = {
    "models": set(ORDER) - {"errors", "workload", "models"},
    "reporting": {"training", "models", "codecs", "prediction"},
}
"""Beyond the order: networks know only the layer tables that are made of them; a report is drawn from records alone."""
NAMES = {
    ".".join(path.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for pattern in ("*.py", "*.pyi")
    for path in SRC.rglob(pattern)
}


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """Modules of Paceline that a file imports anywhere, as dotted names."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in statements(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "paceline")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            if (node.module or "").partition(".")[0] == "paceline":
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (name if name in NAMES else str(node.module) for name in names)


def package(module: str) -> str:
    """``paceline.training.attach.hooks.ddp`` is of ``training``; the package's own file is ``__init__``."""
    return "__main__" if module in ENTRY_POINTS else [*module.split("."), "__init__"][1]


def test_the_list_is_complete() -> None:
    assert {package(name) for name in NAMES} == set(ORDER)


def against_the_order(name: str, targets: Iterable[str]) -> list[str]:
    """What a module imports and may not."""
    own = package(name)
    return [
        f"{name} imports {target}"
        for target in targets
        if (own, target) != ("cli", "paceline")  # its version
        and (
            (package(target) != own and ORDER.index(package(target)) >= ORDER.index(own))
            or package(target) in FORBIDDEN.get(own, ())
        )
    ]


def test_a_package_imports_only_what_is_above_it() -> None:
    assert [line for name, path in NAMES.items() for line in against_the_order(name, imports(path))] == []


def test_an_import_against_the_order_is_seen() -> None:
    plan = "paceline.planning.search.plan"
    above, below, forbidden = "paceline.units", "paceline.cli.parser", "paceline.training.runs.train"
    assert against_the_order(plan, [above, below]) == [f"{plan} imports {below}"]
    assert against_the_order("paceline.reporting.html", [above, forbidden]) == [f"paceline.reporting.html imports {forbidden}"]


@pytest.mark.parametrize(("owner", "order"), [("training", TRAINING), ("prediction", PREDICTION)])
def test_a_room_imports_only_what_is_above_it(owner: str, order: tuple[str, ...]) -> None:
    """``exchanges`` knows no hooks, ``attach`` no runs; the passes of a device know no exchange."""

    def room(name: str) -> int | None:
        parts = name.removeprefix(f"paceline.{owner}.").split(".")
        return order.index(parts[0]) if name.startswith(f"paceline.{owner}.") else None

    rooms = {name: place for name in NAMES if (place := room(name)) is not None}
    assert set(rooms.values()) == set(range(len(order)))
    against = [f"{name} imports {t}" for name, own in rooms.items() for t in imports(NAMES[name]) if (room(t) or 0) > own]
    assert against == []


def test_no_module_imports_itself_by_a_detour() -> None:
    """Every import counts, inside functions and under TYPE_CHECKING too."""
    assert cycle({name: set(imports(path)) for name, path in NAMES.items()}) == []


def cycle(edges: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Modules that import one another in a circle, the first one again at the end; empty where there are none."""
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done or name not in edges:
            return []
        done.add(name)
        return next(filter(None, (visit(target, (*trail, name)) for target in sorted(edges[name] - {name}))), [])

    return next(filter(None, (visit(name, ()) for name in sorted(edges))), [])


def test_a_cycle_is_seen() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b", "a"}, "d": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle({"a": {"b", "c"}, "b": {"c", "outside"}, "c": set()}) == []


def test_files_have_a_size_to_read() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in NAMES.items()}
    assert {name: count for name, count in lines.items() if count > 600} == {}
    assert 60 <= statistics.median(lines.values()) <= 300
