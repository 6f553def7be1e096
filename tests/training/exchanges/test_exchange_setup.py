"""From a description to what executes it: the codec with its options, feedback and guard where they belong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.errors import UserError
from paceline.strategy import GradientExchange
from paceline.training.exchanges.exchange_group import Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import make_setup, own_wires
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup, LocalWire
from strategy_toys import NAMED

WIRE: Any = SimpleNamespace(world_size=4, rank=1)


@pytest.mark.parametrize(("name", "exchange"), [how for how in NAMED if how[1] != "hierarchical"], ids="-".join)
def test_every_compression_has_its_codec(name: str, exchange: str) -> None:
    described = GradientExchange(name, exchange)
    sample = Sample()
    setup = make_setup(described, WIRE, sample)
    if exchange == "allreduce":
        assert setup is None
        return
    assert setup is not None and setup.codec.name == {"dense": "fp32", "terngrad": "ternary"}.get(name, name)
    assert (setup.exchange.name, setup.outer, setup.world, setup.inner) == (
        exchange,
        WIRE,
        WIRE,
        None,
    ) and setup.sample is sample
    compression = described.description
    assert (setup.feedback is not None) == compression.error_feedback
    assert setup.feedback is None or setup.guard is None
    assert (setup.guard is not None) == (compression.lossy and not compression.unbiased and not compression.error_feedback)


@pytest.mark.parametrize(
    ("name", "options", "attribute", "value"),
    [("int8", {"block": 256}, "block", 256), ("inceptionn", {"bound": 2**-9, "ratio": 8}, "bound", 2**-9)],
)
def test_options_reach_the_codec_but_for_those_that_are_no_codec_s(
    name: str, options: dict[str, float], attribute: str, value: float
) -> None:
    setup = make_setup(GradientExchange(name, "sharded", options=options), WIRE, Sample())
    assert setup is not None and getattr(setup.codec, attribute) == value


@pytest.mark.parametrize("clip", [None, 0.75])
def test_the_clip_is_the_ternary_codec_s(clip: float | None) -> None:
    setup = make_setup(GradientExchange("terngrad", "sharded", clip=clip), WIRE, Sample())
    assert setup is not None and getattr(setup.codec, "clip") == clip  # noqa: B009


def test_momentum_is_that_of_the_feedback() -> None:
    setup = make_setup(GradientExchange("topk", "allgather", options={"momentum": 0.5}), WIRE, Sample())
    assert setup is not None and setup.feedback is not None and setup.feedback.momentum == 0.5


@pytest.mark.parametrize("ranks_per_node", [0, 3, 5])
def test_nodes_of_unequal_size_are_refused(ranks_per_node: int) -> None:
    with pytest.raises(UserError, match=f"4 workers in nodes of {ranks_per_node}; hierarchical needs equal nodes"):
        own_wires(WIRE, ranks_per_node)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64], ids=str)
def test_the_default_type_of_a_script_changes_no_bit_of_an_exchange(default: torch.dtype) -> None:
    """As torchtitan and others set it, before the setup is made."""

    def exchanged(wire: LocalWire) -> list[torch.Tensor]:
        results = []
        for name in ("int8", "sign", "topk", "terngrad", "inceptionn-scaled"):
            exchange = GradientExchange(name, "sharded", residual_bits=16 if name == "topk" else 32)
            setup = make_setup(exchange, wire, Sample())
            assert setup is not None
            layout = Layout([TensorSpec("w", (3000,), 0)], ())
            work = torch.empty(room(setup, layout), dtype=torch.float32)
            for step in range(2):
                generator = torch.Generator().manual_seed(10 * step + wire.rank)
                parts = {"w": torch.randn(3000, generator=generator, dtype=torch.float32)}
                exchange_group(setup, Gradients(layout=layout, parts=parts, workspace=work, seed=5, step=step))
                results.append(parts["w"])
        return results

    usual = LocalGroup(2).run(exchanged)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        changed = LocalGroup(2).run(exchanged)
    finally:
        torch.set_default_dtype(before)
    for rank, other in zip(usual, changed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(rank, other, strict=True))
