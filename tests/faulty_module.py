"""A user's network that has a fault in it, on rank 1 and from a step on; its samples are those of ``user_module:few``."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import nn

from user_module import Idle, few, small

__all__ = ["clock", "corrupt", "few", "raising"]
STEP = 40
_usual_time = time.time


class Fault(nn.Module):
    """Calls ``happen`` in each training step from ``STEP`` on, on rank 1 of a run that trains."""

    def __init__(self, happen: Any) -> None:
        super().__init__()
        self.happen, self.steps = happen, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and x.device.type != "meta" and os.environ.get("RANK") == "1":
            self.steps += 1
            if self.steps >= STEP:
                self.happen(self.steps)
        return x


def _jump(step: int) -> None:
    """An hour forwards, an hour backwards, in turns."""
    offset = 3600.0 if step // 3 % 2 else -3600.0
    time.time = lambda: _usual_time() + offset


def _flip(step: int) -> None:
    """One bit of every message that leaves."""
    from paceline.training.exchanges.streams.encoded_streams import CodecStream

    if getattr(CodecStream.encode, "flips", False):
        return
    encode = CodecStream.encode

    def flipping(self: Any, *given: Any, **more: Any) -> torch.Tensor:
        message = encode(self, *given, **more).clone()
        if message.numel():
            message[-1] ^= 4
        return message

    flipping.flips = True  # type: ignore[attr-defined]
    CodecStream.encode = flipping  # type: ignore[method-assign]


def _look_up(step: int) -> None:
    {}["x"]


def clock() -> nn.Module:
    return nn.Sequential(Idle(), Fault(_jump), small())


def corrupt() -> nn.Module:
    return nn.Sequential(Idle(), Fault(_flip), small())


def raising() -> nn.Module:
    return nn.Sequential(Idle(), Fault(_look_up), small())
