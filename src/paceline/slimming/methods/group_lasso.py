"""Group Lasso over structures as a proximal step after any optimizer, which makes weak structures exactly zero.

With the penalty ``sum_g s_g |W_g|`` the proximal operator of a step of length ``lr`` is ``W_g <- W_g max(0, 1 - lr s_g /
|W_g|)`` (Yuan and Lin 2006; Parikh and Boyd 2014, section 6.5.4). A subgradient never reaches zero (Wen et al., NIPS 2016, need
a threshold for it). A weight in two structures, the output of one layer and the input of the next, is scaled by both in turn.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.slimming.methods.wrapped_optimizer import WrappedOptimizer
from paceline.slimming.structures.structures import RemovableStructure, Structures


class StructureNorms:
    """Vectorised norms and scaling of all structures of a model.

    Attributes:
        numbers: numbers of the structures, in the order of the norms. ``layers``: their layers.
    """

    def __init__(self, model: nn.Module, structures: Structures) -> None:
        parameters = dict(model.named_parameters())
        place = {structure.number: index for index, structure in enumerate(structures.every)}
        self.numbers = tuple(place)
        self.layers = tuple(structure.layer for structure in structures.every)
        cores = {layer: len(place) + n for n, layer in enumerate(_kernels(structures))}
        self._core = torch.tensor([cores.get(layer, -1) for layer in self.layers], dtype=torch.long)
        self._rows = torch.ones(len(place) + len(cores))
        rest: dict[tuple[str, int], int] = {}
        for layer, every in _kernels(structures).items():
            first = every[0].slices[0]
            self._rows[cores[layer]] = len(structures.units[first.parameter][first.dim])
            for structure in every:
                self._rows[place[structure.number]] = rows = len(structure.slices[0].indices)
                self._rows[cores[layer]] -= rows
                rest |= {(part.parameter, part.dim): cores[layer] for part in structure.slices}
        self._parts: list[tuple[nn.Parameter, int, Tensor]] = []
        for name, dims in structures.units.items():
            if (parameter := parameters.get(name)) is None:  # a buffer, or a second name of a tied weight
                continue
            for dim, units in enumerate(dims):
                if (name, dim) in structures.directions:
                    continue
                roots = structures.forest.roots(units)
                index = torch.tensor([place.get(int(root), rest.get((name, dim), -1)) for root in roots])
                if (index >= 0).any():
                    self._parts.append((parameter, dim, own_rows(parameter, dim, index).to(parameter.device)))

    def norms(self) -> Tensor:
        """Return the l2 norm of each structure's parameters, shape (structures,), equal on every rank of a sharded model."""
        return self._norms()[: len(self.numbers)]

    def importance(self) -> Tensor:
        """Return the norms as ``widths_for`` weights them, shape (structures,). For a pair of a kernel: the root mean square of
        its rows' norms over that of the rows that always stay.
        """
        norms, count = self._norms(), len(self.numbers)
        if len(norms) == count:
            return norms
        rows = norms / self._rows.to(norms.device).sqrt()
        core = self._core.to(norms.device)
        beside = rows[:count] / rows[core].clamp(min=1e-12)
        return beside.where(core >= 0, norms[:count])

    @torch.no_grad()
    def _norms(self) -> Tensor:
        """Return the squares of the structures, then of the fixed part of each kernel that may become smaller."""
        device = self._parts[0][0].device if self._parts else None
        sums: dict[tuple[Any, ...], Tensor] = {}
        for parameter, dim, index in self._parts:
            tensor = local(parameter.detach())
            others = [other for other in range(tensor.dim()) if other != dim]
            squares = tensor.float().square()
            squares = squares.sum(others) if others else squares
            held = index >= 0
            own = sums.setdefault(shards(parameter), torch.zeros(len(self._rows), device=device))
            own.index_add_(0, index[held], squares[held])
        for groups, own in sums.items():
            for group in groups:
                dist.all_reduce(own, group=group)
        return torch.stack(list(sums.values())).sum(0).sqrt() if sums else torch.zeros(0)

    @torch.no_grad()
    def scale(self, factors: Tensor) -> None:
        """Multiply each structure by its factor; other weights are unchanged."""
        padded = torch.cat([factors, factors.new_ones(len(self._rows) - len(factors) + 1)])  # -1 is the last: one
        for parameter, dim, index in self._parts:
            shape = [1] * parameter.dim()
            shape[dim] = -1
            local(parameter).mul_(padded[index].view(shape).to(parameter.dtype))


def _kernels(structures: Structures) -> dict[str, list[RemovableStructure]]:
    return {layer: every for layer, every in structures.layers().items() if every[0].nested}


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, as made by ``fully_shard``, or any other tensor unchanged."""
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def shards(tensor: Tensor) -> tuple[Any, ...]:
    """Return the process groups over which a tensor is sharded; empty for a whole or replicated one."""
    if not hasattr(tensor, "to_local"):
        return ()
    held: Any = tensor
    return tuple(held.device_mesh.get_group(place) for place, each in enumerate(held.placements) if each.is_shard())


def own_rows(tensor: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the part of an index for this rank's rows: ``torch.chunk`` over each mesh dimension."""
    if not hasattr(tensor, "to_local"):
        return index
    held: Any = tensor
    for place, each in enumerate(held.placements):
        if each.is_shard() and each.dim % tensor.dim() == dim:
            size, rank = held.device_mesh.size(place), held.device_mesh.get_local_rank(place)
            rows = -(-len(index) // size)
            index = index[rank * rows : (rank + 1) * rows]
    return index


class GroupLasso(WrappedOptimizer):
    """Optimizer with a proximal step after each step of another one. It shares the other's groups, rates and state.

    Args:
        optimizer: any; its first learning rate is that of the proximal step.
        strength: strength of the penalty: in a step of rate ``lr`` a structure loses ``lr strength weight`` times the median
            norm that its layer's structures had at the start. A penalty of ``a |W_g|`` in papers is ``a`` over that median
            here. weights: relative cost of the structures by layer; default 1.

    Raises:
        UserError: a negative strength.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        structures: Structures,
        strength: float,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(optimizer, strength)
        self.groups = StructureNorms(model, structures)
        norms = self.groups.norms()
        medians = {
            layer: norms[[place for place, own in enumerate(self.groups.layers) if own == layer]].median()
            for layer in dict.fromkeys(self.groups.layers)
        }
        weight = weights or {}
        self._units = torch.tensor([float(medians[layer]) * weight.get(layer, 1.0) for layer in self.groups.layers])

    def after_step(self) -> None:
        """Take the proximal step."""
        norms = self.groups.norms()
        pull = self.rate * self.strength * self._units.to(norms.device)
        self.groups.scale(torch.where(norms > 0, (1 - pull / norms).clamp(min=0), norms))

    def only(self, numbers: Collection[int]) -> None:
        """Restrict the penalty to these structures."""
        chosen = torch.tensor([number in numbers for number in self.groups.numbers])
        self._units = self._units.where(chosen, torch.zeros(()))

    def removed(self) -> set[int]:
        """Numbers of structures that are exactly zero."""
        norms = self.groups.norms()
        return {number for number, norm in zip(self.groups.numbers, norms.tolist(), strict=True) if norm == 0}

    def own_state(self) -> dict[str, Any]:
        """Return the state with the reference norms of the penalty."""
        return {**super().own_state(), "units": self._units.tolist()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Invert ``own_state``."""
        super().load_own_state(state)
        self._units = torch.tensor(state["units"])
