"""Schedule that makes zeros for the sparse kernel: the smallest weights of a layer shrink to zero until it is sparse enough.

The sparsity rises as ``x (1 - (1 - t)^3)`` over the path (Zhu and Gupta 2017, arXiv:1710.01878, equation 1). Between two
choices the chosen weights shrink in even steps, so a weight that grows again is released.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.slimming.methods.wrapped_optimizer import WrappedOptimizer

TURNS = 40
DESCENT = 0.75
"""Share of the steps in which the sparsity rises. In the rest the weights settle."""


class SparsePath(WrappedOptimizer):
    """Optimizer that shrinks the chosen weights after each step.

    Args:
        sparsities: final share of zero weights, by the name of the convolution. ``steps``: steps of the path.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module, sparsities: Mapping[str, float], steps: int) -> None:
        super().__init__(optimizer, 1.0)
        self._weights = {layer: model.get_submodule(layer).get_parameter("weight") for layer in sparsities}
        self._sparsities = dict(sparsities)
        self._descent = max(1, round(DESCENT * steps))
        self._every = max(1, self._descent // TURNS)
        self._done = 0
        self._thresholds = dict.fromkeys(sparsities, 0.0)

    @torch.no_grad()
    def after_step(self) -> None:
        """Shrink weights below the layer's threshold by a part of it. After the last choice they stay at zero."""
        if self._done % self._every == 0:
            part = min(1.0, (self._done + self._every) / self._descent)
            self._thresholds = {
                layer: _quantile(weight, self._sparsities[layer] * (1 - (1 - part) ** 3))
                for layer, weight in self._weights.items()
            }
        for layer, weight in self._weights.items():
            threshold = self._thresholds[layer]
            small = weight.abs() <= threshold
            shrunk = nn.functional.softshrink(weight, 2 * threshold / self._every)
            weight.copy_(torch.where(small, shrunk, weight))
        self._done += 1

    def own_state(self) -> dict[str, Any]:
        """Return the state with the position on the path."""
        return {**super().own_state(), "steps": self._done, "thresholds": dict(self._thresholds)}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Invert ``own_state``."""
        super().load_own_state(state)
        self._done, self._thresholds = int(state["steps"]), dict(state["thresholds"])


def _quantile(weight: Tensor, part: float) -> float:
    """Return the magnitude that this share of the weights does not exceed."""
    count = round(part * weight.numel())
    return float(weight.abs().flatten().kthvalue(count).values) if count else 0.0
