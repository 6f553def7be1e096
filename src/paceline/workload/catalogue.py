"""Workloads by name: tables that come with the package, read without torch; or ``module:function``, traced."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files

from paceline.errors import UserError, unknown
from paceline.workload.factory import load_factory
from paceline.workload.layers import LayerTable
from paceline.workload.shapes import SHAPES
from paceline.workload.trace import trace

_ZOO = files("paceline.workload") / "zoo"


@cache
def traced() -> tuple[str, ...]:
    """The names of networks whose module comes with the package too, sorted."""
    return tuple(sorted(entry.name.removesuffix(".json") for entry in _ZOO.iterdir() if entry.name.endswith(".json")))


@cache
def names() -> tuple[str, ...]:
    """The names that come with the package, sorted."""
    return tuple(sorted({*traced(), *SHAPES}))


@cache
def _folded() -> dict[str, str]:
    return {_fold(name): name for name in names()}


def _fold(name: str) -> str:
    """``name`` without what does not matter in a look-up: case, and which separator."""
    return re.sub(r"[\s_-]+", "-", name.strip().casefold())


def canonical(name: str) -> str:
    """A name as the package has it, whatever its case and separators; others, and ``module:function``, as they are."""
    return name if ":" in name else _folded().get(_fold(name), name)


def layer_table(name: str, seq_len: int | None = None, *, fused_attention: bool = True) -> LayerTable:
    """The layer table of a named network, or of the one that ``module:function`` returns (this needs torch).

    Args:
        name: case does not matter, nor whether a space, a dash or an underscore separates: ``Llama-2-7B``, ``llama_2_7b``.
        seq_len: tokens of one sample, for a transformer; its own length when None.
        fused_attention: of a transformer: scores are not written to memory. Else as eager PyTorch without FlashAttention.

    Raises:
        UserError: an unknown name, with the nearest ones; a length for a network that has none, or more than it can
            take; or what ``load_factory`` and ``trace`` raise.
    """
    name = canonical(name)
    own = seq_len is None and fused_attention
    if not own and name not in SHAPES and (":" in name or name in names()):
        raise UserError(f"{name} has no sequence length to choose", f"one of {', '.join(SHAPES)} has")
    if ":" in name:
        return trace(load_factory(name), name=name, source=name)
    if name not in names():
        raise unknown("workload", name, names(), "a network of your own is module:function")
    return _table(name) if own and name in traced() else _shaped(name, seq_len, fused_attention)


@cache
def _table(name: str) -> LayerTable:
    return LayerTable.from_json(json.loads((_ZOO / f"{name}.json").read_text(encoding="utf-8")))


@cache
def _shaped(name: str, seq_len: int | None, fused_attention: bool) -> LayerTable:
    return SHAPES[name].table(name, seq_len, fused_attention)
