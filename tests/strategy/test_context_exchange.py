"""Exchanges of context and of expert parallelism."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.strategy import Parallelism
from paceline.strategy.context_exchange import CONTEXT_EXCHANGES, EXPERT_EXCHANGES


def test_what_exists() -> None:
    assert [(name, value.passes_around) for name, value in CONTEXT_EXCHANGES.items()] == [("ring", True), ("all_to_all", False)]
    assert [(name, value.once_per_node) for name, value in EXPERT_EXCHANGES.items()] == [
        ("all_to_all", False),
        ("once_per_node", True),
    ]
    with pytest.raises(UserError, match="unknown context exchange 'rings'"):
        Parallelism(context=2, context_exchange="rings")
