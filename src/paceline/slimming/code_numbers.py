"""Widths that a module's code states: literals such as ``view(-1, 16 * 5 * 5)``, and arguments such as ``C // heads``.

A smaller form of such a module has the same code with other numbers at these places. Its methods are parsed again from their
source and compiled with the numbers; the class stays as it is.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any

from torch import nn

from paceline.errors import UserError

AT = "@"
"""Separates a method's name from a place in its source: ``forward@3:15-18``, line and columns in the method."""
SHAPED = ("view", "reshape", "split", "unflatten", "expand", "zeros", "new_zeros", "narrow", "chunk", "repeat")
"""Functions whose arguments are sizes."""
NOTE = "__paceline_note__"


def is_code(attribute: str) -> bool:
    """Return whether an attribute of ``WidthNumber`` is a place in code."""
    return AT in attribute


@contextmanager
def recorded(model: nn.Module) -> Iterator[dict[str, dict[str, int]]]:
    """Record the whole numbers above 1 that the methods of a network's modules state, in the runs of the block.

    Yields:
        By module and place: numbers that the code names, and arguments of ``SHAPED`` that had one value.
    """
    seen: dict[str, dict[str, set[int]]] = {}
    notes: list[tuple[nn.Module, str]] = []
    found: dict[str, dict[str, int]] = {}
    try:
        for path, module in model.named_modules():
            for name, function in _methods(module).items():
                places = _sizes_in(name, function)
                if places and name not in vars(module):
                    own = seen.setdefault(path, {})
                    setattr(module, name, StatedMethod(module, name, dict.fromkeys(places, 0), own))
                    notes.append((module, name))
        yield found
        for path, own in seen.items():
            every = {place: values.pop() for place, values in own.items() if len(values) == 1}
            found[path] = {place: value for place, value in every.items() if value > 1}
    finally:
        for module, name in notes:
            vars(module).pop(name)


def is_quotient(module: nn.Module, place: str) -> bool:
    """Return whether a place holds a quotient, such as the width of a head: ``width // heads``."""
    name = place.partition(AT)[0]
    nodes = ast.walk(_tree(_methods(module)[name]))
    quotients = (each for each in nodes if isinstance(each, ast.BinOp) and isinstance(each.op, ast.FloorDiv))
    return any(_place(name, each) == place for each in quotients)


@lru_cache(maxsize=256)
def _sizes_in(name: str, function: FunctionType) -> tuple[str, ...]:
    """Return the places of numbers, and of arguments of ``SHAPED``."""
    found: list[Any] = []
    for node in ast.walk(_tree(function)):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 1:
            found.append(node)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in SHAPED:
            given = (each.elts if isinstance(each, ast.List | ast.Tuple) else [each] for each in node.args)
            found += [each for some in given for each in some if isinstance(each, ast.Name | ast.Attribute | ast.BinOp)]
    return tuple(dict.fromkeys(_place(name, each) for each in found if each.lineno == each.end_lineno))


def state(module: nn.Module, numbers: Mapping[str, int]) -> None:
    """Let the code of a module have other numbers at these places, next to those that it has already.

    Raises:
        UserError: the code has no such places, since it was changed.
    """
    by_method: dict[str, dict[str, int]] = {}
    for place, value in numbers.items():
        by_method.setdefault(place.partition(AT)[0], {})[place] = value
    methods = _methods(module)
    for method, places in by_method.items():
        if not {*places} <= {*(_sizes_in(method, methods[method]) if method in methods else ())}:
            what = f"the code of {type(module).__name__}.{method} is not the one that the plan is of"
            raise UserError(what, "take the code that was slimmed, or slim this one")
        before = vars(module).get(method)
        stated = before.numbers if isinstance(before, StatedMethod) else {}
        setattr(module, method, StatedMethod(module, method, {**stated, **places}))


class StatedMethod:
    """A method of one module with other numbers in its code. It is saved by these numbers.

    Args:
        numbers: the new number by place. ``seen``: instead of new numbers, the values there are added to these sets.
    """

    def __init__(
        self, module: nn.Module, name: str, numbers: Mapping[str, int], seen: dict[str, set[int]] | None = None
    ) -> None:
        self.module, self.name, self.numbers = module, name, dict(numbers)
        self._prepare(seen)

    def _prepare(self, seen: dict[str, set[int]] | None = None) -> None:
        self._function = _compiled(_methods(self.module)[self.name], self.name, self.numbers, seen)
        self.__signature__ = inspect.signature(self._function.__get__(self.module))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method."""
        return self._function(self.module, *args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "name": self.name, "numbers": self.numbers}

    def __setstate__(self, given: dict[str, Any]) -> None:
        self.__dict__.update(given)
        self._prepare()


def _methods(module: nn.Module) -> dict[str, FunctionType]:
    """Return the methods of a module whose source is known, without decorators or private names."""
    kind: Any = type(module)
    return dict(_methods_of(kind))


@lru_cache(maxsize=256)
def _methods_of(kind: type) -> tuple[tuple[str, FunctionType], ...]:
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] != "torch" and base is not object:
            for name, value in vars(base).items():
                found.setdefault(name, value)
    plain = (
        (name, value)
        for name, value in found.items()
        if isinstance(value, FunctionType) and not name.startswith("__") and _is_plain(value)
    )
    return tuple(plain)


def _is_plain(function: FunctionType) -> bool:
    try:
        node = _tree(function)
    except (OSError, TypeError, SyntaxError, IndexError):
        return False
    private = any(
        (name := getattr(each, "attr", getattr(each, "id", ""))).startswith("__") and not name.endswith("__")
        for each in ast.walk(node)
    )
    is_own = isinstance(node, ast.FunctionDef) and not node.decorator_list and not hasattr(function, "__wrapped__")
    return is_own and node.name == function.__code__.co_name and not private


@lru_cache(maxsize=256)
def _source(function: FunctionType) -> str:
    return textwrap.dedent(inspect.getsource(function))


def _tree(function: FunctionType) -> ast.FunctionDef:
    (node,) = ast.parse(_source(function)).body
    return node  # type: ignore[return-value]


def _place(method: str, node: ast.expr) -> str:
    return f"{method}{AT}{node.lineno}:{node.col_offset}-{node.end_col_offset}"


class _Renumbered(ast.NodeTransformer):
    """Puts numbers in places, or notes around them."""

    def __init__(self, method: str, numbers: Mapping[str, int], notes: bool) -> None:
        self._method, self._numbers, self._notes = method, numbers, notes

    def visit(self, node: ast.AST) -> Any:
        place = _place(self._method, node) if isinstance(node, ast.expr) else ""
        if place not in self._numbers:
            return self.generic_visit(node)
        if not self._notes:
            return ast.Constant(self._numbers[place])
        inner: Any = self.generic_visit(node)
        return ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(place), inner], [])


def _compiled(
    function: FunctionType, name: str, numbers: Mapping[str, int], seen: dict[str, set[int]] | None = None
) -> FunctionType:
    """Return a method's function with other numbers, and the same globals, defaults and closure."""
    tree = _Renumbered(name, numbers, seen is not None).visit(_tree(function))
    tree.returns = None
    for argument in ast.walk(tree.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    tree.args.defaults = [ast.Constant(None) for _ in tree.args.defaults]
    tree.args.kw_defaults = [each and ast.Constant(None) for each in tree.args.kw_defaults]
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[NOTE] = CellType(_noting(seen))
    arguments = ast.arguments([], [ast.arg(each) for each in cells], None, [], [], None, [])
    outer = ast.parse("def outer(): pass").body[0]
    outer.args, outer.body = arguments, [tree]  # type: ignore[attr-defined]
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    module = ast.fix_missing_locations(ast.Module([outer], []))
    code = _inner(compile(module, function.__code__.co_filename, "exec"), "outer", function.__name__)
    closure = tuple(cells[each] for each in code.co_freevars)
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _noting(seen: dict[str, set[int]] | None) -> Callable[[str, Any], Any]:
    def note(place: str, value: Any) -> Any:
        if type(value) is int and seen is not None:
            seen.setdefault(place, set()).add(value)
        return value

    return note


def _inner(code: CodeType, *names: str) -> CodeType:
    for name in names:
        code = next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)
    return code
