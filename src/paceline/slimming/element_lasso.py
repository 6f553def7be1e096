"""Lasso over single weights as a proximal step after any optimizer: weights for the sparse kernel become exactly zero.

With the penalty ``s sum |w|`` the proximal operator of a step of length ``lr`` is soft thresholding,
``w <- sign(w) max(|w| - lr s, 0)`` (Parikh and Boyd 2014, section 6.5.2). Which layers can gain at all says ``sparse_roofline``
(guided sparsity learning, Park et al., ICLR 2017).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.errors import UserError, unknown
from paceline.slimming.wrapped_optimizer import WrappedOptimizer


class ElementLasso(WrappedOptimizer):
    """An optimizer that takes a proximal step after each step of another one, whose groups, rates and state it shares.

    Args:
        optimizer: any; its first learning rate is that of the proximal step.
        strength: of the penalty: in a step of rate ``lr`` a weight loses ``lr strength`` times the mean magnitude that its
            layer's weights had at the start.
        layers: names of modules whose weights become sparse; without, all convolutions.

    Raises:
        UserError: a negative strength, a layer that the model lacks or that has no weight, no layer at all.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module, strength: float, layers: Collection[str] | None = None) -> None:
        super().__init__(optimizer, strength)
        modules = dict(model.named_modules())
        if layers is None:
            layers = [name for name, module in modules.items() if isinstance(module, nn.Conv2d)]
        for name in layers:
            if name not in modules:
                raise unknown("layer", name, modules)
            if not isinstance(getattr(modules[name], "weight", None), nn.Parameter):
                raise UserError(f"{name or 'the model'} has no weight", "name layers that have one")
        if not layers:
            raise UserError("no layer to make sparse", "name one")
        self._weights = {name: modules[name].get_parameter("weight") for name in layers}
        self._units = {name: float(weight.detach().abs().mean()) for name, weight in self._weights.items()}
        self._held: dict[str, torch.Tensor] = {}
        self.holding = False

    def hold(self) -> None:
        """From now on zeros stay, and nothing is pulled there: for fine-tuning."""
        self.holding = True

    def sparsity(self) -> dict[str, float]:
        """By layer, the part of the weights that is exactly zero."""
        return {name: 1 - int(weight.count_nonzero()) / weight.numel() for name, weight in self._weights.items()}

    @torch.no_grad()
    def before_step(self) -> None:
        """Which weights are zero is seen anew, so that a resumed run needs nothing but its weights."""
        if self.holding:
            self._held = {name: weight != 0 for name, weight in self._weights.items()}

    @torch.no_grad()
    def after_step(self) -> None:
        """The proximal step, or zeros again."""
        for name, weight in self._weights.items():
            if self.holding:
                weight.mul_(self._held[name])
            else:
                weight.copy_(nn.functional.softshrink(weight, self.rate * self.strength * self._units[name]))

    def own_state(self) -> dict[str, Any]:
        """With the magnitudes that the penalty is counted in, and whether zeros are held."""
        return {**super().own_state(), "units": dict(self._units), "holding": self.holding}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """The inverse of ``own_state``."""
        super().load_own_state(state)
        self._units = {name: float(unit) for name, unit in state["units"].items()}
        self.holding = bool(state["holding"])


__all__ = ["ElementLasso"]
