"""Packed sequences in an export, as if all sequences had the full length. The exporter has no sizes that depend on lengths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions with a form for packed sequences."""


class _Sizes(tuple[int, ...]):
    """Sequences at each step, all the same, in the place of a tensor."""

    device = torch.device("cpu")

    def size(self, _: int) -> int:
        """Return the number of steps."""
        return len(self)


class _Functions:
    """Functions of PyTorch whose packed sequences are padded ones, flattened step by step."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._functions, name)
        return _padded(function) if name in RECURRENT else function

    def _pack_padded_sequence(self, data: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, _Sizes]:
        steps = data.transpose(0, 1) if batch_first else data
        return steps.flatten(0, 1), _Sizes([steps.shape[1]] * steps.shape[0])

    def _pad_packed_sequence(
        self, data: Tensor, sizes: _Sizes, batch_first: bool, padding: float, length: int
    ) -> tuple[Tensor, Tensor]:
        steps = data.unflatten(0, (len(sizes), sizes[0]))
        return steps.transpose(0, 1) if batch_first else steps, torch.full((sizes[0],), len(sizes))


def _padded(function: Any) -> Any:
    """Return a recurrent function that also takes the flattened sequences of ``_Functions``."""

    def run(data: Tensor, sizes: Any, *more: Any) -> Any:
        if not isinstance(sizes, _Sizes):
            return function(data, sizes, *more)
        steps, *states = function(data.unflatten(0, (len(sizes), sizes[0])), *more, False)
        return steps.flatten(0, 1), *states

    return run


@contextmanager
def full_length() -> Iterator[None]:
    """Replace the functions that pack, run and pad sequences in the block."""
    modules: tuple[Any, ...] = (rnn, nn.modules.rnn)
    before = [module._VF for module in modules]
    try:
        for module in modules:
            module._VF = _Functions(module._VF)
        yield
    finally:
        for module, functions in zip(modules, before, strict=True):
            module._VF = functions
