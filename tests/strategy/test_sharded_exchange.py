"""Which exchanges reduce to owners; how they run is tested with the hook."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.strategy import COMPRESSIONS, GradientExchange
from paceline.strategy.sharded_exchange import check_to_owners, usual_exchange

USUAL = {
    "dense": ("allreduce", "allreduce"),
    "bf16": ("allreduce", "allreduce"),
    "bf16-coded": ("sharded", "sharded"),
    "fp8": ("sharded", "sharded"),
    "terngrad": ("sharded", "sharded"),
    "inceptionn": ("ring", "ring"),
    "inceptionn-scaled": ("sharded", "sharded"),
    "int8": ("sharded", "sharded"),
    "int4": ("sharded", "sharded"),
    "sign": ("sharded", "sharded"),
    "topk": ("allgather", "sharded"),
    "powersgd": ("allreduce", "allreduce"),
}
"""The exchange that nobody has named: of whole models, and where gradients are reduced to owners."""


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_usual_exchange(compression: str) -> None:
    usual = [usual_exchange(COMPRESSIONS[compression], to_owners).name for to_owners in (False, True)]
    assert tuple(usual) == USUAL[compression]
    assert GradientExchange(compression).exchange.name == USUAL[compression][0]


@pytest.mark.parametrize("exchange", ["sharded", "ring", "hierarchical"])
def test_legal_over_all_ranks(exchange: str) -> None:
    check_to_owners(GradientExchange("int8", exchange, ranks_per_node=4 if exchange == "hierarchical" else 1), False, 8)


@pytest.mark.parametrize("exchange", ["sharded", "ring", "allgather", "parameter_server"])
def test_legal_between_replicas(exchange: str) -> None:
    check_to_owners(GradientExchange("int8", exchange), True, 2)


@pytest.mark.parametrize(
    ("exchange", "replicated", "said"),
    [
        (GradientExchange("int8", "hierarchical", ranks_per_node=2), True, "a mesh with replicas is a hierarchy"),
        (GradientExchange("int8", "allgather"), False, "has no reduce-scatter"),
        (GradientExchange("powersgd"), False, "works on whole matrices"),
        (GradientExchange("terngrad", "switch"), False, "cards and switches"),
        (GradientExchange("int8", compress_pull=False), False, "no pull"),
    ],
)
def test_refused(exchange: GradientExchange, replicated: bool, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_to_owners(exchange, replicated, 8)
