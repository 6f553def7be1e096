"""Equal blocks run once in a trace, and their layers are copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from paceline.workload.builders.layer_builders import linear
from paceline.workload.hub.skipped import Builder, running, skipping


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
    with skipping(net, lambda module: Builder(build) if isinstance(module, Pass) else None) as plan:
        result = net(torch.ones(2, 3, 16))
    assert set(plan.layers) == {"0"} and seen == [2, 2] and result.shape == (2, 3, 16)


def test_a_module_that_runs_twice_counts_twice_and_tied_weights_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Identity(), nn.Identity()
            self.first.weight = self.second.weight = nn.Parameter(torch.ones(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(self.first(x)))

    def build(*_: Any) -> Any:
        return [linear("", 3, 16, 16)]

    net = Twice()
    once = linear("", 3, 16, 16)
    with skipping(net, lambda module: Builder(build) if isinstance(module, nn.Identity) else None) as plan:
        net(torch.ones(2, 3, 16))
    assert plan.tied == {"second"}
    twice, single = plan.layers["first"][0], plan.layers["second"][0]
    assert single == once and twice.kept == 2 * once.kept
    assert sum(o.flops for o in twice.operations) == 2 * sum(o.flops for o in once.operations)


def test_a_builder_that_saves_shares_the_storage_of_a_view() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left, right = x.chunk(2, -1)
            return self.act(left) * right

    kept: set[int] = set()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.add(tensor.untyped_storage().data_ptr())
        return tensor

    def build(*_: Any) -> Any:
        return [replace(linear("", 3, 8, 8), kind="Activation")]

    net = Halves()
    saving = skipping(net, lambda m: Builder(build, saves=True) if isinstance(m, nn.Identity) else None)
    with saving, torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        net(torch.ones(2, 3, 16, requires_grad=True) * 1).sum().backward()
    assert len(kept) == 2  # both halves are one storage; the activation's result is the other


def test_an_equal_block_with_inputs_of_another_shape_runs() -> None:
    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv1d(4, 4, 3, stride=2) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    net = Pyramid()
    with skipping(net, lambda _: None) as plan:
        assert net(torch.ones(2, 4, 127)).shape == (2, 4, 7) and not plan.like


def test_blocks_that_read_another_type_than_the_first_are_no_copies_of_it() -> None:
    net = nn.Sequential(nn.ModuleList(Block(24, i) for i in range(4)))
    x, shift = torch.ones(2, 3, 16, dtype=torch.bfloat16), torch.ones(1)
    for apart in (0, 1):
        with skipping(net, lambda _: None, apart=apart) as plan, torch.autocast("cpu", torch.bfloat16):
            hidden = x
            for block in net[0]:
                hidden = block(hidden, shift)[0].float()
        assert plan.uneven == (apart == 0) and len(plan.like) == 3 - apart
