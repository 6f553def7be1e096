"""Numbers of workers, batches, servers and ranks that do not go together are refused with the nearest legal ones."""

from __future__ import annotations

from typing import Any

import pytest

from facts import facts
from paceline.errors import UserError
from paceline.strategy import Strategy
from paceline.strategy.worker_counts import multiples


def test_multiples_on_both_sides() -> None:
    assert (multiples(10, 4), multiples(3, 4), multiples(4, 4)) == ("8 or 12", "4", "4")


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
