"""Peers that are killed, leave, join, come late, learn NaN or lose their store; 20 times in ``benchmarks/peer_faults.py``."""

from __future__ import annotations

import pytest

import peer_ranks
from distributed import launch_and_let_fail


@pytest.mark.everyday("killed-dense", others="long")
@pytest.mark.parametrize("compression", ["dense", "topk"])
@pytest.mark.parametrize("name", peer_ranks.CASES)
def test_the_others_go_on_with_equal_weights(name: str, compression: str) -> None:
    outcomes = launch_and_let_fail(peer_ranks.case, 3, name=name, compression=compression, timeout=100)
    assert peer_ranks.problems(name, outcomes) == []
