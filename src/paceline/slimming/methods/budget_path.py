"""Search of each structure's penalty during training, on one path of weights from the whole network to a budget.

The allowed cost falls evenly, on a logarithmic scale, from the whole network to the budget. Structures beyond the current
allowance, the least important for their cost, are under a group Lasso that grows until they are zero (growing regularisation:
Wang et al., ICLR 2021). All others train freely; a structure that becomes important again is released.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.errors import UserError
from paceline.slimming.methods.group_lasso import StructureNorms
from paceline.slimming.methods.widths import nearest_widths
from paceline.slimming.methods.wrapped_optimizer import WrappedOptimizer
from paceline.slimming.structures.structures import Structures

Cost = Callable[[Collection[int]], float]
"""Cost of the network without some structures: seconds or bytes."""
DESCENT = 0.75
"""Share of the steps in which the cost falls to the budget. In the rest the weights settle."""
ROUNDING = 1e-3
"""Remainder of a structure after the last pull, relative to that pull, that counts as rounding."""
TURNS = 40
"""Number of times that the structures are chosen again on the way down."""


class BudgetPath(WrappedOptimizer):
    """Optimizer with a proximal step after each step, for the structures beyond the current allowance.

    Args:
        cost: cost of the network without some structures. ``goal``: end of the path, in the cost's unit.
        steps: steps of the path. ``round_to``: widths are multiples of it. ``equal``: as of ``nearest_widths``.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        structures: Structures,
        cost: Cost,
        goal: float,
        steps: int,
        round_to: int = 8,
        equal: Sequence[Sequence[str]] = (),
    ) -> None:
        super().__init__(optimizer, 1.0)
        self.groups = StructureNorms(model, structures)
        self._structures, self._cost, self._goal = structures, cost, goal
        self._rules = round_to, equal
        self._whole = cost(())
        self._descent = max(1, round(DESCENT * steps))
        self._every = max(1, self._descent // TURNS)
        self._done = 0
        norms = self.groups.norms()
        self._alive, self._pull = torch.ones_like(norms), torch.zeros_like(norms)

    @property
    def cost(self) -> float:
        """Cost of the structures that are not zero."""
        return self._cost(self.removed())

    def removed(self) -> set[int]:
        """Numbers of structures that are exactly zero."""
        alive = self._alive.tolist()
        return {number for number, lives in zip(self.groups.numbers, alive, strict=True) if not lives}

    def after_step(self) -> None:
        """Take the proximal step. Structures at zero stay zero despite the optimizer's momentum."""
        if self._done % self._every == 0 and self._done <= self._descent:
            self._choose()
        norms = self.groups.norms()
        pull = self._pull * max(1, self._done - self._descent)  # in the end it outweighs every optimizer
        left = torch.where(norms > pull * (1 + ROUNDING), 1 - pull / norms, torch.zeros_like(norms))
        factors = torch.where(pull > 0, left, torch.ones_like(norms)) * self._alive
        self.groups.scale(factors)
        self._alive = (factors > 0).to(norms.dtype)
        self._done += 1

    def _choose(self) -> None:
        """Choose the structures that shrink until the next choice, and their shrinkage per step."""
        norms, weighed = self.groups.norms() * self._alive, self.groups.importance() * self._alive
        share = min(1.0, (self._done + self._every) / self._descent)
        aim = self._whole * (self._goal / self._whole) ** share
        importance = dict(zip(self.groups.numbers, weighed.tolist(), strict=True))
        chosen, _ = nearest_widths(self._structures, importance, self._cost, aim, *self._rules)
        shrinks = torch.tensor([float(number in chosen) for number in self.groups.numbers], device=norms.device)
        self._pull = shrinks * norms / self._every

    def own_state(self) -> dict[str, Any]:
        """Return the state with the position on the path."""
        return {**super().own_state(), "steps": self._done, "alive": self._alive.tolist(), "pull": self._pull.tolist()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Invert ``own_state``. Raises UserError for the state of another network."""
        if len(state["alive"]) != len(self._alive):
            what = f"the state is of {len(state['alive'])} structures, this network has {len(self._alive)}"
            raise UserError(what, "load the state of the same network, method and inputs")
        super().load_own_state(state)
        device = self._alive.device
        self._done = int(state["steps"])
        self._alive, self._pull = (torch.tensor(state[name], device=device) for name in ("alive", "pull"))
