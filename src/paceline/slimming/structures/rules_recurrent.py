"""Rules of recurrent layers and cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.array_types import Ints
from paceline.slimming.structures.rules import Ties, rule
from paceline.slimming.structures.structures import Labelled, vector

RECURRENT = (
    *("lstm", "gru", "rnn_tanh", "rnn_relu"),
    *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
)
"""Operations with a state as second operand."""
GATES = {"lstm": 4, "gru": 3}
"""Rows of the layer's weights per hidden unit: gates of a recurrent layer; 1 for others."""


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> list[Labelled]:
    """Tie each hidden unit of recurrent layers to its rows of every gate, its column of the recurrent weights and the next
    layer's inputs (intrinsic sparse structures, Wen et al., ICLR 2018, section 3). Both directions lose the same units:
    PyTorch's layers have one width for them.
    """
    inputs, states, weights, has_biases, layers, _, _, both, batch_first = operands[:9]
    directions, per = 2 if both else 1, len(weights) // (layers * (2 if both else 1))
    entering = ties.vector_of(inputs, -1)
    leaving: list[Ints] = []
    cells: list[Ints] = []
    for start in range(0, len(weights), per):
        into, again, *rest = weights[start : start + per]
        biases, projection = rest[: 2 if has_biases else 0], rest[2 if has_biases else 0 :]
        hidden = _gated(ties, ties.name, entering, (into, again, *biases))
        out = hidden
        if projection:
            ties.tie(ties.vector_of(projection[0], 1), hidden)
            out = ties.vector_of(projection[0], 0)
        ties.tie(ties.vector_of(again, 1), out)
        leaving.append(out)
        cells.append(hidden)
        if len(leaving) % directions == 0:
            for units in (leaving, cells):
                ties.tie(units[-1], units[-directions])
            entering = np.concatenate(leaving[-directions:])
    given = states if isinstance(states, list) else [states]
    for state, units in zip(given, (leaving, cells), strict=False):
        _begin(ties, state, np.stack(units))
    rank = len(inputs.shape)
    batch = () if rank == 2 else (inputs.shape[0 if batch_first else 1],)
    ends = (np.stack(units) for units in (leaving, cells)[: len(given)])
    last = (
        Labelled((len(end), *batch, end.shape[1]), (end.reshape(len(end), *(1,) * len(batch), -1),), layers) for end in ends
    )
    return [Labelled(shape, (vector(entering, -1, rank),)), *last]


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def recurrent_cell(ties: Ties, operands: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Tie the units of one step of a recurrent layer, as in ``recurrent``."""
    inputs, states, again, weights = operands[0], operands[1], operands[3], [*operands[2:]]
    hidden = _gated(ties, ties.name.removesuffix("_cell"), ties.vector_of(inputs, -1), weights)
    ties.tie(ties.vector_of(again, 1), hidden)
    for state in states if isinstance(states, list) else [states]:
        _begin(ties, state, hidden[None])
    end = Labelled(shape, (vector(hidden, -1, len(shape)),))
    return [end, end] if isinstance(states, list) else end


def _gated(ties: Ties, kind: str, entering: Ints, weights: Sequence[Any]) -> Ints:
    """Tie the hidden units of one layer and direction: the rows of input weights, recurrent weights and biases."""
    gates = GATES.get(kind, 1)
    hidden: Ints = ties.vector_of(weights[0], 0).reshape(gates, -1)[0]
    for gated in weights:
        if isinstance(gated, Labelled):
            ties.tie(ties.vector_of(gated, 0).reshape(gates, -1), hidden[None])
    ties.tie(ties.vector_of(weights[0], 1), entering)
    return hidden


def _begin(ties: Ties, state: Labelled | None, units: Ints) -> None:
    """Tie a given state to the layers (layers, units) that continue from it. With None, layers start from zeros; a state
    without units is the caller's (``given_tensors.NarrowStates``).
    """
    if state is None:
        return
    if not state.fields:  # the caller's, which the smaller network narrows
        return
    if state.layers:
        ties.tie(state.fields[0].reshape(len(units), -1), units)
    else:  # one tensor holds all layers, so they keep one width
        ties.tie(ties.vector_of(state, -1), units)
