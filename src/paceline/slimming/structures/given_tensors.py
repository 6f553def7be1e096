"""Whole tensors that a smaller module is given, such as a state or a bias for each head: they lose removed parts on entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


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


class StateList(list[Tensor]):
    """State of recurrent layers of different widths, inside a network: one tensor (batch, units) per layer and direction.

    Args:
        whole: width before slimming. ``stay``: remaining units of each tensor.
    """

    def __init__(self, states: Sequence[Tensor], whole: int, stay: Sequence[Tensor]) -> None:
        super().__init__(states)
        self._whole, self._stay = whole, stay

    def tensor(self) -> Tensor:
        """Return the state in the whole width, with zeros for units that are gone."""
        return torch.stack([self._wide(one, stay.to(one.device)) for one, stay in zip(self, self._stay, strict=True)])

    def _wide(self, state: Tensor, stay: Tensor) -> Tensor:
        return state.new_zeros(*state.shape[:-1], self._whole).index_copy(-1, stay, state)


class WholeStates:
    """Forward hook of a network that returns states in the structure of the whole network: tensors, for lists inside it.

    Attributes:
        active: False: states leave as lists, whose units are comparable with nothing in the whole network.
    """

    active = True

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Return the output with whole states."""
        return tree_map(_plain, output, is_leaf=_is_state) if self.active else output


def _is_state(value: Any) -> bool:
    return isinstance(value, StateList)


def _plain(value: Any) -> Any:
    return value.tensor() if isinstance(value, StateList) else value


@contextmanager
def states_as_lists(model: nn.Module) -> Iterator[None]:
    """Let states leave a network as lists in the block."""
    hooks = [hook for hook in model._forward_hooks.values() if isinstance(hook, WholeStates)]
    try:
        for hook in hooks:
            hook.active = False
        yield
    finally:
        for hook in hooks:
            hook.active = True


@dataclass(frozen=True)
class NarrowInput:
    """Remaining part of an argument of a module.

    Attributes:
        dim: dimension that becomes smaller. ``whole``: its size, or the size of each of several equal blocks.
        stay: remaining indices.
    """

    dim: int
    whole: int
    stay: tuple[int, ...]

    def of(self, tensor: Tensor) -> Tensor:
        """Return the remaining part of a whole argument."""
        blocks = torch.arange(0, tensor.shape[self.dim], self.whole)[:, None]
        at = (blocks + torch.tensor(self.stay)).flatten()
        return tensor.index_select(self.dim, at.to(tensor.device))


class NarrowInputs:
    """Forward hook that narrows arguments of a module, by their position or name."""

    def __init__(self, inputs: Mapping[str, NarrowInput]) -> None:
        self.inputs = dict(inputs)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments."""
        by_place = (self._one(str(place), each) for place, each in enumerate(args))
        return tuple(by_place), {name: self._one(name, each) for name, each in kwargs.items()}

    def _one(self, name: str, value: Any) -> Any:
        return self.inputs[name].of(value) if name in self.inputs and isinstance(value, Tensor) else value


def arguments(model: nn.Module, inputs: tuple[Any, ...], places: Sequence[str]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes of the tensors that modules are given in a run, by module and by position or name."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    hooks = []
    for path in places:

        def record(_: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
            given = {**{str(place): each for place, each in enumerate(args)}, **kwargs}
            found[path] = {name: tuple(each.shape) for name, each in given.items() if isinstance(each, Tensor)}

        hooks.append(model.get_submodule(path).register_forward_pre_hook(record, with_kwargs=True))
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for each in hooks:
            each.remove()
    return found
