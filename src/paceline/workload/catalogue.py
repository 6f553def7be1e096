"""Workloads by name: tables of the package, which need no torch, or a traced ``module:function``."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

from paceline.errors import UserError, unknown
from paceline.workload.factory import load_factory
from paceline.workload.layers import LayerTable
from paceline.workload.recommendation import RECOMMENDERS, named_recommender
from paceline.workload.shapes import SHAPES
from paceline.workload.trace import trace

_ZOO = files("paceline.workload") / "zoo"


@cache
def traced() -> tuple[str, ...]:
    """Sorted names of the networks whose module is in the package too."""
    return tuple(sorted(entry.name.removesuffix(".json") for entry in _ZOO.iterdir() if entry.name.endswith(".json")))


@cache
def names() -> tuple[str, ...]:
    """Sorted names of all networks of the package."""
    return tuple(sorted({*traced(), *SHAPES, *RECOMMENDERS}))


@cache
def _folded() -> dict[str, str]:
    return {_fold(name): name for name in names()}


def _fold(name: str) -> str:
    """``name`` in the form for look-ups: in lower case, with one kind of separator."""
    return re.sub(r"[\s_-]+", "-", name.strip().casefold())


def canonical(name: str) -> str:
    """The package's spelling of a name, for any case and separators; unknown names and ``module:function`` are unchanged."""
    return name if ":" in name else _folded().get(_fold(name), name)


def layer_table(name: str, seq_len: int | None = None, *, fused_attention: bool = True) -> LayerTable:
    """The layer table of a named network, or of the result of ``module:function`` (which needs torch).

    Args:
        name: in any case, with spaces, dashes or underscores: ``Llama-2-7B``, ``llama_2_7b``.
        seq_len: tokens of one sample of a transformer; None: the network's own length.
        fused_attention: a transformer does not write scores to memory; else it runs as eager PyTorch without FlashAttention.

    Raises:
        UserError: an unknown name, with the nearest ones; a length for a network without one, or a too large one; or as
            ``load_factory`` and ``trace``.
    """
    name = canonical(name)
    own = seq_len is None and fused_attention
    if not own and name not in SHAPES and (":" in name or name in names()):
        raise UserError(f"{name} has no sequence length to choose", f"one of {', '.join(SHAPES)} has")
    if ":" in name:
        return trace(load_factory(name), name=name, source=name)
    if name not in names():
        raise unknown("workload", name, names(), "a network of your own is module:function")
    if name in RECOMMENDERS:
        return named_recommender(name)
    return _table(name) if own and name in traced() else _shaped(name, seq_len, fused_attention)


@cache
def _table(name: str) -> LayerTable:
    return LayerTable.from_json(json.loads((_ZOO / f"{name}.json").read_text(encoding="utf-8")))


@cache
def _shaped(name: str, seq_len: int | None, fused_attention: bool) -> LayerTable:
    return SHAPES[name].table(name, seq_len, fused_attention)
