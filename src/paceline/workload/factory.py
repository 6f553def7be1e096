"""``module:function``, as a user writes it, to the function."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.errors import UserError, did_you_mean


def load_factory(text: str) -> Callable[[], Any]:
    """The function that ``text`` (``module:function``) names. The current directory is put on the import path.

    Raises:
        UserError: not of that form; no such module, or it fails to import; no such function in it.
    """
    module_name, colon, attribute = text.partition(":")
    if not (module_name and colon and attribute):
        raise UserError(f"{text!r} is not module:function", "write it as mypackage.networks:build")
    module = _import(module_name)
    function = getattr(module, attribute, None)
    if function is None:
        # What the module defines itself is likelier meant than what it imports.
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        near = did_you_mean(attribute, own)
        raise UserError(
            f"no function {attribute!r} in module {module_name}", f"did you mean {', '.join(near)}?" if near else ""
        )
    if not callable(function):
        raise UserError(f"{text} is a {type(function).__name__}, not a function that returns an nn.Module")
    result: Callable[[], Any] = function
    return result


def call_factory(text: str) -> Any:
    """What the function that ``text`` names returns.

    Raises:
        UserError: as ``load_factory``; or the function fails, with the exception's name.
    """
    function = load_factory(text)
    try:
        return function()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{text} fails: {describe_error(error)}") from error


def describe_error(error: BaseException) -> str:
    """``ZeroDivisionError: division by zero``: the name of an exception and the first line of what it says."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UserError(
                f"no module {error.name!r}",
                f"run where {error.name.split('.')[0]}.py is, or install it; looked in {here}",
            ) from error
        raise UserError(f"importing {name} fails: no module {error.name!r}", "install it") from error
    except (Exception, SystemExit) as error:  # the user's module may fail in any way as it is run, or be a script
        raise UserError(f"importing {name} fails: {describe_error(error)}") from error
