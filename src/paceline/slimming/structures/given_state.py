"""States that a caller gives to a recurrent module with fewer units: whole ones lose the removed units when they enter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class NarrowStates:
    """Forward hook of a recurrent layer or cell that narrows states of the whole width. Others, as it returned, are unchanged.

    Args:
        wholes: whole widths of the states, in their order. ``stay``: remaining units, by state and by layer and direction; a
            cell has one.
    """

    def __init__(self, wholes: Sequence[int], stay: Sequence[Sequence[Tensor]]) -> None:
        self.wholes, self.stay = tuple(wholes), [torch.stack(list(each)) for each in stay]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments with narrow states."""
        if "hx" in kwargs:
            return args, {**kwargs, "hx": self._narrow(kwargs["hx"])}
        return (args[0], self._narrow(args[1]), *args[2:]) if len(args) > 1 else args, kwargs

    def _narrow(self, states: Any) -> Any:
        if isinstance(states, tuple):
            return tuple(self._one(state, number) for number, state in enumerate(states))
        return states if states is None else self._one(states, 0)

    def _one(self, state: Tensor, number: int) -> Tensor:
        stay = self.stay[number].to(state.device)
        if state.shape[-1] != self.wholes[number]:
            return state
        if len(stay) == 1:
            return state.index_select(-1, stay[0])
        return torch.stack([one.index_select(-1, own) for one, own in zip(state, stay, strict=True)])


def narrows_states(module: nn.Module, wholes: Sequence[int], stay: Sequence[Sequence[Tensor]]) -> nn.Module:
    """Return the module with a hook for states of the whole width, if units were removed."""
    if any(len(each) < whole for whole, units in zip(wholes, stay, strict=True) for each in units):
        module.register_forward_pre_hook(NarrowStates(wholes, stay), with_kwargs=True)
    return module
