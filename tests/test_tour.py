"""The tour names every package and sub-package, and each line of its walks is called by a line above it.

The walk of a strategy is traced: ``predict`` runs, and calls that receive the strategy are followed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import pytest

import paceline
from paceline.cli.command_line import main
from paceline.prediction.step.step_inputs import StepInputs
from paceline.strategy import Strategy

SRC = Path(paceline.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs/tour.md").read_text(encoding="utf-8")
WALKS = dict(re.findall(r"^\*\*(.+?)\*\*, .*:\n\n((?:\d+\. .*\n)+)", PAGE, re.MULTILINE))

STRATEGY = "The strategy of `paceline predict`"
ROOMS = 12
"""Most packages and sub-packages that a strategy passes."""
PREDICT = ["predict", "resnet-50", "--cluster", "2x8 A100", "--network", "25Gb/s", "--global-batch", "512", "--json"]
DIVIDED = [*PREDICT[:1], "gpt2", *PREDICT[2:], "--tensor", "2", "--pipeline", "2"]
CACHE = SRC / "workload/prepared.py"
"""Module whose decorators only pass calls on."""


class Call(NamedTuple):
    """One call of a function of the package: the callers and itself, their rooms, and whether it receives the strategy."""

    stack: tuple[str, ...]
    rooms: tuple[str, ...]
    follows: bool


def lines(walk: str) -> list[str]:
    """Dotted names of the functions of a walk."""
    return re.findall(r"^\d+\. `([\w.]+)` -> \S.*$", walk, re.MULTILINE)


def definition(dotted: str) -> ast.AST:
    """Definition of ``module.function`` or ``module.Class.method``; of overloads the last."""
    parts = dotted.split(".")
    for count in range(len(parts) - 1, 0, -1):
        path = SRC.joinpath(*parts[:count]).with_suffix(".py")
        if path.is_file():
            node: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
            for name in parts[count:]:
                node = [each for each in getattr(node, "body", []) if getattr(each, "name", None) == name][-1]
            return node
    raise LookupError(dotted)


def used(node: ast.AST) -> set[str]:
    """Names and attributes that a definition uses."""
    return {n.attr if isinstance(n, ast.Attribute) else n.id for n in ast.walk(node) if isinstance(n, ast.Attribute | ast.Name)}


def unlinked(names: list[str]) -> list[str]:
    """Functions that no function above them uses, by name or as a method of a class that it uses."""
    seen: set[str] = set()
    found = []
    for index, dotted in enumerate(names):
        *_, owner, name = dotted.split(".")
        if index and name not in seen and owner not in seen:
            found.append(dotted)
        seen |= used(definition(dotted))
    return found


@cache
def _place(code: CodeType) -> tuple[str, str] | None:
    """Dotted name and room of a function of the package; None for others."""
    path = Path(code.co_filename)
    if SRC not in path.parents or path == CACHE:
        return None
    module = path.relative_to(SRC).with_suffix("").parts
    return ".".join((*module, code.co_qualname.partition(".<locals>")[0])), ".".join(module[:-1])


def traced(command: list[str]) -> list[Call]:
    """Calls of a command from its own function on, in their order."""
    calls: list[Call] = []
    stack: list[tuple[str, str]] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or (place := _place(code)) is None or not (stack or code.co_name == "_predict"):
            return
        if event == "return":
            stack.pop()
            return
        stack.append(place)
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        follows = any(isinstance(frame.f_locals.get(name), Strategy | StepInputs) for name in given)
        names, rooms = zip(*stack, strict=True)
        calls.append(Call(names, passed(rooms), follows))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        assert main(command) == 0
    finally:
        sys.setprofile(before)
    return calls


def passed(rooms: Iterable[str]) -> tuple[str, ...]:
    """Rooms as they are entered, one after another."""
    return tuple(room for room, _ in groupby(rooms))


def astray(names: list[str], calls: list[Call]) -> list[str]:
    """Lines of a walk that no line above calls, that come too early, or that return to an earlier room."""
    first = {call.stack[-1]: number for number, call in reversed(list(enumerate(calls)))}
    found, rooms = [name for name in names if name not in first], list[str]()
    for number, name in enumerate(names):
        if name in found:
            continue
        call, above = calls[first[name]], [each for each in names[:number] if each not in found]
        returns = call.rooms[-1] in rooms[:-1]
        if (above and (first[above[-1]] > first[name] or call.stack[-2] not in above)) or returns:
            found.append(name)
        rooms = [*passed([*rooms, call.rooms[-1]])]
    return found


def test_there_are_four_walks_of_ten_lines() -> None:
    assert [len(lines(walk)) for walk in WALKS.values()] == [10] * 4
    assert PAGE.count(" -> ") >= 40


@pytest.mark.parametrize("title", WALKS)
def test_each_line_of_a_walk_is_called_by_one_above(title: str) -> None:
    assert unlinked(lines(WALKS[title])) == []


def test_predict_runs_as_its_walk_says() -> None:
    names, calls = lines(WALKS[STRATEGY]), traced(PREDICT)
    assert astray(names, calls) == []
    assert astray(["cli.commands.predict._predict", names[2]], calls) == [names[2]], "a caller is left out"
    assert astray([*names[:5], *names[6:4:-1]], calls) != [], "too early"
    assert astray([*names[:8], names[4]], calls) == [names[4]], "back in an earlier room"
    assert astray([*names, "cli.commands.plan.add"], calls) == ["cli.commands.plan.add"]


@pytest.mark.parametrize("command", [PREDICT, DIVIDED], ids=["whole", "divided"])
def test_a_strategy_passes_few_rooms_and_no_call_takes_it_back_to_one_above(command: list[str]) -> None:
    calls = [call for call in traced(command) if call.follows]
    assert [call for call in calls if len(set(call.rooms)) < len(call.rooms)] == []
    rooms = {room for call in calls for room in call.rooms}
    assert "prediction.answer" in rooms and len(rooms) <= ROOMS, sorted(rooms)


def test_a_walk_through_a_wall_is_seen() -> None:
    assert unlinked(["cli.commands.predict._predict", "cli.commands.plan.add"]) == ["cli.commands.plan.add"]
    with pytest.raises((IndexError, LookupError)):
        unlinked(["cli.commands.predict.nothing"])


def test_every_package_and_sub_package_is_named() -> None:
    packages = {path.parent.relative_to(SRC).parts for path in SRC.rglob("__init__.py")} - {()}
    rows = {match[1]: match[2] for match in re.finditer(r"^\| `(\w+)/` \| (.*?) \|", PAGE, re.MULTILINE)}
    assert rows.keys() == {parts[0] for parts in packages}
    assert [parts for parts in packages if len(parts) > 1 and f"`{parts[-1]}/`" not in rows[parts[0]]] == []
    for module in SRC.glob("[a-z]*.py"):
        assert f"`{module.name}`" in PAGE, module.name
