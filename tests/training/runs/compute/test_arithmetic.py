"""Types in which FSDP2 computes and reduces, and the scaler of fp16."""

from __future__ import annotations

import torch
from torch import nn

from paceline.strategy import Strategy
from paceline.training.runs.compute.arithmetic import Arithmetic, sharded_precision


def strategy(**choices: object) -> Strategy:
    return Strategy.of(world_size=2, global_batch_size=8, **choices)


def test_sharded_units_travel_as_predicted() -> None:
    bf16 = strategy(precision="bf16", sharding="zero3")
    assert sharded_precision(strategy(sharding="zero3"), root=True).param_dtype is None
    root, unit = (sharded_precision(bf16, root=root) for root in (True, False))
    assert (root.param_dtype, root.reduce_dtype, root.output_dtype) == (torch.bfloat16, None, torch.float32)
    assert unit.output_dtype is None
    assert sharded_precision(bf16.changed(gradient_bits=32), root=False).reduce_dtype == torch.float32


def test_a_scaler_skips_a_step_that_overflows_and_its_state_resumes() -> None:
    fp16 = Arithmetic(strategy(precision="fp16"), torch.device("cpu"))
    layer = nn.Linear(3, 2)
    before = layer.weight.detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    fp16.backward(layer(torch.full((1, 3), torch.inf)).sum())
    fp16.update(optimizer)
    assert torch.equal(layer.weight, before)
    state = fp16.state_dict()
    assert state["scale"] == 2.0**15
    other = Arithmetic(strategy(precision="fp16"), torch.device("cpu"))
    other.load_state_dict(state)
    assert other.state_dict() == state
    optimizer.zero_grad()
    other.backward(layer(torch.ones(1, 3)).sum())
    other.update(optimizer)
    assert torch.allclose(layer.weight, before - 0.1)


def test_stored_weights_take_inputs_of_their_type() -> None:
    narrow = Arithmetic(strategy(precision="bf16", stored_weights="bf16"), torch.device("cpu"))
    assert (
        narrow.cast(torch.ones(2)).dtype == torch.bfloat16
        and narrow.cast(torch.ones(2, dtype=torch.int64)).dtype == torch.int64
    )
    assert not torch.is_autocast_enabled("cpu")
    with narrow.autocast():
        assert not torch.is_autocast_enabled("cpu")
