"""Base class of penalties: an optimizer that wraps another one and shares its groups, rates and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from paceline.errors import UserError


class WrappedOptimizer(Optimizer):
    """Optimizer that acts before or after each step of another one.

    Args:
        optimizer: any. ``strength``: strength of the additional action; 0 does nothing.

    Raises:
        UserError: a negative strength.
    """

    def __init__(self, optimizer: Optimizer, strength: float) -> None:
        if not 0 <= strength < float("inf"):
            raise UserError(f"a strength of {strength:g}", "give 0 or a positive number")
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.param_groups, self.state = optimizer.param_groups, optimizer.state
        self.inner, self.strength = optimizer, strength

    @property
    def rate(self) -> float:
        """The learning rate of the first group."""
        return float(self.inner.param_groups[0]["lr"])

    @property
    def active(self) -> bool:
        """Return whether the wrapper changes anything."""
        return self.strength > 0

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step of the optimizer, with the actions before and after it."""
        if self.active:
            self.before_step()
        loss: float | None = self.inner.step(closure)  # type: ignore[arg-type]
        if self.active:
            self.after_step()
        return loss

    def before_step(self) -> None:
        """Change gradients. Does nothing by default."""

    def after_step(self) -> None:
        """Change weights. Does nothing by default."""

    def own_state(self) -> dict[str, Any]:
        """Return the wrapper's state for a resumed run: numbers and lists."""
        return {"strength": self.strength}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Invert ``own_state``."""
        self.strength = float(state["strength"])

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state with ``own_state``."""
        return {**self.inner.state_dict(), "wrapper": self.own_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of ``state_dict``, or a state of the inner optimizer alone, which lacks ``own_state``."""
        self.inner.load_state_dict({name: value for name, value in state_dict.items() if name != "wrapper"})
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        if kept := state_dict.get("wrapper"):
            self.load_own_state(kept)
