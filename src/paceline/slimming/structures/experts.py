"""Whole experts of sparse mixtures as structures: an expert with its row of the router.

A mixture is a module that holds the weights of all experts as tensors (experts, ...), and a router near it with a row for each
expert. An expert without weights is not the same as no expert: the router would still choose it, with a score of 0. So an
expert is masked by a score of minus infinity, and a loop that shrinks weights to zero cannot remove experts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from paceline.slimming.structures.structures import RemovableStructure, Structures, WidthNumber

NUMBER = "expert"
"""Part of the names of attributes with the number of experts, such as ``num_local_experts``."""
CHOSEN = "per_tok"
"""Part of the names of the number of experts of a token, which stays."""


@dataclass(frozen=True)
class Mixture:
    """Experts of one layer.

    Attributes:
        router: name of the router's weight. ``tensors``: all parameters and buffers with an entry for each expert.
        numbers: attributes of modules with the number of experts.
    """

    router: str
    count: int
    tensors: tuple[str, ...]
    numbers: tuple[WidthNumber, ...]


def mixtures(model: nn.Module) -> Iterator[Mixture]:
    """Yield the mixtures of a network: modules with two or more parameters (experts, rows, columns), and their routers."""
    for path, module in model.named_modules():
        counts = {len(each) for each in module.parameters(recurse=False) if each.dim() == 3}
        if len(counts) != 1 or (count := counts.pop()) < 2 or sum(each.dim() == 3 for each in module.parameters(False)) < 2:
            continue
        above = path.rpartition(".")[0]
        around = model.get_submodule(above) if above else model
        start = f"{above}." if above else ""
        tensors = {**dict(around.named_parameters()), **dict(around.named_buffers())}
        outside = {f"{start}{name}": each for name, each in tensors.items() if not f"{start}{name}".startswith(f"{path}.")}
        routers = [name for name, each in outside.items() if each.dim() == 2 and len(each) == count]
        if len(routers) != 1:
            continue
        home = routers[0].rpartition(".")[0]
        every = {f"{path}.{name}": each for name, each in _own(module).items()}
        every |= {f"{home}.{name}": each for name, each in _own(model.get_submodule(home)).items()}
        names = [routers[0], *(name for name, each in every.items() if each.dim() and len(each) == count)]
        paths = dict.fromkeys((path, home, above))
        numbers = [WidthNumber(place, name, count) for place in paths for name in _counts(model.get_submodule(place), count)]
        yield Mixture(routers[0], count, tuple(dict.fromkeys(names)), tuple(numbers))


def _own(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}


def _counts(module: nn.Module, count: int) -> Iterator[str]:
    """Yield the attributes of a module that hold the number of experts, and the outputs of a router that is a linear layer."""
    for name, value in vars(module).items():
        if type(value) is int and value == count and NUMBER in name and CHOSEN not in name:
            yield name


def with_experts(found: Structures, model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
    """Return the structures with those of whole experts, which are in ``routers`` too.

    Args:
        inputs: an example, for the number of experts that a token needs.
    """
    every = list(mixtures(model))
    needed = _needed(model, inputs, every) if every else {}
    units = dict(found.units)
    for mixture in every:
        if needed[mixture.router] >= mixture.count:
            continue
        own = found.forest.new(mixture.count)
        for name in mixture.tensors:
            units[name] = (own, *units[name][1:])
        found.routers.add(mixture.router)
        found.least[mixture.router] = needed[mixture.router]
        found.numbers[mixture.router] = mixture.numbers
    found.units = units
    found.collect()
    return found


class Routing(TorchFunctionMode):
    """Reads, or masks, the scores of routers while a network runs.

    Args:
        routers: weight of each router, by its name. ``gone``: experts of each that are masked.

    Attributes:
        chosen: most experts that a ``topk`` over the scores has taken, by router. ``use``: share of the routers' softmax that
            each expert had where it was among the ``least`` largest, summed over tokens.
    """

    def __init__(
        self,
        routers: Mapping[str, Tensor],
        gone: Mapping[str, Sequence[int]] | None = None,
        least: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self._names = {id(weight): name for name, weight in routers.items()}
        self._gone, self._least = dict(gone or {}), dict(least or {})
        self._now = ""
        self.chosen: dict[str, int] = dict.fromkeys(routers, 1)
        self.use: dict[str, Tensor] = {name: torch.zeros(len(weight)) for name, weight in routers.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.linear and id(args[1]) in self._names:
            self._now = self._names[id(args[1])]
            if places := self._gone.get(self._now):
                result = result.index_fill(-1, torch.tensor(places, device=result.device), float("-inf"))
            if count := self._least.get(self._now, 0):
                shares = result.detach().float().flatten(0, -2).softmax(-1).cpu()
                best = shares.topk(count, -1)
                self.use[self._now].scatter_add_(0, best.indices.flatten(), best.values.flatten())
        elif func in (torch.topk, Tensor.topk) and self._now and args[0].shape[-1] == len(self.use[self._now]):
            wanted = args[1] if len(args) > 1 else (kwargs or {}).get("k", 1)
            self.chosen[self._now] = max(self.chosen[self._now], int(wanted))
        return result


def _needed(model: nn.Module, inputs: tuple[Any, ...], every: Sequence[Mixture]) -> dict[str, int]:
    """Return the number of experts of a token, by router."""
    routing = Routing({each.router: model.get_parameter(each.router) for each in every})
    with torch.no_grad(), routing:
        model(*inputs)
    return routing.chosen


def without_experts(model: nn.Module, structures: Structures, removed: Collection[int]) -> None:
    """Mask experts in the forward of a network, in place.

    Args:
        removed: numbers of structures, others than experts too.
    """
    gone: dict[str, list[int]] = {}
    for each in structures.every:
        if each.layer in structures.routers and each.number in removed:
            gone.setdefault(each.layer, []).extend(_rows(each))
    if gone:
        routers = {name: model.get_parameter(name) for name in gone}
        plain = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            with Routing(routers, gone):
                return plain(*args, **kwargs)

        model.forward = forward


def expert_use(model: nn.Module, structures: Structures, runs: Iterator[object]) -> dict[int, float]:
    """Return the use of each expert by its structure's number.

    Args:
        runs: runs the network on the samples as it is read.
    """
    routing = Routing({name: model.get_parameter(name) for name in structures.routers}, least=structures.least)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(routing)
        for _ in runs:
            pass
    experts = (each for each in structures.every if each.layer in structures.routers)
    return {each.number: float(routing.use[each.layer][_rows(each)].sum()) for each in experts}


def _rows(expert: RemovableStructure) -> list[int]:
    """Return an expert's rows of its router."""
    return [index for part in expert.slices if part.parameter == expert.layer and part.dim == 0 for index in part.indices]
