"""Values of choices: one object for each, found by name, the same after any copy."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from paceline.errors import UserError
from paceline.strategy import COMPRESSIONS, EXCHANGES, PLACES, SHARDINGS, GradientExchange, Parallelism
from paceline.strategy.choices.values import Value, chosen, plain
from paceline.strategy.context_exchange import CONTEXT_EXCHANGES, EXPERT_EXCHANGES
from paceline.strategy.offload import OFFLOADS
from paceline.strategy.pass_order import SCHEDULES

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "exchange": EXCHANGES,
    "place": PLACES,
    "sharding": SHARDINGS,
    "offload": OFFLOADS,
    "schedule": SCHEDULES,
    "context exchange": CONTEXT_EXCHANGES,
    "expert exchange": EXPERT_EXCHANGES,
    "compression": COMPRESSIONS,
}


@pytest.mark.parametrize("again", [lambda value: pickle.loads(pickle.dumps(value)), copy.copy, copy.deepcopy])
def test_a_copy_is_the_value_itself(again: Callable[[Any], Any]) -> None:
    for family in FAMILIES.values():
        assert all(again(value) is value for value in family.values())


def test_a_value_prints_as_its_name_and_is_found_by_it() -> None:
    for kind, family in FAMILIES.items():
        for name, value in family.items():
            assert str(value) == plain(value) == value.name == name
            assert chosen(kind, name, family) is chosen(kind, value, family) is value
    assert chosen("exchange", "Parameter-Server", EXCHANGES) is EXCHANGES["parameter_server"]


def test_what_is_no_value_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown exchange 'shraded'; .*did you mean sharded\?"):
        chosen("exchange", "shraded", EXCHANGES)
    for wrong in (3, None, SHARDINGS["zero3"], ["ring"]):
        with pytest.raises(UserError, match="the exchange is a name"):
            chosen("exchange", wrong, EXCHANGES)


def test_fields_take_values_and_names_alike() -> None:
    assert GradientExchange(COMPRESSIONS["int8"], EXCHANGES["ring"]) == GradientExchange("int8", "ring")
    assert Parallelism(sharding=SHARDINGS["zero3"]) == Parallelism(sharding="fsdp")


def test_a_new_class_is_one_value_of_its_family_alone() -> None:
    class Fruit(Value):
        known: ClassVar[dict[str, Any]]

    class Apple(Fruit):
        name = "apple"

    assert Apple() is Apple() and Fruit.known == {"apple": Apple()} and "apple" not in EXCHANGES
