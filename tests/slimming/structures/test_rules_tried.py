"""Operations without a rule: whole layers shrink, and compute the same as with zeros in what is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.slimming.structures.shrink import differs, masked, shrunk
from paceline.slimming.structures.soundness import sound
from paceline.slimming.structures.tracing import structures_of

Between = Callable[[Tensor], Tensor]


class Two(nn.Module):
    """Two layers with something between them."""

    def __init__(self, first: nn.Module, between: Between, second: nn.Module) -> None:
        super().__init__()
        self.first, self.between, self.second = first, between, second

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.between(self.first(x)))
        return result


def planes(out: int, between: Between, into: int) -> tuple[nn.Module, Tensor]:
    return Two(nn.Conv2d(3, out, 3, padding=1), between, nn.Conv2d(into, 2, 1)), torch.randn(1, 3, 6, 6)


def rows(out: int, between: Between, into: int) -> tuple[nn.Module, Tensor]:
    return Two(nn.Linear(6, out), between, nn.Linear(into, 3)), torch.randn(2, 5, 6)


def windows() -> tuple[nn.Module, Tensor]:
    return Two(nn.Conv2d(3, 4, 1), lambda x: F.unfold(x, 3, padding=1).mT, nn.Linear(36, 3)), torch.randn(1, 3, 5, 5)


NETWORKS: dict[str, tuple[tuple[nn.Module, Tensor], int]] = {
    "gates of the last dimension": (rows(16, lambda x: F.glu(x, -1), 8), 8),
    "gates of channels": (planes(16, lambda x: F.glu(x, 1), 8), 8),
    "pixel shuffle": (planes(16, lambda x: F.pixel_shuffle(x, 2), 4), 4),
    "pixel unshuffle": (planes(4, lambda x: F.pixel_unshuffle(x, 2), 16), 4),
    "windows": (windows(), 4),
    "slopes of channels": (planes(8, nn.PReLU(8), 8), 8),
    "one slope": (planes(8, nn.PReLU(), 8), 8),
    "selu": (rows(8, F.selu, 8), 8),
    "largest of a dimension": (rows(8, lambda x: x.max(1)[0], 8), 8),
    "largest of two": (rows(8, lambda x: torch.max(x, x.flip(1)), 8), 8),
    "sorted along time": (rows(8, lambda x: x.clamp_min(0).cummax(1)[0], 8), 8),
    "transposed twice": (rows(8, lambda x: x.mT.mT, 8), 8),
    "frequencies of time": (rows(8, lambda x: torch.fft.fft(x, dim=1).real, 8), 8),
    "sampled": (planes(8, lambda x: F.grid_sample(x, torch.zeros(1, 4, 4, 2), align_corners=False), 8), 8),
    "written into": (rows(8, lambda x: x.new_empty(x.shape).copy_(x), 8), 8),
    "product of neighbours stays": (rows(8, lambda x: x.cumprod(-1), 8), 0),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_units_pass_through_operations_that_treat_them_apart(name: str) -> None:
    (model, x), count = NETWORKS[name]
    model.eval()
    found = sound(structures_of(model, (x,)), model, (x,)).without_kernels()
    removed = {each.number for each in found.every[::2]}
    assert len(found.every) == count, found.kept
    if removed:
        small = shrunk(model, found, removed)
        assert sum(map(torch.numel, small.parameters())) < sum(map(torch.numel, model.parameters()))
        assert differs(masked(model, found, removed), small, (x,)) < 1e-5


class SharedKey(nn.Module):
    """Attention whose heads read one key, copied for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.query, self.key, self.value = 4, nn.Linear(8, 32), nn.Linear(8, 8), nn.Linear(8, 32)
        self.output = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        query, value = (each(x).unflatten(-1, (self.num_heads, 8)).transpose(1, 2) for each in (self.query, self.value))
        key = self.key(x)[:, None].expand(*query.shape[:2], -1, -1)
        result: Tensor = self.output(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return result


def test_heads_go_alone_where_all_of_them_read_one_copied_key() -> None:
    model, inputs = SharedKey().eval(), (torch.randn(2, 5, 8),)
    found = sound(structures_of(model, inputs), model, inputs)
    (heads,) = found.layers().values()
    assert len(heads) == 4
    removed = {heads[1].number, heads[2].number}
    assert differs(masked(model, found, removed), shrunk(model, found, removed), inputs) < 1e-5


class Fixed(nn.Module):
    """Two layers whose sum the code reads at its whole width."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.output = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        self.sizes = [8]

    def forward(self, x: Tensor) -> Tensor:
        total = self.first(x) + self.second(x)
        result: Tensor = self.output(total * torch.ones(*self.sizes))
        return result


def test_all_layers_that_a_trial_refuses_are_named_with_its_reason() -> None:
    model, inputs = Fixed().eval(), (torch.randn(2, 6),)
    found = sound(structures_of(model, inputs), model, inputs)
    found.name_whole("the method does not remove it")
    assert all("runs only at the whole width" in found.kept[name] for name in ("first", "second"))
