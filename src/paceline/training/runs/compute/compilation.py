"""Compilation of a network by ``torch.compile``, block by block where it has blocks."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from paceline.errors import UserError
from paceline.strategy.sharding import block


def compile_network(model: nn.Module) -> list[str]:
    """Compile a model in place. Return the names of the compiled modules; the model's own is empty.

    Blocks with several parameter layers are compiled each by itself, as torchtitan does: equal blocks share a graph, and
    gradients of a block are exchanged while the next one computes. A network without such blocks is compiled whole.
    """
    blocks = [
        (name, module)
        for name, module in model.named_modules()
        if name and block(f"{name}.") == name and sum(1 for m in module.modules() if [*m.parameters(recurse=False)]) > 1
    ]
    for _, module in blocks or [("", model)]:
        module.compile()
    return [name for name, _ in blocks or [("", model)]]


def check_compiler(kind: str) -> None:
    """Raise UserError if torch.compile has no C++ compiler for a CPU."""
    if kind == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        raise UserError("torch.compile needs a C++ compiler on a CPU", "install g++, or leave compile out")


def uncompiled() -> AbstractContextManager[Any]:
    """Return a context in which compiled modules run as written, for inputs of other shapes."""
    eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager
