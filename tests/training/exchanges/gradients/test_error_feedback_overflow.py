"""Residuals of fp16 gradients: ranks clip a mean beyond fp16 to one value and keep the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.strategy import GradientExchange
from paceline.training.exchanges.exchange_group import Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import make_setup
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup, LocalWire

WORKERS, STEPS, VALUE, COUNT = 2, 6, 40_000.0, 64
LARGEST = torch.finfo(torch.float16).max


@pytest.mark.parametrize("exchange", ["sharded", "ring", "allgather"])
@pytest.mark.parametrize("compression", ["topk", "sign", "inceptionn-scaled"])
def test_a_mean_beyond_fp16_is_clipped_and_the_rest_stays_owed(compression: str, exchange: str) -> None:
    tensors = [TensorSpec("w", (COUNT,), 0)]
    options = {"density": 0.1} if compression == "topk" else {}

    def rank(wire: LocalWire) -> tuple[list[torch.Tensor], torch.Tensor, list[bool]]:
        setup = make_setup(GradientExchange(compression, exchange, options=options), wire, Sample())
        assert setup is not None and setup.feedback is not None
        layout, delivered, clipped = Layout(tensors, ()), [], []
        for step in range(STEPS):
            parts = {"w": torch.full((COUNT,), VALUE, dtype=torch.float16)}
            work = torch.empty(room(setup, layout), dtype=torch.float32)
            gradients: Any = Gradients(layout=layout, parts=parts, workspace=work, seed=5, step=step)
            assert not exchange_group(setup, gradients)
            delivered.append(parts["w"].float())
            clipped.append(setup.feedback.clipped)
            setup.feedback.clipped = False
        return delivered, setup.feedback.residual.state()["w"].float(), clipped

    (first, owed, clipped), (second, others, told) = LocalGroup(WORKERS).run(rank)
    assert torch.equal(torch.stack(first), torch.stack(second)) and clipped == told
    assert torch.stack(first).abs().max() <= LARGEST and torch.isfinite(owed).all() and torch.isfinite(others).all()
    assert any(clipped) == (compression == "topk")
    total = torch.stack(first).sum(0) + (owed + others) / WORKERS
    torch.testing.assert_close(total, torch.full((COUNT,), STEPS * VALUE), rtol=1e-3, atol=0)
