"""Structures whose removal changes what a network computes, or that it cannot run without, stay; the others go."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.slimming.methods.methods import METHODS
from paceline.slimming.structures import soundness
from paceline.slimming.structures.shrink import differs, masked, shrunk
from paceline.slimming.structures.soundness import OTHER
from paceline.slimming.structures.structures import Structures
from paceline.slimming.structures.tracing import UNUSED, structures_of
from slimming_networks import Residual, images

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A convolution, a function of the test, and two linear layers of which the first may always be narrow."""

    def __init__(self, *, width: int = 16, entering: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.hidden, self.out = nn.Linear(entering, 24), nn.Linear(24, 5)

    def between(self, x: Tensor) -> Tensor:
        raise AssertionError

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.hidden(self.between(self.conv(x))).relu())
        return result


class OfWidth(Net):
    """Divides by the number of channels."""

    def between(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) / x.shape[1]


class StandardDeviation(Net):
    """Over the channels: zeros count."""

    def __init__(self) -> None:
        super().__init__(entering=64)

    def between(self, x: Tensor) -> Tensor:
        return x.std(1).flatten(1)


class Gram(Net):
    """Sums over channels that a sigmoid makes one half of zero."""

    def __init__(self) -> None:
        super().__init__(entering=64 * 64)

    def between(self, x: Tensor) -> Tensor:
        y = x.flatten(2).sigmoid()
        return (y.transpose(1, 2) @ y).flatten(1)


class Literal(Net):
    """Keeps its width in a list."""

    def __init__(self) -> None:
        super().__init__(entering=16 * 64)
        self.sizes = [16 * 64]

    def between(self, x: Tensor) -> Tensor:
        return x.view(-1, *self.sizes)


class Helper(Net):
    """A second output that only training has."""

    def __init__(self) -> None:
        super().__init__()
        self.helper = nn.Conv2d(16, 4, 1)

    def between(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + self.helper(x).mean()
        return x.mean((2, 3))


class Heads(nn.Module):
    """The attention of nanoGPT: literal widths everywhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(12, 36), nn.Linear(12, 12)
        self.expand, self.contract = nn.Linear(12, 48), nn.Linear(48, 12)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (each.view(b, t, 3, c // 3).transpose(1, 2) for each in self.enter(x).split(12, dim=2))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous().view(b, t, c)
        x = x + self.leave(y)
        result: Tensor = x + self.contract(F.gelu(self.expand(x)))
        return result


def found(model: nn.Module, *inputs: Any) -> Structures:
    return METHODS["auto"].structures(structures_of(model, inputs), model, inputs)


def assert_equal_without(structures: Structures, model: nn.Module, *inputs: Any) -> None:
    removed = {each.number for every in structures.layers().values() for each in every[: len(every) // 2]}
    assert removed
    assert differs(masked(model.eval(), structures, removed), shrunk(model, structures, removed), inputs) < 1e-5


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (OfWidth, OTHER),
        (StandardDeviation, "std needs it whole"),
        (Gram, OTHER),
        (Literal, "hidden (Linear) runs only at the whole width: `result: Tensor = self.out(self.hidden("),
        (Helper, "helper (Conv2d) runs only at the whole width: `x = x + self.helper(x).mean()` ("),
    ],
)
def test_a_layer_that_cannot_be_narrower_stays_and_the_others_go(
    kind: type[Net], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kind()
    logged: list[str] = []
    monkeypatch.setattr(soundness._log, "debug", lambda words, *given: logged.append(words % given))
    structures = found(model, X)
    assert not any("Error" in each for each in structures.kept.values())
    assert any("RuntimeError" in each for each in logged) == ("whole width" in why)
    assert set(structures.layers()) == {"hidden.weight"} and structures.kept["conv"].startswith(why)
    assert_equal_without(structures, model, X)


def test_heads_of_literal_widths_go_and_the_rows_of_the_mlp() -> None:
    model, x = Heads(), torch.randn(2, 5, 12)
    structures = found(model, x)
    assert {name: len(every) for name, every in structures.layers().items()} == {"enter.weight": 3, "expand.weight": 48}
    assert_equal_without(structures, model, x)


def test_attention_over_another_sequence_is_not_made_attention_over_its_own() -> None:
    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.hidden, self.out = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            mixed: Tensor = self.attention(x, y, y, need_weights=False)[0]
            result: Tensor = self.out(self.hidden(mixed).relu())
            return result

    model, x, y = Cross(), torch.randn(2, 4, 8), torch.randn(2, 6, 8)
    structures = found(model, x, y)
    assert "hidden.weight" in structures.layers()
    assert_equal_without(structures, model, x, y)


def test_what_the_example_does_not_run_stays() -> None:
    class Spare(Net):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))

        def between(self, x: Tensor) -> Tensor:
            return x.mean((2, 3))

    structures = found(Spare(), X)
    assert set(structures.layers()) == {"conv.weight", "hidden.weight"}
    assert structures.kept["spare.0"] == UNUSED


def test_a_sound_network_keeps_all_its_structures_and_branches() -> None:
    model = Residual()
    before, after = structures_of(model, images()), found(model, *images())
    assert [each.number for each in after.every] == [each.number for each in before.without_kernels().every]
    assert after.branches == before.branches and after.kept == before.kept


def test_zeros_at_the_start_hide_nothing() -> None:
    """The last norm of a residual branch often starts at zero: a wrong removal before it would not be seen."""

    class Hidden(OfWidth):
        def __init__(self) -> None:
            super().__init__()
            nn.init.zeros_(self.hidden.weight)

    assert OTHER in found(Hidden(), X).kept["conv"]


def test_the_trial_draws_no_random_number_of_the_caller() -> None:
    class Drops(Net):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.lstm = nn.Dropout(0.5), nn.LSTM(16, 16, batch_first=True)

        def between(self, x: Tensor) -> Tensor:
            mixed: Tensor = self.lstm(self.drop(x).flatten(2).transpose(1, 2))[0]
            return mixed[:, -1]

    model = Drops()
    state = torch.get_rng_state()
    assert found(model, X).every
    assert torch.equal(torch.get_rng_state(), state)
