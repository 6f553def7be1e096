"""Numbers of workers, batches, servers and ranks that do not go together are refused with the nearest legal ones."""

from __future__ import annotations

from typing import Any

import pytest

from facts import facts
from paceline.errors import UserError
from paceline.strategy import Strategy
from paceline.strategy.worker_counts import multiples, settled_batch


def test_multiples_on_both_sides() -> None:
    assert (multiples(10, 4), multiples(3, 4), multiples(4, 4)) == ("8 or 12", "4", "4")


def test_a_micro_batch_settles_batch_and_micro_steps() -> None:
    assert settled_batch(2, 16, 4) == (8, 1) and settled_batch(2, 16, 4, steps=3) == (24, 3)
    assert settled_batch(2, 16, 4, 32) == settled_batch(2, 16, 4, 32, 4) == (32, 4)
    with pytest.raises(UserError, match="33 is no multiple of 2 samples x 4 replicas; nearest legal: 32"):
        settled_batch(2, 16, 4, 33)
    with pytest.raises(UserError, match="2 samples x 4 replicas x 2 micro batches are 16"):
        settled_batch(2, 16, 4, 32, 2)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"exchange": "parameter_server", "servers": 16}, "16 servers among 8 workers"),
        ({"exchange": "hierarchical", "ranks_per_node": 3}, facts("8 workers", "3 ranks", "6 or 9")),
        ({"global_batch_size": 60}, facts("global batch 60", "8 workers", "56 or 64")),
        ({"grad_accum_steps": 3}, facts("64", "8 workers", "3 micro steps", "48 or 72")),
        (
            {"world_size": 1 << 17, "global_batch_size": 1 << 17, "exchange": "parameter_server"},
            "are more than exchange",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Strategy.of(**{"world_size": 8, "global_batch_size": 64, **choices})
