"""Matrices of tensors: which tensors are Muon's, and the matrices that each of them consists of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod, sqrt

from torch import Tensor, nn

from paceline.errors import UserError, unknown
from paceline.names import did_you_mean
from paceline.strategy.updates.matrix_rule import VECTOR, rest_reasons

Rule = str | Sequence[str] | Callable[[str, Tensor], bool]
"""``hidden``, patterns of names that AdamW takes such as ``["head.*"]``, or ``f(name, tensor) -> bool``, true for AdamW's."""
Split = Mapping[str, int | Sequence[int]]
"""Pattern of names -> the number of equal matrices stacked by rows, such as 3 for a fused QKV, or the rows of each."""
RULES = ("hidden", "vectors")
"""``hidden``: ``rest_reasons``; ``vectors``: AdamW takes only tensors of fewer than two dimensions."""
SCALES: Mapping[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: sqrt(max(1.0, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * sqrt(max(rows, columns)),
}
"""Factor of the rate for a matrix: that of Jordan et al. 2024, and that of Liu et al. 2025, Muon is Scalable for LLM Training
(Moonlight), arXiv:2502.16982, equation 4, with which updates are as large as AdamW's."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One matrix of a tensor.

    Attributes:
        start, stop: its range of the tensor's first dimension.
        rows, columns: its shape.
    """

    start: int
    stop: int
    rows: int
    columns: int


def pieces(name: str, shape: Sequence[int], stacked: bool, split: Split) -> list[Piece]:
    """Return the matrices of a tensor.

    A tensor of two dimensions is one matrix, or several by ``split``. A convolution is one matrix, of all inputs of each
    output. Other tensors of three dimensions are stacks of matrices, such as experts.

    Args:
        stacked: whether the first of three dimensions counts matrices.

    Raises:
        UserError: a split that does not fit.
    """
    parts = next((value for pattern, value in split.items() if fnmatchcase(name, pattern)), 1)
    if stacked and len(shape) == 3:
        if parts != 1:
            raise UserError(f"{name} is a stack of {shape[0]} matrices, and split divides matrices", "leave it out of split")
        return [Piece(i, i + 1, shape[1], shape[2]) for i in range(shape[0])]
    rows, columns = shape[0], prod(shape[1:])
    if isinstance(parts, int):
        if parts < 1 or rows % parts:
            raise UserError(
                f"split={parts} of {name}, which has {rows} rows", "give a divisor of them, or the rows of each part"
            )
        parts = [rows // parts] * parts
    if sum(parts) != rows or min(parts) < 1:
        raise UserError(f"split={list(parts)} of {name}, which has {rows} rows", "give parts with that sum")
    ends = [sum(parts[: i + 1]) for i in range(len(parts))]
    return [Piece(end - size, end, size, columns) for size, end in zip(parts, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class Division:
    """Division of a model's tensors between Muon and AdamW. Printing it shows a table.

    Attributes:
        matrices: names of Muon's tensors, with their matrices.
        rest: names of AdamW's tensors, with the reason.
    """

    matrices: Mapping[str, Sequence[Piece]]
    rest: Mapping[str, str]

    def __str__(self) -> str:
        width = max((len(name) for name in (*self.matrices, *self.rest)), default=0)
        lines = [f"{name:{width}}  muon   {_described(found)}" for name, found in self.matrices.items()]
        return "\n".join([*lines, *(f"{name:{width}}  adamw  {reason}" for name, reason in self.rest.items())])


def _described(found: Sequence[Piece]) -> str:
    sizes = [f"{piece.rows} x {piece.columns}" for piece in found]
    return f"{len(sizes)} of {sizes[0]}" if len(sizes) > 1 and len(set(sizes)) == 1 else ", ".join(sizes)


def check_patterns(rule: Rule, split: Split, names: Sequence[str]) -> None:
    """Raise UserError for a pattern that matches no name, because a misspelt one would silently change nothing."""
    for option, patterns in (("rule", [] if isinstance(rule, str) or callable(rule) else rule), ("split", split)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                near = ", ".join(did_you_mean(pattern, names, 3))
                raise UserError(f"the pattern {pattern!r} in {option} matches no parameter", f"nearest names: {near}")


def divide(
    tensors: Sequence[tuple[str, Tensor]], rule: Rule, split: Split, embeddings: Collection[str], convolutions: Collection[str]
) -> Division:
    """Return the division of named tensors by a rule.

    Args:
        embeddings, convolutions: names of weights of such layers, as far as they are known.

    Raises:
        UserError: an unknown rule, a split that does not fit.
    """
    rest = _rest(tensors, rule, embeddings)
    matrices = {
        name: pieces(name, tensor.shape, name not in convolutions, split) for name, tensor in tensors if name not in rest
    }
    return Division(matrices, rest)


def _rest(tensors: Sequence[tuple[str, Tensor]], rule: Rule, embeddings: Collection[str]) -> Mapping[str, str]:
    if rule == "hidden":
        return rest_reasons([(name, tuple(tensor.shape)) for name, tensor in tensors], embeddings)
    reasons = {name: VECTOR for name, tensor in tensors if tensor.ndim < 2}
    if rule == "vectors":
        return reasons
    if isinstance(rule, str):
        raise unknown("rule", rule, RULES)
    if callable(rule):
        return reasons | {name: "by the rule" for name, tensor in tensors if tensor.ndim > 1 and rule(name, tensor)}
    return reasons | {
        name: "by a pattern"
        for name, tensor in tensors
        if tensor.ndim > 1 and any(fnmatchcase(name, pattern) for pattern in rule)
    }


def layer_weights(model: nn.Module) -> tuple[set[str], set[str]]:
    """Return the names of the weights of embeddings, and of convolutions."""
    embeddings, convolutions = set(), set()
    for prefix, module in model.named_modules():
        name = f"{prefix}.weight" if prefix else "weight"
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            embeddings.add(name)
        elif isinstance(module, nn.modules.conv._ConvNd):
            convolutions.add(name)
    return embeddings, convolutions
