"""Plain dense transformers of a stated size: ``7b``, ``1.5B``, ``llama-70b``.

The size takes the published Llama whose number of parameters is nearest, by their ratio. If it is not within 2 %, depth and
width change by one factor, in whole layers and whole heads, and the feed-forward
network takes the difference, in steps of 64.
Vocabulary, heads of keys and length of sequences are those of the published one. Below a billion the vocabulary is Llama 2's,
and small widths keep the share of heads of keys.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil, log

from paceline.errors import UserError
from paceline.workload.builders.shapes import SHAPES
from paceline.workload.builders.transformer import TransformerShape, transformer
from paceline.workload.layers import LayerTable

FAMILY = (
    *("llama-2-7b", "llama-2-13b", "llama-30b", "llama-65b"),
    *("llama-3.2-1b", "llama-3.2-3b", "llama-3-8b", "llama-3-70b", "llama-3-405b"),
)
"""Published models whose shapes are scaled (Touvron et al. 2023, arXiv:2302.13971 and 2307.09288; Llama team 2024,
arXiv:2407.21783)."""
CLOSE = 0.02
"""Largest difference of parameters from the stated size."""
_LEAST, _MOST = 10e6, 20e12
_SMALL = 1e9
_STEP = 64
_FEW = 4  # heads of queries for one of keys, at least
_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
_SIZE = re.compile(r"(?P<word>llama|dense|transformer|model|llm)?[\s_-]*(?P<number>[0-9]+(?:\.[0-9]+)?)[\s_-]*(?P<unit>[mbt])")


def is_plain_size(name: str) -> bool:
    """Return whether a name is a size alone, or a size of a Llama or of a dense transformer."""
    return _SIZE.fullmatch(name.strip().casefold()) is not None


def sized_table(name: str, seq_len: int | None, fused_attention: bool) -> LayerTable:
    """Return the table of the transformer that a size means.

    Args:
        name: ``is_plain_size`` holds for it.
        seq_len: tokens of a sample; None: those of the published model.

    Raises:
        UserError: a size that no transformer has.
    """
    match = _SIZE.fullmatch(name.strip().casefold())
    assert match is not None
    size = float(match["number"]) * _UNITS[match["unit"]]
    if not _LEAST <= size <= _MOST:
        raise UserError(f"a transformer of {name} parameters", "give a size from 10m to 20t")
    if match["word"] == "llama" and (same := published_of(f"{match['number']}{match['unit']}")):
        table = SHAPES[same[-1]].table(same[-1], seq_len, fused_attention)
        others = f"; {' and '.join(same[:-1])} {'has' if len(same) == 2 else 'have'} that size too" if same[:-1] else ""
        return replace(table, notes=(f"{name}: {same[-1]} was taken, the newest Llama of that size{others}.",))
    shape, base = shape_of(size)
    source = f"{SHAPES[base].source}; {base}, scaled to {name}"
    length = SHAPES[base].seq_len if seq_len is None else seq_len
    table = transformer(shape, length, name=name, source=source, fused_attention=fused_attention)
    how = f"the shape of {base}" if shape == SHAPES[base].shape else f"{base} scaled"
    billions = f"{table.num_parameters / 1e9:.3g}" if size >= _SMALL else f"{table.num_parameters / 1e9:.2g}"
    note = (
        f"{name} names no model: a plain dense transformer of {billions} billion parameters was taken, {how}: {shape.layers} "
        f"layers of width {shape.hidden:,}, feed-forward {shape.ffn:,}, vocabulary {shape.vocabulary:,}. The name or the "
        "config.json of a model has its own shape."
    )
    return replace(table, notes=(note,))


def published_of(size: str) -> list[str]:
    """Return the published Llamas with a size in their name, such as ``70b``, the oldest first."""
    own = re.compile(rf"llama-([0-9.]+-)?{re.escape(size)}")
    return sorted((name for name in SHAPES if own.fullmatch(name)), key=lambda name: name.split("-")[1:-1])


def shape_of(size: float) -> tuple[TransformerShape, str]:
    """Return the shape with about ``size`` parameters, and the published model that was scaled."""
    base = min(FAMILY, key=lambda name: abs(log(_parameters(SHAPES[name].shape) / size)))
    whole = SHAPES[base].shape
    if size < _SMALL:
        whole = replace(whole, vocabulary=SHAPES[FAMILY[0]].shape.vocabulary)
    if abs(_parameters(whole) / size - 1) <= CLOSE:
        return whole, base
    low, high = 1e-3, 1e3
    while high / low > 1 + 1e-6:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if _parameters(_scaled(whole, middle)) < size else (low, middle)
    near = (_fitted(_scaled(whole, factor), size) for factor in (low, high))
    return min(near, key=lambda shape: abs(_parameters(shape) - size)), base


def _scaled(whole: TransformerShape, factor: float) -> TransformerShape:
    """Return a shape with depth and width times a factor, in whole layers and heads."""
    wide = whole.hidden // whole.heads
    heads = max(1, round(whole.heads * factor))
    keys = whole.kv_heads or whole.heads
    if keys != whole.heads:  # each head of keys has as many queries as the others
        if heads < _FEW * keys:
            keys = max(1, round(heads * keys / whole.heads))
        heads = max(keys, keys * round(heads / keys))
    return replace(
        whole,
        layers=max(1, round(whole.layers * factor)),
        hidden=heads * wide,
        heads=heads,
        kv_heads=heads if (whole.kv_heads or whole.heads) == whole.heads else keys,
        ffn=_STEP * ceil(whole.ffn * heads / whole.heads / _STEP),
    )


def _fitted(shape: TransformerShape, size: float) -> TransformerShape:
    """Return the shape with the feed-forward network that comes nearest to a number of parameters."""
    each = 3 * shape.hidden * shape.layers
    more = (size - _parameters(shape)) / each
    return replace(shape, ffn=max(_STEP, _STEP * round((shape.ffn + more) / _STEP)))


def _parameters(shape: TransformerShape) -> float:
    """Return the parameters of a Llama's shape."""
    head, keys = shape.hidden // shape.heads, shape.kv_heads or shape.heads
    attention = 2 * shape.hidden * head * (shape.heads + keys)
    block = attention + 3 * shape.hidden * shape.ffn + 2 * shape.hidden
    return shape.layers * block + (1 if shape.tied else 2) * shape.vocabulary * shape.hidden + shape.hidden
