"""The declared compressions: which exchange carries each, and what adds it up."""

from __future__ import annotations

import pytest

from paceline.strategy import COMPRESSIONS, carriers
from paceline.strategy.compression.compressions import DENSE

ALL = ["allreduce", "sharded", "parameter_server", "ring", "allgather", "hierarchical"]
CODED = ALL[1:]
CARRIERS = {
    "dense": [*ALL, "switch"],
    "bf16": ALL,
    "terngrad": [*CODED, "switch"],
    "inceptionn": ["ring", "sharded", "parameter_server", "allgather", "hierarchical"],
    "topk": ["allgather", "sharded", "parameter_server", "ring", "hierarchical"],
    "powersgd": ["allreduce"],
}
"""Exchanges of each compression, the default first; ``CODED`` for the others."""


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_the_exchanges_of_a_compression(name: str) -> None:
    assert [exchange.name for exchange in carriers(COMPRESSIONS[name])] == CARRIERS.get(name, CODED)


def test_only_dense_compresses_nothing_and_cards_do_inceptionn() -> None:
    assert [c for c in COMPRESSIONS.values() if not c.compresses] == [DENSE]
    assert [name for name, c in COMPRESSIONS.items() if c.in_card] == ["inceptionn", "inceptionn-scaled"]
    assert [name for name, c in COMPRESSIONS.items() if not c.can_be_placed] == ["dense", "powersgd"]
