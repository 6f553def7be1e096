"""Equal widths over all layers of a decoder, as a configuration of Hugging Face can state them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from paceline.slimming.language.stated_config import is_hugging_face, stated_config
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.fewer_layers import layers_of
from paceline.slimming.structures.shrink import load
from paceline.slimming.structures.structures import Structures

UNSTATED = "config.json cannot state fewer; widths=free removes them"
"""Reason why a layer stays whole."""


@dataclass(frozen=True)
class EqualWidths:
    """Structures whose numbers a configuration can state.

    Attributes:
        groups: names of layers that keep one width. ``whole``: kinds of layers that stay whole since a configuration cannot
            state their widths, such as ``self_attn.q_proj.weight``.
    """

    structures: Structures
    groups: tuple[tuple[str, ...], ...]
    whole: tuple[str, ...]


def is_decoder(model: nn.Module) -> bool:
    """Return whether a model is a decoder of Hugging Face."""
    config: Any = getattr(model, "config", None)
    generates = getattr(model, "can_generate", lambda: False)
    return is_hugging_face(model) and bool(generates()) and not getattr(config, "is_encoder_decoder", False)


def equal_widths(model: nn.Module, structures: Structures) -> EqualWidths | None:
    """Return the structures of a decoder that may go in equal numbers from all layers; None if a configuration states none.

    Residual branches stay: a configuration cannot state their absence.
    """
    path, every = layers_of(model), replace(structures, branches=())
    stated, whole = stated_kinds(model, every, path)
    if stated is None:
        return None
    by_kind = kinds(every, path)
    stated.kept.update({layer: UNSTATED for kind in whole for layer in by_kind[kind]})
    return EqualWidths(stated, tuple(map(tuple, kinds(stated, path).values())), whole)


def kinds(structures: Structures, path: str) -> dict[str, list[str]]:
    """Return the layers by kind, such as the MLPs of all decoder layers; those with other numbers of structures are apart.

    Args:
        path: of the list of decoder layers.
    """
    found: dict[tuple[str, int], list[str]] = {}
    for layer, every in structures.layers().items():
        _, inside, own = layer.partition(f"{path}.")
        found.setdefault((own.partition(".")[2] if inside else layer, len(every)), []).append(layer)
    repeated = {name for name, _ in found if sum(other == name for other, _ in found) > 1}
    return {f"{name} of {count}" if name in repeated else name: layers for (name, count), layers in found.items()}


def stated_kinds(model: nn.Module, structures: Structures, path: str) -> tuple[Structures | None, tuple[str, ...]]:
    """Return the structures whose widths a configuration can state, None if there are none, and the other kinds of layers.

    Each kind is tried with half of its structures.
    """
    layers, good, bad = structures.layers(), set[str](), []
    for kind, names in kinds(structures, path).items():
        gone = {each.number for name in names for each in layers[name][1::2]}
        if stated_config(model, load(SlimPlan.of(structures, gone), model)) is not None:
            good.update(names)
        else:
            bad.append(kind)
    left = structures.only(each for each in structures.every if each.layer in good) if good else None
    return left, tuple(bad)
