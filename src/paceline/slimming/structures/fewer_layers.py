"""Decoders of Hugging Face with fewer of their layers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from paceline.errors import UserError
from paceline.slimming.structures.structures import ParameterSlice, Structures

KIND = "fewer_layers"
"""Kind of the replacement in a plan."""
BY_LAYER = ("layer_types", "mlp_layer_types")
"""Lists of a configuration with an entry for each layer."""


def layers_of(model: nn.Module) -> str:
    """Return the path of a decoder's list of layers. Raises UserError if there is none of the configuration's length."""
    config: Any = getattr(model, "config", None)
    count = getattr(config, "num_hidden_layers", 0)
    lists: list[str] = [path for path, each in model.named_modules() if isinstance(each, nn.ModuleList) and len(each) == count]
    if not lists:
        raise UserError(f"{type(model).__name__} has no list of layers", "give a decoder of Hugging Face")
    return lists[0]


def within_layers(structures: Structures, path: str) -> Structures:
    """Return the structures that belong to one decoder layer. The width between the layers stays: all heads and rows read it.

    Args:
        path: of the list of decoder layers.
    """

    def places(parts: Iterable[ParameterSlice]) -> set[str]:
        return {part.parameter.removeprefix(f"{path}.").partition(".")[0] for part in parts}

    return structures.only(each for each in structures.every if len(places(each.slices)) == 1)


def without_layers(model: nn.Module, settings: Mapping[str, Any]) -> nn.Module:
    """Remove layers from a copy of a network, and renumber the others for their caches.

    Args:
        settings: ``kept``: the numbers of the layers that stay.
    """
    kept = [int(each) for each in settings["kept"]]
    path = layers_of(model)
    parent, _, name = path.rpartition(".")
    layers = model.get_submodule(path)
    assert isinstance(layers, nn.ModuleList)
    for number, old in enumerate(kept):
        for module in layers[old].modules():
            if getattr(module, "layer_idx", None) == old:
                module.layer_idx = number  # type: ignore[assignment]
    setattr(model.get_submodule(parent), name, nn.ModuleList(layers[old] for old in kept))
    config = copy.deepcopy(model.config)
    for each in BY_LAYER:
        values = getattr(config, each, None)
        if isinstance(values, list):
            setattr(config, each, [values[old] for old in kept])
    config.num_hidden_layers = len(kept)  # type: ignore[union-attr]
    for module in model.modules():
        if getattr(module, "config", None) is not None:
            module.config = config
    return model
