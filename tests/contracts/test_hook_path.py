"""The thread of the backward pass never waits for the device: no function on a hook's path reads a value on the host.

The path is followed through the sources by the names of the called methods, so it holds more functions than run. Tasks that are
given to ``submit`` run on the exchange's thread, where a wait stops nothing else.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import paceline

TRAINING = Path(paceline.__file__).parent / "training"
READ = (
    *(TRAINING / "attach").glob("*.py"),
    *(TRAINING / "attach" / "hooks").glob("*.py"),
    *(TRAINING / "attach" / "shards").glob("*.py"),
    TRAINING / "device_stream.py",
    TRAINING / "exchanges" / "wires" / "meter.py",
)
ROOTS = {
    "hooks/ddp.py": ["Hook.submit", "paceline_hook"],
    "hooks/momentum.py": ["MomentumHook.submit"],
    "hooks/powersgd.py": ["PowerSGD.submit"],
    "hooks/sharded.py": ["ShardedHook.reduce", "UnitReduceScatter.__call__", "UnitReduceScatter.allocate"],
}
"""Functions that DDP and FSDP2 call during a backward pass, by file of ``attach``."""
RECEIVERS = {
    "_work": "Exchanges",
    "_starts": "Background",
    "_groups": "Groups",
    "_queue": "ExchangeQueue",
    "stream": "DeviceStream",
    "meter": "Meter",
    "noise": "NoiseMeter",
    "_left_out": "LeftOut",
    "_usage": "Usage",
    "_hook": "ShardedHook",
    "state": "Hook",
    "unit": "Unit",
    "engine": "Cuda",
    "reducer": "UnitReducer",
}
"""Class of what a method is called on, by the last name of that."""
HOOKS = {"HookBase", "Hook", "MomentumHook", "PowerSGD", "ShardedHook"}
OTHERS = {
    "_tasks",
    "_model",
    "replicate_group",
    "_shadowed",
    "_queued",
    "_waiting",
    "_handed",
    "_held",
    "_parts",
    "_place",
    "_told",
    "_used",
    "_reducers",
}
"""Objects of torch and Python, whose methods are not followed."""
WAITS = {"item", "tolist", "cpu", "numpy", "synchronize", "get_scale", "all_gather_object", "equal", "nonzero"}
"""Calls that wait for a device, or exchange objects."""
ON_THE_THREAD = {"submit"}
"""Calls whose arguments run on another thread."""


class Function(NamedTuple):
    """Function of the sources."""

    name: str
    file: Path
    node: ast.FunctionDef


@functools.cache
def functions() -> dict[str, list[Function]]:
    """Functions and methods by their last name."""
    found: dict[str, list[Function]] = {}
    for path in READ:
        for scope in [tree := ast.parse(path.read_text()), *(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef))]:
            prefix = f"{scope.name}." if isinstance(scope, ast.ClassDef) else ""
            for node in scope.body:
                if isinstance(node, ast.FunctionDef):
                    found.setdefault(node.name, []).append(Function(prefix + node.name, path, node))
    return found


def calls(node: ast.AST) -> Iterator[ast.Call]:
    """Calls that happen when a function runs, without those of functions that it only makes or gives to a thread."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.Call):
            yield child
            if called(child) in ON_THE_THREAD:
                continue
        yield from calls(child)


def called(call: ast.Call) -> str:
    """Name of a called function or method."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""


def targets(call: ast.Call, caller: Function, known: dict[str, list[Function]]) -> list[Function]:
    """Functions that a call may run, by the class of what it is called on."""
    found = known.get(called(call), [])
    if isinstance(call.func, ast.Name):
        return [f for f in found if "." not in f.name or f.name.startswith(f"{call.func.id}.")]
    assert isinstance(call.func, ast.Attribute)
    on = call.func.value
    last = on.attr if isinstance(on, ast.Attribute) else on.id if isinstance(on, ast.Name) else ""
    if last == "self":
        own = caller.name.split(".")[0]
        return [f for f in found if f.name.split(".")[0] in (HOOKS if own in HOOKS else {own})]
    is_own = isinstance(on, ast.Attribute) and isinstance(on.value, ast.Name) and on.value.id == "self"
    assert not is_own or last in RECEIVERS or last in OTHERS, f"{caller.name} calls a method of {last}: name its class"
    return [f for f in found if f.name.split(".")[0] == RECEIVERS.get(last)]


def path() -> dict[str, Function]:
    """Functions that may run on the thread of the backward pass."""
    known = functions()
    every = [f for same in known.values() for f in same]
    roots = {(TRAINING / "attach" / file, name) for file, names in ROOTS.items() for name in names}
    wanted = [f for f in every if (f.file, f.name) in roots]
    assert len(wanted) == len(roots)
    seen: dict[str, Function] = {}
    while wanted:
        function = wanted.pop()
        if (key := f"{function.file.name}: {function.name}") in seen:
            continue
        seen[key] = function
        for call in calls(function.node):
            wanted += targets(call, function, known)
    return seen


def waits(function: Function) -> list[str]:
    """Calls of a function that wait for a device."""
    return [called(call) for call in calls(function.node) if called(call) in WAITS]


def test_no_function_on_the_path_of_a_hook_waits_for_the_device() -> None:
    followed = path()
    expected = {"exchange_thread.py: Exchanges.receive", "device_stream.py: DeviceStream.hand_over", "reducer.py: Usage.take"}
    assert expected <= followed.keys()
    assert {name: found for name, function in followed.items() if (found := waits(function))} == {}


def test_every_hook_takes_over_its_buffer_before_anything_else() -> None:
    """So a graph that is being captured is refused before work is queued."""
    for name, roots in ROOTS.items():
        for root in roots:
            named = functions()[root.split(".")[-1]]
            function = next(f for f in named if f.name == root and f.file == TRAINING / "attach" / name)
            if root in ("Hook.submit", "MomentumHook.submit", "PowerSGD.submit", "ShardedHook.reduce"):
                first = next(iter(calls(function.node)))
                assert called(first) in ("_begin_step", "receive"), root
    (begin,) = [f for f in functions()["_begin_step"] if f.name == "HookBase._begin_step"]
    assert called(next(iter(calls(begin.node)))) == "receive"


def test_the_lint_sees_a_wait() -> None:
    text = "def f(self, x):\n    self._work.submit(lambda: x.item())\n    g = lambda: x.cpu()\n    return bool(x.item())"
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert waits(Function("f", Path(), function)) == ["item"]
