"""Networks of public reports about other tools: each loses structures, runs, and computes what its masked form computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.slimming.structures.shrink import differs, masked, shrunk
from paceline.slimming.structures.soundness import sound
from paceline.slimming.structures.tracing import structures_of


class Twice(nn.Module):
    """A tensor that is joined with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.one(x))
        return self.two(torch.cat([x, x], 1))


class Series(nn.Module):
    """Convolutions over time, flattened for a classifier whose classes must stay."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.classes = nn.Conv1d(1, 8, 3, padding=1), nn.Conv1d(8, 4, 3, padding=1), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.two(self.one(x).relu()).relu().flatten(1))


class Chunked(nn.Module):
    """The C2f block of YOLOv8: a list of chunks grows, and is joined."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 8, 1), nn.Conv2d(16, 2, 1)
        self.blocks = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        parts.extend(block(parts[-1]).relu() for block in self.blocks)
        return self.leave(torch.cat(parts, 1))


class Partial(nn.Module):
    """A partial convolution, which splits channels by numbers in its code."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = 2, 6
        self.enter, self.part, self.leave = nn.Conv2d(3, 8, 1), nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.split(self.enter(x), [self.first, self.rest], 1)
        return self.leave(torch.cat([self.part(left), right], 1))


class Gated(nn.Module):
    """A gated feed-forward network with a depthwise convolution before the chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.deep, self.leave = nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.deep(self.enter(x)).chunk(2, 1)
        return self.leave(F.gelu(gate) * value)


class Attention(nn.Module):
    """Attention whose code joins heads by a number; queries may share keys."""

    def __init__(self, keys: int) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads, self.head_dim, self.all_head_size = 4, keys, 2, 8
        self.query, self.key, self.value = nn.Linear(6, 8), nn.Linear(6, 2 * keys), nn.Linear(6, 2 * keys)
        self.out = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x).view(*x.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)
        k, v = (
            each(x).view(*x.shape[:-1], self.num_key_value_heads, self.head_dim).transpose(1, 2)
            for each in (self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.out(mixed.reshape(len(x), x.shape[1], self.all_head_size))


class Language(nn.Module):
    """An embedding, an LSTM and an output."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers, self.output = nn.Embedding(9, 4), nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.layers(self.table(tokens))[0])


def normed(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), norm, nn.ReLU(), nn.Conv2d(8, 2, 1))


IMAGE, WORDS = (2, 3, 5, 5), (2, 5, 6)
REPORTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, int]]] = {
    "VainF/Torch-Pruning#146": (Twice, IMAGE, {"one.weight": 6}),
    "VainF/Torch-Pruning#451": (Series, (2, 1, 4), {"one.weight": 8, "two.weight": 4}),
    "VainF/Torch-Pruning#44": (Language, (), {"table.weight": 4, "layers.weight_ih_l0": 6}),
    "VainF/Torch-Pruning#9": (lambda: normed(nn.Conv2d(8, 8, 3, groups=4)), IMAGE, {"0.weight": 4}),
    "VainF/Torch-Pruning#57": (
        lambda: nn.TransformerEncoderLayer(6, 2, 10, batch_first=True),
        WORDS,
        {"self_attn.in_proj_weight": 2, "linear1.weight": 10},
    ),
    "VainF/Torch-Pruning#393": (Gated, IMAGE, {"enter.weight": 6}),
    "ultralytics/ultralytics#14171": (Chunked, IMAGE, {"enter.weight": 4, "blocks.0.weight": 4, "blocks.1.weight": 4}),
    "microsoft/nni#5713": (Partial, IMAGE, {"enter.weight (part 1)": 2, "enter.weight (part 2)": 6, "part.weight": 2}),
    "qualcomm/aimet#415": (lambda: normed(nn.GroupNorm(4, 8)), IMAGE, {"0.weight": 4}),
    "intel/neural-compressor#525": (lambda: Attention(4), WORDS, {"query.weight": 4}),
    "horseee/LLM-Pruner#40": (lambda: Attention(1), WORDS, {"query.weight": 4}),
}
"""Repository and number of each report: its network at a small size, the shape of its input, and the structures that go."""
EVERYDAY = ("VainF/Torch-Pruning#146", "microsoft/nni#5713", "horseee/LLM-Pruner#40")


@pytest.mark.parametrize("report", [pytest.param(each, marks=[pytest.mark.long] * (each not in EVERYDAY)) for each in REPORTS])
def test_the_network_of_a_report_loses_structures_and_computes_the_same(report: str) -> None:
    torch.manual_seed(0)
    make, shape, expected = REPORTS[report]
    model, x = make().eval(), torch.randn(shape) if shape else torch.arange(9)[None]
    found = sound(structures_of(model, (x,)), model, (x,)).without_kernels()
    assert {layer: len(every) for layer, every in found.layers().items()} == expected, found.kept
    for some in (slice(1, None, 2), slice(1, None)):  # at last one stays in each layer
        removed = {each.number for every in found.layers().values() for each in every[some]}
        small = shrunk(model, found, removed)
        assert sum(each.numel() for each in small.parameters()) < sum(each.numel() for each in model.parameters())
        assert differs(masked(model, found, removed), small, (x,)) < 1e-5


@pytest.mark.long
def test_saved_weights_are_those_of_the_smaller_network(tmp_path: Path) -> None:
    """microsoft/nni#3984: the file had the size of the whole network."""
    model, x = nn.Sequential(nn.Linear(8, 400), nn.ReLU(), nn.Linear(400, 8)), torch.randn(2, 8)
    found = structures_of(model, (x,))
    for name, network in [("whole", model), ("small", shrunk(model, found, {each.number for each in found.every[1:]}))]:
        torch.save(network.state_dict(), tmp_path / name)
    assert (tmp_path / "small").stat().st_size < (tmp_path / "whole").stat().st_size / 4
