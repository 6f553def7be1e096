"""Importance of structures and layers of a language model from a few samples, in one shot.

- ``wanda``: the norm of a structure's contribution to the next layer: |W_ij| |x_j| of each weight that reads it, with the norm
  of its activations over the samples (Sun et al., ICLR 2024, arXiv:2306.11695), as the root of the sum of squares.
- ``taylor``: the change of the loss to first order if a structure is zero: |sum of weight times gradient|, in the mean over the
  samples (Molchanov et al., CVPR 2019; for coupled structures Ma et al., NeurIPS 2023, arXiv:2305.11627).
- ``magnitude``: the norm of its weights.
- A layer's influence: 1 - the cosine of what enters and what leaves it (Men et al., ShortGPT, arXiv:2403.03853).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.slimming.language.perplexity import logits_of, loss_of
from paceline.slimming.methods.group_lasso import StructureNorms
from paceline.slimming.structures.structures import Structures

Parts = list[tuple[str, int, Tensor]]
"""Parameter, dimension, and for each of its indices the place of its structure, -1 for none."""


def _parts(model: nn.Module, structures: Structures) -> Parts:
    place = {each.number: index for index, each in enumerate(structures.every)}
    parameters = dict(model.named_parameters())
    found: Parts = []
    for name, dims in structures.units.items():
        for dim, units in enumerate(dims) if name in parameters else ():
            index = torch.tensor([place.get(int(root), -1) for root in structures.forest.roots(units)])
            if (index >= 0).any():
                found.append((name, dim, index))
    return found


def _input_dim(module: nn.Module) -> int | None:
    """Return the dimension of a matrix product's weight that reads its input; None for other modules."""
    if isinstance(module, nn.Linear):
        return 1
    return 0 if type(module).__name__ == "Conv1D" else None


def wanda(model: nn.Module, structures: Structures, samples: Sequence[Tensor]) -> dict[int, float]:
    """Return the importance of each structure by its number. Structures that no plain matrix product reads, such as the rows of
    experts, have that of ``taylor``, on the scale of each layer.

    Args:
        samples: batches of windows (windows, tokens + 1).
    """
    parts = _parts(model, structures)
    parameters = dict(model.named_parameters())
    read = {
        name: (dim, index)
        for name, dim, index in parts
        if parameters[name].dim() == 2 and dim == _input_dim(model.get_submodule(name.rpartition(".")[0]))
    }
    squares: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def record(module: nn.Module, given: tuple[Any, ...]) -> None:
            x = given[0].detach().float().flatten(0, -2)
            squares[name] = squares.get(name, 0) + x.square().sum(0)

        return record

    with ExitStack() as stack, torch.no_grad():
        for name in read:
            hook = model.get_submodule(name.rpartition(".")[0]).register_forward_pre_hook(watch(name))
            stack.callback(hook.remove)
        for rows in samples:
            logits_of(model, rows[:, :-1])
    sums = torch.zeros(len(structures.every))
    for name, (dim, index) in read.items():
        weights = parameters[name].detach().float().square().sum(1 - dim) * squares[name]
        held = index >= 0
        sums.index_add_(0, index[held], weights[held])
    found = {each.number: float(value) for each, value in zip(structures.every, sums.sqrt().tolist(), strict=True)}
    if any(value == 0 for value in found.values()):
        other = taylor(model, structures, samples)
        unread = {each.layer for each in structures.every if found[each.number] == 0}
        found |= {each.number: other[each.number] for each in structures.every if each.layer in unread}
    return found


def taylor(model: nn.Module, structures: Structures, samples: Sequence[Tensor]) -> dict[int, float]:
    """Return the importance of each structure by its number. Arguments as of ``wanda``."""
    parts, sums = _parts(model, structures), torch.zeros(len(structures.every))
    parameters = dict(model.named_parameters())
    for rows in samples:
        model.zero_grad(set_to_none=True)
        loss_of(logits_of(model, rows[:, :-1]), rows).backward()  # type: ignore[no-untyped-call]
        change = torch.zeros_like(sums)
        for name, dim, index in parts:
            parameter = parameters[name]
            if parameter.grad is None:
                continue
            each = (parameter.detach() * parameter.grad).float().movedim(dim, 0).reshape(len(index), -1).sum(1)
            held = index >= 0
            change.index_add_(0, index[held], each[held])
        sums += change.abs()
    model.zero_grad(set_to_none=True)
    return {each.number: value for each, value in zip(structures.every, (sums / len(samples)).tolist(), strict=True)}


def magnitude(model: nn.Module, structures: Structures, samples: Sequence[Tensor]) -> dict[int, float]:
    """Return the norm of each structure's weights by its number; the samples do not matter."""
    norms = StructureNorms(model, structures)
    return dict(zip(norms.numbers, norms.importance().tolist(), strict=True))


Importance = Callable[[nn.Module, Structures, Sequence[Tensor]], dict[int, float]]
IMPORTANCES: Mapping[str, Importance] = {"wanda": wanda, "taylor": taylor, "magnitude": magnitude}


def influences(layers: nn.ModuleList, run: Callable[[], Iterator[object]]) -> list[float]:
    """Return the influence of each layer.

    Args:
        run: runs the network on the samples.
    """
    sums = torch.zeros(len(layers), 2)

    def watch(number: int) -> Callable[..., None]:
        def record(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            before = given[0] if given else named["hidden_states"]
            after = output[0] if isinstance(output, tuple) else output
            apart = 1 - F.cosine_similarity(before.float(), after.float(), dim=-1)
            sums[number] += torch.tensor([float(apart.sum()), float(apart.numel())])

        return record

    with ExitStack() as stack, torch.no_grad():
        for number, layer in enumerate(layers):
            stack.callback(layer.register_forward_hook(watch(number), with_kwargs=True).remove)
        for _ in run():
            pass
    return (sums[:, 0] / sums[:, 1].clamp(min=1)).tolist()
