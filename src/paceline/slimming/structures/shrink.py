"""Physical removal of structures: a copy of a module in ordinary smaller layers."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from paceline.errors import UserError
from paceline.slimming.code_numbers import is_code, state
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.averages import refit
from paceline.slimming.structures.experts import without_experts
from paceline.slimming.structures.given_tensors import NarrowInputs, WholeStates, narrows_states, states_as_lists
from paceline.slimming.structures.kernels import fit_window
from paceline.slimming.structures.narrow_attention import NarrowAttention
from paceline.slimming.structures.recurrent_stack import RecurrentStack, stacked
from paceline.slimming.structures.replacements import replaced
from paceline.slimming.structures.structures import Structures

DRAWS = (torch.randn_like, torch.rand_like, torch.randn, torch.rand)
"""Functions that draw each element alone."""
BYTES = 4
"""Bytes of a weight in fp32."""


def masked(model: nn.Module, structures: Structures, removed: Collection[int]) -> nn.Module:
    """Return a copy of the same shape with removed structures set to zero, as a reference for a shrunk module.

    No router chooses a removed expert.
    """
    same = copy.deepcopy(model)
    tensors = _tensors(same)
    with torch.no_grad():
        for structure in structures.every:
            for part in structure.slices if structure.number in removed else ():
                if (part.parameter, part.dim) in structures.directions:
                    continue
                tensor = tensors[part.parameter]
                tensor.index_fill_(part.dim, torch.tensor(part.indices, device=tensor.device), 0)
    without_experts(same, structures, removed)
    return same


def shrunk(model: nn.Module, structures: Structures, removed: Collection[int]) -> nn.Module:
    """Return a smaller copy without the structures of these numbers. Errors as of ``load`` and ``SlimPlan.of``."""
    return load(SlimPlan.of(structures, removed), model)


def load(plan: SlimPlan, model: nn.Module) -> nn.Module:
    """Return a smaller copy of a whole network by a plan. It consists of the same classes, except for two forms that PyTorch's
    layers do not support: ``nn.MultiheadAttention`` with fewer heads, and ``nn.LSTM`` and ``nn.GRU`` of different widths.

    Raises:
        UserError: the plan is of another network.
    """
    plan.check(model)
    small = copy.deepcopy(model)
    _refit(small, plan)
    small = replaced(small, plan.replacements)
    small.train(model.training)  # modules clear what they computed from the whole weights
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in small.named_modules():
        module.training = modes.get(name, model.training)
    return small


def _refit(small: nn.Module, plan: SlimPlan) -> None:
    by_module: dict[str, dict[str, dict[int, Tensor]]] = defaultdict(lambda: defaultdict(dict))
    for (name, dim), stay in plan.kept.items():
        path, _, own = name.rpartition(".")
        by_module[path][own][dim] = torch.tensor(stay)
    done: dict[int, Tensor] = {}
    attentions = {path: module for path, module in small.named_modules() if isinstance(module, nn.MultiheadAttention)}
    for path, attention in attentions.items():
        if parts := [part for part in by_module if part == path or part.startswith(f"{path}.")]:
            _replace(small, path, NarrowAttention.of(attention, *_of_attention(by_module, path)))
            for part in parts:
                del by_module[part]
    for path, tensors in by_module.items():
        module = small.get_submodule(path) if path else small
        if isinstance(module, nn.LSTM | nn.GRU | nn.RNN):
            _replace(small, path, stacked(module, tensors))
            continue
        for name, dims in tensors.items():
            _select(module, name, dims, done)
        if isinstance(module, nn.RNNCellBase) and (units := tensors.get("weight_hh", {}).get(1)) is not None:
            states = 1 + isinstance(module, nn.LSTMCell)
            narrows_states(module, [module.hidden_size] * states, [[units]] * states)
        _sizes(module)
        if isinstance(module, parametrize.ParametrizationList):
            _sizes(small.get_submodule(path.rpartition(".parametrizations.")[0]))
    for name, (average, ratio) in plan.averages.items():
        path, _, own = name.rpartition(".")
        refit(small.get_submodule(path), own, average, ratio)
    for path, count in plan.heads.items():
        _count_heads(small, path, *count)
    modules = dict(small.named_modules())
    for path, numbers in plan.numbers.items():
        if path in modules:
            _set_numbers(modules[path], numbers)
    for path, inputs in plan.inputs.items():
        modules[path].register_forward_pre_hook(NarrowInputs(inputs), with_kwargs=True)
    if any(isinstance(module, RecurrentStack) for module in modules.values()):
        small.register_forward_hook(WholeStates())


def _set_numbers(module: nn.Module, numbers: Mapping[str, int]) -> None:
    """Set numbers that a module holds in attributes, or that its code states."""
    state(module, {place: value for place, value in numbers.items() if is_code(place)})
    for attribute, value in numbers.items():
        if not is_code(attribute):
            _set_number(module, attribute, value)


def _set_number(module: nn.Module, attribute: str, value: int) -> None:
    """Set an attribute of a module, an entry of a list of it, or a number of a new copy of the settings that modules share."""
    settings, _, name = attribute.rpartition(".")
    if settings and isinstance(held := getattr(module, settings), list | tuple):
        new = [value if place == int(name) else each for place, each in enumerate(held)]
        setattr(module, settings, type(held)(new))
        return
    if settings:
        setattr(module, settings, copy.copy(getattr(module, settings)))
    setattr(getattr(module, settings) if settings else module, name, value)


def _of_attention(by_module: Mapping[str, Mapping[str, Mapping[int, Tensor]]], path: str) -> tuple[Any, ...]:
    """Return rows of the input projection, columns of the output projection, and the input and output features."""
    projection = by_module.get(path, {}).get("in_proj_weight", {})
    out = by_module.get(f"{path}.out_proj", {}).get("weight", {})
    return projection.get(0), projection.get(1), out.get(0)


def _select(module: nn.Module, name: str, dims: Mapping[int, Tensor], done: dict[int, Tensor]) -> None:
    """Remove the removed parts from a parameter or buffer. Tied ones stay one object."""
    old: Tensor = getattr(module, name)
    if id(old) in done:
        new = done[id(old)]
    else:
        new = old.detach()
        for dim, stay in dims.items():
            new = new.index_select(dim, stay.to(new.device))
        new = new.clone()
        new = nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else new
        done[id(old)] = new
        done[id(new)] = new
    if isinstance(old, nn.Parameter):
        module.register_parameter(name, new)  # type: ignore[arg-type]
    else:
        module.register_buffer(name, new, persistent=name not in module._non_persistent_buffers_set)


def _sizes(module: nn.Module) -> None:
    """Set the attributes that hold the sizes of PyTorch's layers."""
    if isinstance(module, nn.modules.conv._ConvNd):
        first, second = module.weight.shape[:2]
        out, into = (second, first) if module.transposed else (first, second)
        if module.groups > 1:
            depth = module.groups == module.in_channels
            group_outputs = module.out_channels // module.groups
            module.groups = into_groups = out // group_outputs
            into = into_groups * (1 if depth else second)
        module.in_channels, module.out_channels = into, out
        fit_window(module)
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        tensor = module.weight if module.weight is not None else module.running_mean
        if tensor is not None:
            module.num_features = len(tensor)
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = module.weight.shape
    elif isinstance(module, nn.RNNCellBase):
        module.hidden_size, module.input_size = module.weight_hh.shape[1], module.weight_ih.shape[1]
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)


def _count_heads(small: nn.Module, path: str, before: int, left: int) -> None:
    """Set the number of heads of the user's module, in the attribute with a matching name."""
    try:
        module = small.get_submodule(path) if path else small
    except AttributeError:
        return  # it was replaced
    for name, value in list(vars(module).items()):
        if "head" in name and "dim" not in name and isinstance(value, int) and not isinstance(value, bool) and value == before:
            setattr(module, name, left)


def _replace(small: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(small.get_submodule(parent) if parent else small, name, module)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers(remove_duplicate=False))}


def differs(one: nn.Module, other: nn.Module, inputs: tuple[Any, ...]) -> float:
    """Return the largest difference of two modules' outputs, relative to the largest output. States of recurrent layers have
    other shapes after the removal: they are left out.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        left, right = (_outputs(module, inputs) for module in (one, other))
    pairs = [(a, b) for a, b in zip(left, right, strict=False) if a.shape == b.shape]
    if left and not pairs:
        raise UserError(f"the outputs have other shapes: {tuple(left[0].shape)} and {tuple(right[0].shape)}")
    largest = max((float(a.abs().max()) for a, _ in pairs), default=0.0)
    apart = max((float((a - b).abs().max()) for a, b in pairs), default=0.0)
    return apart / largest if largest else apart


def _outputs(module: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors of the outputs, with the same random numbers in every call."""
    torch.manual_seed(0)
    with _EqualDraws(), states_as_lists(module):
        return list(tensors_in(module.eval()(*inputs)))


class _EqualDraws(TorchFunctionMode):
    """Random tensors whose elements are all equal: a smaller one then has the numbers of the elements that stay."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = torch.Generator().manual_seed(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.fill_(0.5 + float(torch.rand((), generator=self._numbers))) if func in DRAWS else result


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Return the tensors of a module's output, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from tensors_in(each)


def weight_bytes(structures: Structures, removed: Collection[int] = (), stored: Mapping[str, int] | None = None) -> float:
    """Return the bytes of all parameters and buffers. Tied ones count once.

    Args:
        stored: bytes of an element by name, ``stored_bytes``; fp32 without.
    """
    gone = np.array(sorted(removed), np.int64)
    every = {id(dims): (name, dims) for name, dims in structures.units.items() if dims}  # but for counters
    return float(
        sum(
            (stored or {}).get(name, BYTES) * prod(int((~np.isin(structures.forest.roots(u), gone)).sum()) for u in dims)
            for name, dims in every.values()
        )
    )


def module_bytes(model: nn.Module, stored: bool = False) -> float:
    """Return the bytes of all parameters and buffers without counters: ``weight_bytes`` without a trace.

    Args:
        stored: in their own types, not in fp32.
    """
    every = [each for each in (*model.parameters(), *model.buffers()) if each.dim()]
    return float(sum((_element_bytes(each) if stored else BYTES) * each.numel() for each in every))


def stored_bytes(model: nn.Module) -> dict[str, int]:
    """Return the bytes of an element of each parameter and buffer by name."""
    return {name: _element_bytes(each) for name, each in _tensors(model).items()}


def _element_bytes(tensor: Tensor) -> int:
    """Return the bytes of a weight's element; whole numbers, such as tables of positions, count as fp32 does."""
    return tensor.element_size() if tensor.is_floating_point() else BYTES
