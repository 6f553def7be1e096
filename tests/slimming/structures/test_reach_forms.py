"""Forms in which libraries write attention, state spaces, norms and recurrence lose structures in every layer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, rnn

from paceline.slimming.methods.group_lasso import StructureNorms
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import differs, load, masked
from paceline.slimming.structures.soundness import sound
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import structures_of


class Sliced(nn.Module):
    """Grouped attention whose queries, keys and values are slices of one projection; a count is in shared settings (Phi-3)."""

    def __init__(self) -> None:
        super().__init__()
        self.config, self.keys, self.wide = SimpleNamespace(queries=4), 2, 3
        self.qkv, self.out = nn.Linear(6, 24), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        qkv, first = self.qkv(x), self.config.queries * self.wide
        parts = qkv[..., :first], qkv[..., first : first + self.keys * self.wide], qkv[..., first + self.keys * self.wide :]
        q, k, v = (each.view(*x.shape[:-1], -1, self.wide).transpose(1, 2) for each in parts)
        k, v = (each.repeat_interleave(2, 1) for each in (k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SharedKey(nn.Module):
    """Queries that share one key and value, which are indexed from one projection (Falcon)."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).view(*x.shape[:-1], self.heads + 2, 3)
        q, k, v = (each.transpose(1, 2) for each in (qkv[..., :-2, :], qkv[..., [-2], :], qkv[..., [-1], :]))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Window(nn.Module):
    """Attention in a shifted window, with a table of biases by head that a buffer of positions reads (Swin)."""

    def __init__(self, by_head: bool = False) -> None:
        super().__init__()
        self.heads, self.by_head = 4, by_head
        self.table = nn.Parameter(torch.randn(4, 7) if by_head else torch.randn(7, 4))
        self.register_buffer("positions", torch.arange(4)[:, None] - torch.arange(4) + 3)
        self.qkv, self.out = nn.Linear(6, 36), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.roll(x, 1, 1)
        q, k, v = self.qkv(x).reshape(len(x), 4, 3, self.heads, 3).permute(2, 0, 3, 1, 4)
        rows = (
            self.table[:, self.positions]
            if self.by_head
            else self.table[self.positions.view(-1)].view(4, 4, -1).permute(2, 0, 1)
        )
        mixed = (q @ k.transpose(-2, -1) + rows).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Biased(nn.Module):
    """Two layers of attention that are given one constant with a slope for each head (BLOOM)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Sloped() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        slopes = 2.0 ** -torch.arange(1, 5)[:, None, None] * torch.arange(x.shape[1])
        for layer in self.layers:
            x = layer(x, bias=slopes.repeat(len(x), 1, 1))
        return x


class _Sloped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = 4, nn.Linear(6, 36), nn.Linear(12, 6)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:-1], self.heads, 3, 3).unbind(3)
        q, k, v = (each.transpose(1, 2).reshape(len(x) * self.heads, x.shape[1], 3) for each in (q, k, v))
        mixed = torch.baddbmm(bias, q, k.transpose(1, 2)).softmax(-1) @ v
        return self.out(mixed.view(len(x), self.heads, x.shape[1], 3).transpose(1, 2).flatten(2))


class Selective(nn.Module):
    """A projection that is split in a step, and two parts as wide as the state (Mamba)."""

    def __init__(self) -> None:
        super().__init__()
        self.rank, self.states = 2, 3
        self.project, self.step, self.decay = nn.Linear(6, 8), nn.Linear(2, 5), nn.Parameter(torch.randn(5, 3))
        self.out = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        step, into, out = self.project(x).split([self.rank, self.states, self.states], -1)
        kept = F.softplus(self.step(step))[..., None] * self.decay * into[..., None, :]
        return self.out((kept @ out[..., None])[..., 0])


class Lengths(nn.Module):
    """Convolutions whose weights are directions and lengths."""

    def __init__(self) -> None:
        super().__init__()
        first, second = (parametrizations.weight_norm(nn.Conv1d(each, 6, 3, padding=1)) for each in (2, 6))
        self.layers = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Conv1d(6, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Given(nn.Module):
    """Two recurrent layers and a cell that begin with states of the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.cell, self.out = nn.LSTM(3, 6, 2, batch_first=True), nn.GRUCell(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor, state: Tensor, cell: Tensor) -> Tensor:
        return self.out(self.cell(self.layers(x, (state, cell))[0][:, -1], state[0]))


class Packed(nn.Module):
    """Two recurrent layers over sequences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.out = nn.GRU(3, 6, 2, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = rnn.pad_packed_sequence(self.layers(packed)[0], batch_first=True)
        return self.out(states)


FORMS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], dict[str, int]]] = {
    "sliced": (Sliced, (torch.randn(2, 5, 6),), {"qkv.weight": 2}),
    "shared key": (SharedKey, (torch.randn(2, 5, 6),), {"qkv.weight": 4}),
    "window": (Window, (torch.randn(2, 4, 6),), {"qkv.weight": 4}),
    "window by head": (lambda: Window(True), (torch.randn(2, 4, 6),), {"table": 4}),
    "biased": (Biased, (torch.randn(2, 5, 6),), {"layers.0.qkv.weight": 4, "layers.0.out.weight": 6, "layers.1.qkv.weight": 4}),
    "selective": (Selective, (torch.randn(2, 5, 6),), {"decay": 5, "project.weight (part 1)": 3, "project.weight (part 2)": 2}),
    "lengths": (
        Lengths,
        (torch.randn(1, 2, 9),),
        {"layers.0.bias": 6, "layers.2.bias": 6},
    ),
    "given": (
        Given,
        (torch.randn(2, 5, 3), torch.randn(2, 2, 6), torch.randn(2, 2, 6)),
        {"layers.weight_ih_l0": 6, "layers.weight_ih_l1": 6, "cell.weight_ih": 6},
    ),
    "packed": (Packed, (torch.randn(3, 5, 3), torch.tensor([2, 5, 3])), {"layers.weight_ih_l0": 6, "layers.weight_ih_l1": 6}),
}


def found(model: nn.Module, inputs: tuple[Any, ...]) -> Structures:
    return sound(structures_of(model.eval(), inputs), model, inputs).without_kernels()


LONG = ("sliced", "window by head", "biased", "packed")


@pytest.mark.parametrize("form", [pytest.param(each, marks=[pytest.mark.long] * (each in LONG)) for each in FORMS])
def test_each_layer_loses_structures_and_the_rest_computes_the_same(form: str) -> None:
    torch.manual_seed(0)
    make, inputs, expected = FORMS[form]
    model = make()
    structures = found(model, inputs)
    assert {layer: len(every) for layer, every in structures.layers().items()} == expected, structures.kept
    removed = {each.number for every in structures.layers().values() for each in every[1::2]}
    small = load(SlimPlan.of(structures, removed), model)
    assert sum(each.numel() for each in small.parameters()) < sum(each.numel() for each in model.parameters())
    assert differs(masked(model, structures, removed), small, inputs) < 1e-5


def test_a_row_without_length_keeps_its_direction() -> None:
    model, inputs = Lengths(), FORMS["lengths"][1]
    structures = structures_of(model.eval(), inputs).without_kernels()
    norms = StructureNorms(model, structures)
    norms.scale(torch.arange(len(norms.numbers)) % 2.0)
    assert not norms.norms()[::2].any() and model(*inputs).isfinite().all()
