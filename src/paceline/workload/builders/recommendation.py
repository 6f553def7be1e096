"""Layer table of DLRM from its dimensions, without torch, with either kind of interaction.

Dense features go through a small network, sparse ones through embedding tables whose rows are summed; all vectors interact, and
another network gives one logit. Sources: Naumov et al. 2019 (DLRM), arXiv:1906.00091; Wang et al. 2021 (DCN V2),
arXiv:2008.13535, section 3.4, cross layers of low rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import MappingProxyType

from paceline.workload.builders.embedding_tables import EmbeddingTables
from paceline.workload.builders.layer_builders import INDEX, WORD, LayerSpec, elementwise, lay_out, linear, memory, product
from paceline.workload.layers import Coverage, LayerTable

_UPDATE_KERNELS = 6
"""Kernels of a fused backward pass of all tables: sort the indices, find equal ones, update rows. Assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderShape:
    """Dimensions of a DLRM.

    Attributes:
        rows: rows of each table. ``looked_up``: rows that a sample reads of each, which are summed.
        width: width of a row. ``dense``: features that are numbers.
        bottom, top: widths of the layers before and after the interaction.
        cross: number of cross layers, and their rank; none: products of all pairs of vectors.
        state: numbers of optimizer state for each row: 1 of row-wise Adagrad, 0 of SGD.
    """

    rows: tuple[int, ...]
    looked_up: tuple[int, ...]
    width: int = 128
    dense: int = 13
    bottom: tuple[int, ...] = (512, 256, 128)
    top: tuple[int, ...] = (1024, 1024, 512, 256, 1)
    cross: tuple[int, int] | None = None
    state: int = 0

    @property
    def vectors(self) -> int:
        """Number of vectors that interact."""
        return len(self.rows) + 1


def recommender(shape: RecommenderShape, *, name: str = "", source: str = "") -> LayerTable:
    """Return the layer table of one training step; a sample is a pair of a user and an item."""
    d, tables = shape.width, len(shape.rows)
    bottom = _network("bottom", (shape.dense, *shape.bottom))
    interact = _cross(shape) if shape.cross else _pairs(shape)
    wide = shape.vectors * d if shape.cross else shape.vectors * (shape.vectors - 1) // 2 + d
    top = _network("top", (wide, *shape.top))[:-1]  # the logit has no activation
    parts = [*bottom, _lookups(shape), *interact, *top, elementwise("loss", "loss", (2, 8 * WORD), (2, 8 * WORD), 2 * WORD)]
    layers, parameters = lay_out(parts)
    ops = sum(operation.calls for layer in layers for operation in layer.operations)
    return LayerTable(
        name=name or "recommender",
        layers=layers,
        parameters=parameters,
        input_bytes=WORD * shape.dense + INDEX * sum(shape.looked_up),
        sample="user and item",
        source=source,
        coverage=Coverage(ops=ops, known=ops),
        tables=EmbeddingTables(
            layer=len(bottom),
            elements=sum(shape.rows) * d,
            bytes=WORD * tables * d,
            state=shape.state / shape.width,
            optimizer="row-wise Adagrad" if shape.state else "SGD",
        ),
    )


def _network(name: str, widths: tuple[int, ...]) -> list[LayerSpec]:
    parts = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        x = WORD * outputs
        parts += [linear(f"{name}.{i}", 1, inputs, outputs), elementwise(f"{name}.{i}.act", "ReLU", (1, 2 * x), (1, 3 * x), x)]
    return parts


def _lookups(shape: RecommenderShape) -> LayerSpec:
    """Return look-ups: rows are read, summed and written as vectors, and the backward pass reads and writes them again."""
    count = sum(shape.looked_up)
    moved, vectors, indices = WORD * count * shape.width, WORD * len(shape.rows) * shape.width, INDEX * count
    operations = (
        memory(False, 1, indices + moved + vectors),
        memory(True, _UPDATE_KERNELS, 4 * indices + vectors + 2 * moved),
    )
    return LayerSpec("tables", "EmbeddingBag", operations, indices, (), indices)


def _pairs(shape: RecommenderShape) -> list[LayerSpec]:
    """Return the products of all pairs of vectors, each once, and the dense features' vector: a fused kernel (NVIDIA
    DeepLearningExamples, PyTorch/Recommendation/DLRM, ``dot_based_interact``), whose backward pass is one of two products.
    """
    f, d = shape.vectors, shape.width
    x, kept = WORD * f * d, WORD * (f * (f - 1) / 2 + d)
    operations = (product(f, f, d, 1, x + kept, False), product(f, d, f, 1, (2 * x + kept) / 2, True, calls=2))
    return [LayerSpec("interact", "Interaction", operations, x, (), x / 2)]


def _cross(shape: RecommenderShape) -> list[LayerSpec]:
    """Return the layers of ``x0 * (W V x + b) + x``."""
    assert shape.cross is not None
    layers, rank = shape.cross
    wide = shape.vectors * shape.width
    x = WORD * wide
    parts = [elementwise("interact", "Concat", (1, 2 * x), (1, 2 * x))]
    for i in range(layers):
        parts += [
            linear(f"cross.{i}.down", 1, wide, rank, bias=False, sums=1),
            linear(f"cross.{i}.up", 1, rank, wide),
            elementwise(f"cross.{i}.sum", "Cross", (2, 6 * x), (3, 8 * x), x),
        ]
    return parts


_DLRM = "Naumov et al. 2019, arXiv:1906.00091; MLPerf v0.7 to v2.1: Criteo Terabyte, tables of at most 40 M rows"
_DCN = "Wang et al. 2021 (DCN V2), arXiv:2008.13535; MLPerf v3.0: Criteo Terabyte, several rows a feature"
_ROWS = (39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938, 155, 4, 976, 14)
_MORE_ROWS = (39979771, 25641295, 39664984, 585935, 12972, 108, 36)
_HOT_ROWS = (
    *(40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938, 155, 4, 976, 14),
    *(40000000, 40000000, 40000000, 590152, 12973, 108, 36),
)
_HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
RECOMMENDERS: Mapping[str, tuple[RecommenderShape, str]] = MappingProxyType(
    {
        "dlrm": (RecommenderShape(rows=(*_ROWS, *_MORE_ROWS), looked_up=(1,) * 26), _DLRM),
        "dlrm-dcnv2": (RecommenderShape(rows=_HOT_ROWS, looked_up=_HOT, cross=(3, 512), state=1), _DCN),
    }
)
"""Shape and source of each. Adagrad of MLPerf v3.0 keeps one number a row."""


@cache
def named_recommender(name: str) -> LayerTable:
    """Return the table of one of ``RECOMMENDERS``."""
    shape, source = RECOMMENDERS[name]
    return recommender(shape, name=name, source=source)
