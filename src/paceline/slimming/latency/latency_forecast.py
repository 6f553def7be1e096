"""Forecast of latencies of a network slimmed in even steps, before any training: narrower layers, low-rank layers, zeros."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from paceline.slimming.latency.layer_times import REST, LayerTimes
from paceline.slimming.latency.onnx_nodes import OnnxNode
from paceline.slimming.methods.low_rank import most_ranks
from paceline.slimming.methods.low_rank_choice import ROUND_TO, WORTH, splittable
from paceline.slimming.structures.shrink import BYTES, module_bytes, weight_bytes
from paceline.slimming.structures.structures import Structures

Varied = Literal["width", "rank", "sparsity"]
Timed = tuple[str, OnnxNode, float]
"""An operation of ``LayerTimes.nodes``: name, widths, seconds."""
WIDTHS, SHOWN_WIDTHS = tuple(each / 32 for each in range(31, 0, -1)), (0.75, 0.5, 0.25, 0.125)
RANKS = (0.5, 0.25, 0.125)
SHOWN_SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Prospect:
    """The whole network after one step, which is the same in every layer that takes it.

    Attributes:
        share: share of its structures that a layer keeps, of its full rank that it keeps, or of its weights that are zero.
        layers: number of layers that become smaller.
        seconds: on this machine. ``weight_bytes``: bytes of all weights, in fp32.
        nodes: the operations that are left, for ``edge_times.on_device``; ``rest_s``: seconds beyond them.
    """

    share: float
    layers: int
    seconds: float
    weight_bytes: float
    nodes: tuple[Timed, ...] = ()
    rest_s: float = 0.0

    @classmethod
    def of(cls, share: float, layers: int, weight_bytes: float, nodes: Iterable[Timed], rest_s: float) -> Prospect:
        """Return a prospect whose seconds are the sum of its operations and the remaining time."""
        nodes = tuple(nodes)
        return cls(share, layers, sum(took for *_, took in nodes) + rest_s, weight_bytes, nodes, rest_s)


@dataclass(frozen=True)
class Prospects:
    """Possible results of a method.

    Attributes:
        every: from the least change to the most. ``shown``: shares of the rows to show.
        kept: layers that no step makes smaller, with reasons. ``notes``: description of the steps.
        only_here: reason why they are unknown on another processor; empty if they are known.
    """

    varied: Varied
    every: tuple[Prospect, ...]
    shown: tuple[float, ...]
    kept: Mapping[str, str]
    notes: tuple[str, ...] = ()
    only_here: str = ""


def of_widths(structures: Structures, times: LayerTimes) -> Prospects:
    """Forecast with the same share of structures in every layer."""

    def narrow(share: float) -> Prospect:
        gone = alike_removed(structures, share)
        layers = sum(any(each.number in gone for each in every) for every in structures.layers().values())
        return Prospect.of(share, layers, weight_bytes(structures, gone), times.nodes(gone), times.by_layer(gone)[REST])

    return Prospects("width", tuple(map(narrow, WIDTHS)), SHOWN_WIDTHS, dict(structures.kept))


def alike_removed(structures: Structures, share: float) -> set[int]:
    """Return the structures to remove if every layer keeps the same share. Kernels are kept: they have no widths."""
    layers = structures.without_kernels().layers().values()
    return {each.number for every in layers for each in every[max(1, round(len(every) * share)) :]}


def of_ranks(model: nn.Module, inputs: tuple[Any, ...], times: LayerTimes, threads: int = 1) -> Prospects:
    """Forecast with each layer that gains split in two, at the same share of its full rank (``LayerTimes.low_rank``).

    Args:
        threads: number of threads of the times.
    """
    calls, kept = splittable(model, inputs)
    whole = _by_name(times.nodes())
    kept |= {name: "it is not timed alone" for name in calls if name not in whole}
    weights = {name: model.get_submodule(name).get_parameter("weight") for name in calls if name in whole}
    full = {name: most_ranks(weight, "svd")[0] for name, weight in weights.items()}
    kept |= {
        name: f"its full rank is {most}; ranks are multiples of {ROUND_TO}" for name, most in full.items() if most <= ROUND_TO
    }
    gained: set[str] = set()

    def thin(share: float) -> Prospect:
        nearest = {name: max(ROUND_TO, round(share * most / ROUND_TO) * ROUND_TO) for name, most in full.items()}
        ranks = {name: rank for name, rank in nearest.items() if rank < full[name]}
        pairs = _by_name(times.low_rank_nodes(ranks, threads))
        faster = [name for name in ranks if _seconds(pairs[name]) < WORTH * _seconds(whole[name])]
        gained.update(faster)
        size = module_bytes(model)
        for name in faster:
            rows, columns = len(weights[name]), weights[name][0].numel()
            size += BYTES * (ranks[name] * (rows + columns) - rows * columns)
        nodes = (each for name in whole for each in (pairs if name in faster else whole)[name])
        return Prospect.of(share, len(faster), size, nodes, times.by_layer()[REST])

    every = tuple(map(thin, RANKS))
    slow = {name: "no split of it is predicted to be faster" for name in full if name not in gained and name not in kept}
    note = f"Ranks are multiples of {ROUND_TO}. Layers are split in two where that is faster here; `force` also tries three."
    return Prospects("rank", every, RANKS, kept | slow, (note,))


def _by_name(nodes: Iterable[Timed]) -> dict[str, list[Timed]]:
    found: dict[str, list[Timed]] = defaultdict(list)
    for each in nodes:
        found[each[0]].append(each)
    return dict(found)


def _seconds(nodes: Iterable[Timed]) -> float:
    return sum(took for *_, took in nodes)
