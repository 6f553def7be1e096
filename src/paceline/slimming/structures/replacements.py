"""Replacements of modules by a plan, such as two thin convolutions for one: each kind by its name in the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import nn

from paceline.errors import unknown
from paceline.slimming.methods import compact_student, low_rank, sparse_convolution
from paceline.slimming.structures import branches, fewer_layers

Make = Callable[[nn.Module, Mapping[str, Any]], nn.Module]
"""Builder of the new module from the old one and the plan's settings. Its weights are nearest to the old ones, or new."""
KINDS: Mapping[str, Make] = MappingProxyType(
    {
        "low_rank": low_rank.split,
        "sparse": sparse_convolution.replacement,
        "conv_m": compact_student.replacement,
        "without_branches": branches.without_branches,
        fewer_layers.KIND: fewer_layers.without_layers,
    }
)


def replaced(model: nn.Module, replacements: Mapping[str, Mapping[str, Any]]) -> nn.Module:
    """Return the same model with other modules at these paths.

    Args:
        replacements: ``kind`` of each new module and the settings of that kind, by path; an empty path is the whole network.

    Raises:
        UserError: an unknown kind, or a module that it cannot replace.
    """
    for path, settings in replacements.items():
        kind = str(settings.get("kind"))
        if kind not in KINDS:
            raise unknown("replacement", kind, KINDS)
        new = KINDS[kind](model.get_submodule(path), settings)
        if not path:
            return new
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, new)
    return model
