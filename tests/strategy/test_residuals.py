"""Choices about residuals: what keeps none is refused, and what is usual is not written."""

from __future__ import annotations

import pytest

from each_row import each_row
from facts import facts
from paceline.errors import UserError
from paceline.hardware import cluster
from paceline.strategy import COMPRESSIONS, GradientExchange, Strategy
from prediction_toys import make_workload

KEEPS = {"sign", "topk", "inceptionn-scaled", "powersgd"}
REFUSED = {
    "bits": ({"compression": "sign", "residual_bits": 8}, facts("residual_bits=8", "32 for fp32", "16 for bfloat16")),
    "a text": ({"compression": "sign", "residual_bits": "16"}, "residual_bits='16'; give 32"),
    "place": ({"compression": "sign", "residuals_at": "gpu"}, "unknown place of residuals 'gpu'; legal: host"),
    "in a card": (
        {"compression": "inceptionn-scaled", "exchange": "parameter_server", "compress_pull": False, "codec_at": "nic"}
        | {"residual_bits": 16},
        "inceptionn-scaled keeps no residuals here; leave residual_bits out",
    ),
}


@each_row("name", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(name: str) -> None:
    given, said = REFUSED[name]
    with pytest.raises(UserError, match=said) as error:
        GradientExchange(**given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressions_with_error_feedback_take_them_and_others_refuse(name: str) -> None:
    for choice in ({"residual_bits": 16}, {"residuals_at": "host"}):
        if name in KEEPS:
            assert GradientExchange(name, **choice) != GradientExchange(name)  # type: ignore[arg-type]
        else:
            with pytest.raises(UserError, match=f"{name} keeps no residuals here; leave {next(iter(choice))} out"):
                GradientExchange(name, **choice)  # type: ignore[arg-type]


def test_written_and_read_and_left_out_where_usual() -> None:
    x = GradientExchange("sign", residual_bits=16, residuals_at="Host")
    assert x.residuals_at.name == "host" and GradientExchange.from_json(x.to_json()) == x
    assert not {"residual_bits", "residuals_at", "dense_bits"} & GradientExchange("sign").to_json().keys()
    assert str(x) == "sign over sharded, residuals in bf16, residuals on the host"
    strategy = Strategy.of(world_size=4, global_batch_size=4, compression="sign", residual_bits=16, residuals_at="host")
    assert Strategy.from_json(**strategy.to_json()) == strategy
    other = strategy.changed(compression="int8").gradient_exchange
    assert (other.residual_bits, other.residuals_at.name) == (32, "")


def test_on_a_cpu_residuals_are_in_the_hosts_memory_anyway() -> None:
    network = make_workload()
    strategy = Strategy.of(world_size=4, global_batch_size=4, compression="sign", residuals_at="host")
    usual = Strategy.of(world_size=4, global_batch_size=4, compression="sign")
    cpus, gpus = cluster("Xeon Platinum 8380", 1, 4, "10Gb/s"), cluster("A100", 1, 4, "10Gb/s")
    assert strategy.settled(network, cpus) == usual.settled(network, cpus)
    assert strategy.settled(network, gpus).gradient_exchange.residuals_at.name == "host"
    both = strategy.changed(codec_at="host")
    assert both.settled(network, gpus).gradient_exchange == usual.changed(codec_at="host").gradient_exchange
