"""Widths that code states as numbers shrink with their layers."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.slimming.code_numbers import StatedMethod, recorded, state
from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import differs, load, masked
from paceline.slimming.structures.soundness import sound
from paceline.slimming.structures.tracing import structures_of


class Tutorial(nn.Module):
    """The network of PyTorch's first tutorial, smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.MaxPool2d(2))
        self.classifier = nn.Linear(8 * 3 * 3, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = x.view(-1, 8 * 3 * 3)
        result: Tensor = self.classifier(x)
        return result


class Generator(nn.Module):
    """A generator that states its width as a product."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width, self.first = width, nn.Linear(6, 2 * width * 4)
        self.second = nn.ConvTranspose2d(2 * width, 3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x).reshape(x.size(0), self.width * 2, 2, 2))
        return result


class Einsum(nn.Module):
    """Attention with four heads in literal views, in a method besides ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 32) for _ in range(3))
        self.out = nn.Linear(32, 3)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (each(x).view(batch, length, 4, 8) for each in (self.q, self.k, self.v))
        weights = torch.einsum("blhd,bmhd->bhlm", q, k).softmax(-1)
        return torch.einsum("bhlm,bmhd->blhd", weights, v).reshape(batch, length, 32)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.attend(x))
        return result


class Quotient(nn.Module):
    """Attention in nanoGPT's form, whose heads are a part of the input's width."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.n_embd, self.qkv, self.project = 4, 32, nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.size()
        parts = self.qkv(x).split(self.n_embd, dim=2)
        q, k, v = (each.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2) for each in parts)
        mixed = ((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).contiguous().view(batch, length, width)
        result: Tensor = self.project(mixed)
        return result


class Ends(nn.Module):
    """Both ends of a bidirectional layer, cut by a literal width."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.LSTM(6, 8, bidirectional=True, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)[0]
        result: Tensor = self.out(torch.cat([y[:, -1, :8], y[:, 0, 8:]], -1))
        return result


class Unequal(nn.Module):
    """Channels in unequal parts, whose sizes are in a tuple, as in InceptionNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes, self.stem, self.out = (8, 4, 4), nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 1)
        self.one, self.other = (nn.Conv2d(4, 4, 3, padding=1, groups=4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        whole, one, other = torch.split(self.stem(x), self.sizes, 1)  # type: ignore[arg-type]
        result: Tensor = self.out(torch.cat([whole, self.one(one), self.other(other)], 1))
        return result


class Parts(nn.Module):
    """Gates, inputs and a step for each head from one layer, whose sizes are attributes, as in Mamba-2."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.both, self.heads = 32, 40, 4
        self.enter, self.out = nn.Linear(6, 76), nn.Linear(32, 3)
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        gate, both, step = self.enter(x).split([self.inner, self.both, self.heads], -1)
        y = (
            both[..., : self.inner].unflatten(-1, (-1, 8)) * (step * self.scale)[..., None]
            + both[..., self.inner :].sum(-1)[..., None, None]
        )
        result: Tensor = self.out(y.flatten(-2) * gate.sigmoid())
        return result


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "view": (Tutorial, (1, 3, 10, 10), 8),
    "product": (Generator, (1, 6), 8),
    "einsum": (Einsum, (2, 5, 6), 4),
    "quotient": (Quotient, (2, 5, 32), 4),
    "unequal parts": (Unequal, (1, 3, 6, 6), 8),
    "parts of three kinds": (Parts, (2, 5, 6), 4),
    "ends": (Ends, (2, 5, 6), 8),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_numbers_in_code_shrink_with_the_layer_and_the_batch_stays_free(name: str) -> None:
    make, shape, count = NETWORKS[name]
    model, inputs = make().eval(), (torch.randn(shape),)
    found = sound(structures_of(model, inputs), model, inputs).without_kernels()
    assert max(map(len, found.layers().values())) == count, found.kept
    removed = {each.number for every in found.layers().values() for each in every[1::2]}
    plan = SlimPlan.of(found, removed)
    small = load(plan, model)
    assert differs(masked(model, found, removed), small, inputs) < 1e-5
    more = torch.randn(3, *shape[1:])
    assert torch.allclose(small(more)[:1], small(more[:1]), atol=1e-5)
    file = io.BytesIO()
    torch.save(small, file)
    file.seek(0)
    for again in (copy.deepcopy(small), torch.load(file, weights_only=False)):
        assert torch.equal(again(more), small(more))


def test_a_plan_with_numbers_in_code_is_read_again_and_refused_for_other_code(tmp_path: Path) -> None:
    model, inputs = Tutorial().eval(), (torch.randn(1, 3, 10, 10),)
    found = sound(structures_of(model, inputs), model, inputs).without_kernels()
    plan = SlimPlan.of(found, {found.layers()["features.2.weight"][0].number})
    plan.save(tmp_path / "plan.json")
    small, other = load(plan, model), load(SlimPlan.load(tmp_path / "plan.json"), model)
    assert torch.equal(small(*inputs), other(*inputs))
    with pytest.raises(UserError, match="is not the one that the plan is of"):
        state(model, {"forward@9:1-2": 3})


def test_numbers_are_recorded_where_they_have_one_value_and_the_network_stays_as_it_was() -> None:
    model = Quotient().eval()
    with recorded(model) as found:
        model(torch.randn(2, 5, 32))
    assert {*found[""].values()} == {2, 4, 5, 8, 32}
    assert not any(isinstance(each, StatedMethod) for each in vars(model).values())


def test_code_that_is_not_as_its_source_says_has_no_numbers() -> None:
    class Wrapped(Quotient):
        @functools.wraps(Quotient.forward)
        def replacing(self, x: Tensor) -> Tensor:
            return x

        forward = replacing  # type: ignore[assignment]

    model = Wrapped()
    with recorded(model) as found:
        model(torch.randn(2, 5, 32))
    assert not found
