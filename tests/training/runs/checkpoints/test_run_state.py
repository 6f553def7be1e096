"""Copies of a run's state; that a run goes on from it to the bit is asked in ``test_training_run``."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.training.runs.checkpoints.run_state import snapshot

LEAVES = st.one_of(st.integers(), st.text(max_size=3), st.none(), st.integers(0, 5).map(lambda n: torch.arange(float(n))))
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3), max_leaves=8
)


def tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return [tensor for item in items for tensor in tensors(item)]


@given(TREES, TREES)
def test_a_copy_is_equal_and_shares_no_memory(tree: Any, before: Any) -> None:
    old = snapshot(before)
    copy = snapshot(tree, old)
    assert repr(copy) == repr(tree)
    for tensor in tensors(tree):
        tensor += 1
    assert not tensors(tree) or all(
        a.numel() == 0 or not torch.equal(a, b) for a, b in zip(tensors(copy), tensors(tree), strict=True)
    )


def test_the_memory_of_an_earlier_copy_is_used_where_it_fits() -> None:
    first = snapshot({"a": torch.ones(4), "b": [torch.ones(2), 3]})
    places = first["a"].data_ptr(), first["b"][0].data_ptr()
    second = snapshot({"a": torch.zeros(4), "b": [torch.zeros(3), 4]}, first)
    assert second["a"].data_ptr() == places[0] and second["b"][0].data_ptr() != places[1]
    assert second["a"].tolist() == [0.0] * 4 and second["b"][0].tolist() == [0.0] * 3
