"""How gradients travel, as a value that goes to other processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from paceline.strategy import GradientExchange, Strategy


@pytest.mark.parametrize("again", [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy], ids=["pickle", "copy"])
def test_it_can_be_sent_after_it_has_been_described(again):
    exchange = GradientExchange("int8", "ring", options={})
    described = exchange.description.name  # which is kept, and holds functions
    assert again(exchange) == exchange and again(exchange).description.name == described == "int8"
    strategy = Strategy(global_batch_size=8, gradient_exchange=exchange)
    assert again(strategy) == strategy
