"""From the text ``module:function`` to the function."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.errors import UserError
from paceline.names import did_you_mean


def load_factory(text: str) -> Callable[[], Any]:
    """The function that ``text`` (``module:function``) names. Adds the current directory to the import path.

    Raises:
        UserError: text of another form, an unknown module or one that fails to import, or an unknown function.
    """
    module_name, colon, attribute = text.partition(":")
    if not (module_name and colon and attribute):
        raise UserError(f"{text!r} is not module:function", "write it as mypackage.networks:build")
    module = _import(module_name)
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
    result: Callable[[], Any] = function
    return result


def call_factory(text: str) -> Any:
    """The result of the function that ``text`` names.

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


def describe_error(error: BaseException) -> str:
    """The name of an exception and the first line of its message: ``ZeroDivisionError: division by zero``."""
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
    except (Exception, SystemExit) as error:  # a user's module may raise anything, or be a script
        raise UserError(f"importing {name} fails: {describe_error(error)}") from error
