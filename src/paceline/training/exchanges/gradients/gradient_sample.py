"""Stages of one tensor's gradient in TernGrad, for a figure of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from paceline import codecs
from paceline.codecs import counter
from paceline.codecs.moments import Moments
from paceline.codecs.reference.ternary import Ternary
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice


class Sample:
    """Sample of one tensor's gradient: set ``name``, and ``stages`` holds it after the next exchange."""

    def __init__(self) -> None:
        self.name = ""
        self.stages: dict[str, Any] = {}
        self._waiting = False

    def take(
        self,
        gradients: Sequence[GradientSlice],
        moments: Sequence[Moments],
        limits: Sequence[tuple[float, float]],
        key: counter.Key,
        first: int,
        step: int,
    ) -> None:
        """Record the stages up to the ternary one. ``limits`` has bound and scaler of each tensor; draws begin at ``first``."""
        for (piece, gradient), m, (bound, scale) in zip(gradients, moments, limits, strict=True):
            if piece.tensor.name == self.name:
                original = gradient.detach().float().cpu().numpy().copy()
                clipped = original.clip(-bound, bound)
                ternary = codecs.decode(codecs.encode(Ternary(scale=scale), clipped, key, first + piece.start))
                self.stages = {"layer": self.name, "step": step, "sigma": float(m.sigma), "scale": scale}
                self.stages |= {"original": original, "clipped": clipped, "ternary": ternary}
                self._waiting = True

    def finish(self, parts: Mapping[str, torch.Tensor]) -> None:
        """Record the last stage, in which the gradients hold the mean over the workers."""
        if self._waiting:
            self.stages["averaged"] = parts[self.stages["layer"]].detach().cpu().numpy().copy()
            self._waiting = False
