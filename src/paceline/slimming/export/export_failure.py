"""Location of the line of the user's code at which an exporter of PyTorch stopped."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from paceline.errors import shorten

TORCH = f"{Path(torch.__file__).parent}{os.sep}"
MODE = "__torch_function__"
"""Method of modes that run between a line of the user's and PyTorch."""
LIBRARIES = f"{os.sep}site-packages{os.sep}"


@dataclass(frozen=True)
class ExportFailure:
    """Error of an exporter, with its location.

    Attributes:
        paths: names of the running modules, from the innermost out; the last is the network's own empty name. Empty if the
            exporter stopped outside of the network's forward.
        network: its class. ``module``: the innermost by name and class; empty for the network itself.
        code: the user's line, and its place ``where``; both may be empty.
        words: PyTorch's message.
    """

    paths: tuple[str, ...]
    network: str
    module: str
    code: str
    where: str
    words: str

    @classmethod
    def of(cls, error: BaseException, model: nn.Module) -> ExportFailure:
        """Analyse the error that an exporter raised for a network."""
        known = {id(module.__dict__): path for path, module in model.named_modules()}  # exporters put proxies around modules
        for each in _causes(error):
            frames = list(traceback.walk_tb(each.__traceback__))
            inside = [known.get(_attributes(frame)) for frame, _ in frames]
            paths = tuple(dict.fromkeys(path for path in reversed(inside) if path is not None))
            if paths:
                begin = next(number for number, path in enumerate(inside) if path is not None)
                module = named(model, paths[0]) if paths[0] else ""
                return cls(paths, type(model).__name__, module, *_line(frames[begin:]), _words(each))
        return cls((), type(model).__name__, "", "", "", _words(error))

    @property
    def line(self) -> str:
        """The user's line and its place, or PyTorch's message if no line is known."""
        return f"`{self.code}` ({self.where})" if self.code else f"{self.words} ({self.where})" if self.where else self.words

    def refusal(self, what: str) -> str:
        """Format the error for a user: the network, the failed action, the module, the line and PyTorch's message."""
        parts = (f"{self.network} {what}", self.module, self.line, shorten(self.words) if self.code else "")
        return ": ".join(filter(None, parts))


def named(model: nn.Module, path: str) -> str:
    """Describe a module by its name in the network and its class."""
    return f"{path} ({type(model.get_submodule(path)).__name__})"


def _words(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _attributes(frame: FrameType) -> int:
    """Return the identity of the attributes of the module whose method a frame runs; 0 for other frames."""
    of = frame.f_locals.get("self")
    return id(of.__dict__) if isinstance(of, nn.Module) else 0


def _line(frames: list[tuple[FrameType, int]]) -> tuple[str, str]:
    """Return the innermost line outside of PyTorch, preferably outside of every library."""
    every = [each for each in traceback.StackSummary.extract(frames) if each.name != MODE]
    outside = [each for each in every if not each.filename.startswith((TORCH, "<"))]
    chosen = [each for each in outside if LIBRARIES not in each.filename][-1:] or outside[-1:]
    if not chosen:
        return "", ""
    file = Path(chosen[0].filename)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return (chosen[0].line or "").strip(), f"{shown}, line {chosen[0].lineno}"
