"""Look-up of objects named by ``module:function`` or ``file.py:Class``, with their arguments and inputs as text."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.errors import UserError
from paceline.names import did_you_mean

ARGS_EXAMPLE = "write them as in Python: hidden=512,layers=4,act=relu,sizes=[64, 128],name='a,b'"
INPUT_EXAMPLE = "write 3x224x224 for numbers, tokens:512 for tokens, several with commas, or by name: input_ids=tokens:512"
_PATH = re.compile(r"(?P<module>.*\.py|[^:]*):(?P<name>[^:]*)")  # a file of Windows has a colon behind its drive
_SIZES = re.compile(r"(tokens:)?([1-9][0-9]*(?:x[1-9][0-9]*)*)")


def load_factory(text: str, args: str = "") -> Callable[[], Any]:
    """Return the function or class that ``text`` (``module:function``, ``file.py:Class``) names, with its arguments.

    Adds the current directory, and that of a file, to the import path.

    Args:
        args: arguments by name as Python writes them: ``hidden=512,layers=4``.

    Raises:
        UserError: text of another form, a module that fails to import, an unknown function, or arguments that it does not take.
    """
    match = _PATH.fullmatch(text)
    if match is None or not (match["module"] and match["name"]):
        raise UserError(f"{text!r} is not module:function", "write it as mypackage.networks:build or networks.py:Net")
    module_name, attribute = match["module"], match["name"]
    module = user_module(module_name)
    function = getattr(module, attribute, None)
    if function is None:
        # The user more likely means a function that the module defines than one that it imports.
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        near = did_you_mean(attribute, own)
        raise UserError(
            f"no function {attribute!r} in module {module_name}", f"did you mean {', '.join(near)}?" if near else ""
        )
    if not callable(function):
        raise UserError(f"{text} is a {type(function).__name__}, not a function that returns an nn.Module")
    return _with_arguments(text, function, parse_arguments(args))


def unnamed_class(path: Path) -> UserError:
    """Return the error for a Python file without a named class, with its classes, preferably modules. No code is run."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = error.strerror or str(error) if isinstance(error, OSError) else describe_error(error)
        return UserError(f"cannot read {path}: {what}", "give the file and its class: networks.py:Net")
    classes = {node.name: [ast.unparse(base) for base in node.bases] for node in body if isinstance(node, ast.ClassDef)}
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    modules = [name for name, bases in classes.items() if any("Module" in base or base in classes for base in bases)]
    own = [f"{path}:{name}" for name in modules or [*classes, *functions]]
    if not own:
        return UserError(f"{path} defines no class and no function", "give a file with an nn.Module: networks.py:Net")
    return UserError(f"{path} names no class", f"write {' or '.join(own[:3])}{' ...' if len(own) > 3 else ''}")


def call_factory(text: str) -> Any:
    """Return the result of the function that ``text`` names.

    Raises:
        UserError: as ``load_factory``; or the function fails, with the name of the exception.
    """
    function = load_factory(text)
    try:
        return function()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{text} fails: {describe_error(error)}") from error


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse ``hidden=512,layers=4``: values are Python literals or unquoted words. Raises UserError for other text."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        return {str(pair.arg): _value(pair.value) for pair in call.keywords if pair.arg or _refused()}
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
        raise UserError(f"arguments {text!r}", ARGS_EXAMPLE) from None


def _refused() -> bool:
    raise ValueError  # **mapping


def _value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def _with_arguments(text: str, function: Callable[..., Any], given: Mapping[str, Any]) -> Callable[[], Any]:
    """Call ``function`` with the given arguments. Raises UserError for unknown or missing arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of C code
        signature = None
    if signature is not None:
        try:
            signature.bind(**given)
        except TypeError as error:
            takes = ", ".join(str(p) for p in signature.parameters.values()) or "nothing"
            fix = f"it takes ({takes}); give --args {next(iter(signature.parameters), 'name')}=..."
            raise UserError(f"{text}: {error}", fix if signature.parameters else "leave --args out") from None
    return (lambda: function(**given)) if given else function


def example_input(text: str) -> Any:
    """Return two samples of the input that ``text`` describes, on the meta device: ``3x224x224`` are fp32 numbers,
    ``tokens:512`` whole ones; several inputs are positional arguments, or are named. Raises UserError for anything else.
    """
    import torch

    def tensor(part: str) -> Any:
        match = _SIZES.fullmatch(part)
        if match is None:
            raise UserError(f"input {text!r}", INPUT_EXAMPLE)
        sizes = [2, *map(int, match[2].split("x"))]
        return torch.empty(sizes, dtype=torch.int64 if match[1] else torch.float32, device="meta")

    parts = [part.strip() for part in text.split(",")]
    named = [part.partition("=") for part in parts]
    if all(equals and name.isidentifier() for name, equals, _ in named):
        return {name: tensor(value.strip()) for name, _, value in named}
    return tuple(map(tensor, parts))


def describe_error(error: BaseException) -> str:
    """Return the name of an exception and the first line of its message: ``ZeroDivisionError: division by zero``."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def user_module(name: str) -> ModuleType:
    """Return a user's module by name or by the path of its file. Raises UserError if it cannot be imported."""
    return _import_file(Path(name).expanduser()) if name.endswith(".py") else _import(name)


def _import_file(path: Path) -> ModuleType:
    """Return the module of a file, under the file's name, so that another import in the process gives the same module."""
    if not path.is_file():
        raise UserError(f"no file {path}", "give the path of a Python file, or module:function")
    _search(path.resolve().parent)
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
        return known
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        if known is None:  # a file may have the name of a module that is needed, such as types.py
            sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    except BaseException as error:
        if known is None:
            sys.modules.pop(path.stem, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise UserError(f"importing {path} fails: {describe_error(error)}") from error
    return module


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    _search(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UserError(
                f"no module {error.name!r}",
                f"run where {error.name.split('.')[0]}.py is, or install it; looked in {here}",
            ) from error
        raise UserError(f"importing {name} fails: no module {error.name!r}", "install it") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything, or be a script
        raise UserError(f"importing {name} fails: {describe_error(error)}") from error
