"""Muon's tensors by name and shape."""

from __future__ import annotations

import pytest

from paceline.strategy.updates.matrix_rule import EMBEDDING, LAST, OUTSIDE, VECTOR, rest_reasons

CASES = {
    "transformer": (
        {"wte.weight": (9, 4), "h.0.w.weight": (4, 4), "h.0.ln.weight": (4,), "head.weight": (9, 4)},
        {"wte.weight": EMBEDDING, "h.0.ln.weight": VECTOR, "head.weight": OUTSIDE},
    ),
    "tied": ({"wte.weight": (9, 4), "h.0.w.weight": (4, 4)}, {"wte.weight": EMBEDDING}),
    "stage of a pipeline": ({"layers.7.mlp.down.weight": (4, 8)}, {}),
    "plain stack": ({"0.weight": (4, 4), "2.weight": (2, 4)}, {"2.weight": LAST}),
    "no blocks": ({"fc1.weight": (4, 4), "fc2.weight": (2, 4)}, {"fc2.weight": LAST}),
    "classifier": ({"features.0.weight": (4, 3, 3, 3), "classifier.6.weight": (9, 4)}, {"classifier.6.weight": LAST}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rest(case: str) -> None:
    shapes, rest = CASES[case]
    assert rest_reasons(shapes.items()) == rest


def test_layers_tell_embeddings_that_names_do_not() -> None:
    assert rest_reasons([("0.weight", (9, 4)), ("1.weight", (4, 4)), ("2.weight", (4, 4))], {"0.weight"}) == {
        "0.weight": EMBEDDING,
        "2.weight": LAST,
    }
