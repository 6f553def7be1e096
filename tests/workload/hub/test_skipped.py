"""Equal blocks run once in a trace, and their layers are copies."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from paceline.workload.builders.layer_builders import linear
from paceline.workload.hub.skipped import running, skipping


class Block(nn.Module):
    def __init__(self, width: int, number: int) -> None:
        super().__init__()
        self.layer_idx, self.width = number, width
        self.up = nn.Linear(16, width)
        self.down = nn.Linear(width, 16)

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + self.down(torch.relu(self.up(x))) + shift, shift


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width, i) for i, width in enumerate((24, 40, 24, 40, 24)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift = x.mean(1, keepdim=True)
        for layer in self.layers:
            x, shift = layer(x, shift)
        return x


def test_the_first_of_each_kind_stands_for_the_others_and_all_is_restored() -> None:
    net = Net()
    before = net(torch.ones(2, 3, 16))
    with skipping(net, lambda _: None) as plan:
        assert plan.like == {"layers.2": "layers.0", "layers.4": "layers.0", "layers.3": "layers.1"}
        given = torch.ones(2, 3, 16, requires_grad=True)
        result = net(given)
        assert result.shape == given.shape and plan.samples == 2
        result.sum().backward()
        assert given.grad is not None and net.layers[0].up.weight.grad is not None and net.layers[2].up.weight.grad is None
    assert running() is None and torch.equal(net(torch.ones(2, 3, 16)), before)


def test_a_builder_gives_the_layers_of_a_module_and_none_leaves_it_traced() -> None:
    seen: list[int] = []

    def build(module: Any, args: tuple[Any, ...], _: Any, samples: int) -> Any:
        seen.append(samples)
        return [linear("whole", 3, 16, 16)] if module.width == 24 else None

    class Pass(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.width = width

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    net = nn.Sequential(Pass(24), Pass(40))
    with skipping(net, lambda module: build if isinstance(module, Pass) else None) as plan:
        result = net(torch.ones(2, 3, 16))
    assert set(plan.layers) == {"0"} and seen == [2, 2] and result.shape == (2, 3, 16)
