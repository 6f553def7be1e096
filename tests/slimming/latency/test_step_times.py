"""Operations without weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.slimming.latency.step_times import least_of, shape_key, step_seconds
from paceline.slimming.structures.structures import UnweightedStep
from paceline.slimming.structures.tracing import structures_of
from slimming_networks import Residual, Transformer, images, tokens


class Steps(nn.Module):
    """A step of every kind that is timed in its own way."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.max_pool2d(x, 3, stride=1, padding=1), 2)
        x = torch.softmax(F.gelu(x).pow(2.0), -1).transpose(1, 2)
        return F.adaptive_avg_pool2d(F.layer_norm(x @ x.transpose(-1, -2), (x.shape[-2],)) / 2, 1)


class Filtered(Steps):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.first(x))


@pytest.fixture(scope="module")
def steps() -> list[UnweightedStep]:
    return structures_of(Filtered(), images()).steps


def test_every_step_costs_something(steps: list[UnweightedStep]) -> None:
    kinds = {step.kind for step in steps}
    assert {"max_pool2d", "avg_pool2d", "gelu", "pow", "softmax", "transpose", "matmul", "layer_norm", "div"} <= kinds
    for step in steps:
        fixed, shrinking = step_seconds(step)
        assert fixed > 0 and shrinking >= 0


def test_what_is_done_with_a_convolution_costs_nothing() -> None:
    fused = [step for step in structures_of(Residual(), images()).steps if step.fused]
    assert [step.kind for step in fused] == ["batch_norm", "relu", "batch_norm", "relu", "add"]
    assert all(step_seconds(step) == (0, 0) for step in fused)


def test_views_cost_a_node_and_attention_shrinks_with_its_heads() -> None:
    found = structures_of(Transformer(), tokens()).steps
    attention = next(step for step in found if step.kind == "scaled_dot_product_attention")
    view = next(step for step in found if step.kind in ("view", "unflatten", "reshape"))
    assert step_seconds(view)[0] > 0 == step_seconds(view)[1]
    assert step_seconds(attention)[0] > step_seconds(view)[0] and step_seconds(attention)[1] > 0
    assert len(least_of(attention)) == 3 and least_of(view) == (view.output,)


def test_steps_of_one_shape_share_a_time(steps: list[UnweightedStep]) -> None:
    assert len({shape_key(step) for step in steps}) == len(steps)
    layers = structures_of(Transformer(), tokens()).steps
    assert len({shape_key(step) for step in layers}) < len(layers)
