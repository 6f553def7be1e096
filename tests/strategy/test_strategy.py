"""A strategy refuses what cannot be run, and names the nearest thing that can."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.strategy import Strategy
from paceline.workload import workload


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"compression": "terngard"}, ("unknown compression 'terngard'", "did you mean terngrad?")),
        ({"exchange": "alreduce"}, ("unknown exchange", "did you mean allreduce?")),
        ({"optimizer": "adamm"}, ("unknown optimizer", "did you mean adam?")),
        ({"precision": "float32"}, ("unknown precision", "legal: fp32, tf32, bf16, fp16")),
        ({"compression": "terngrad", "exchange": "allreduce"}, ("cannot carry terngrad", "sharded, parameter_server")),
        ({"global_batch_size": 10}, ("does not divide among 4 workers", "nearest legal: 8 or 12")),
        ({"global_batch_size": 3}, ("global batch 3", "nearest legal: 4")),
        ({"world_size": 0}, ("0 workers", "from 1 up")),
    ],
)
def test_what_cannot_be_run_is_refused(choice, words):
    with pytest.raises(UserError) as caught:
        Strategy(**{"world_size": 4, "global_batch_size": 64, **choice})
    assert all(word in str(caught.value) for word in words), caught.value


def test_defaults():
    assert Strategy(world_size=4, global_batch_size=64).exchange == "allreduce"
    plan = Strategy(world_size=4, global_batch_size=64, compression="terngrad")
    assert plan.exchange == "sharded"
    assert plan.micro_batch_size == 16
    assert Strategy(**plan.to_json()) == plan


@pytest.mark.parametrize("compression", ["dense", "bf16", "terngrad"])
def test_one_worker_sends_nothing(compression):
    net = workload("lenet5")
    plan = Strategy(world_size=1, global_batch_size=64, compression=compression)
    assert plan.wire_bytes_per_device(net.parameters, net.ready_order) == 0


def test_wire_bytes_of_a_ring_are_those_of_the_formula():
    net = workload("lenet5")
    plan = Strategy(world_size=4, global_batch_size=64)
    exact = 2 * 3 / 4 * 4 * net.num_parameters
    sent = plan.wire_bytes_per_device(net.parameters, net.ready_order)
    assert exact <= sent < exact + len(plan.exchange_phases(net.parameters, net.ready_order))


def test_terngrad_sends_less_and_the_parameter_server_most():
    net = workload("alexnet")

    def sent(**choice: str) -> int:
        return Strategy(world_size=8, global_batch_size=64, **choice).wire_bytes_per_device(net.parameters, net.ready_order)

    assert sent(compression="terngrad") < sent(compression="bf16") < sent()
    assert sent(exchange="parameter_server") > 3 * sent(exchange="sharded")
