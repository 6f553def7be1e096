"""Norms over fewer units compute what they do over masked ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.slimming.slim_plan import SlimPlan
from paceline.slimming.structures.shrink import differs, load, masked, shrunk
from paceline.slimming.structures.soundness import sound
from paceline.slimming.structures.tracing import structures_of


class Written(nn.Module):
    """RMSNorm as transformers writes it out; Gemma's adds 1 to the weight."""

    def __init__(self, width: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight, self.offset, self.variance_epsilon = nn.Parameter(torch.randn(width)), offset, 0.05

    def forward(self, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return normed * (self.offset + self.weight.float()) if self.offset else self.weight * normed.to(x.dtype)


class Divided(Written):
    """The same with a quotient."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.variance_epsilon))


class Response(nn.Module):
    """Global response normalization of ConvNeXt V2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width)), 0.05

    def forward(self, x: Tensor) -> Tensor:
        lengths = x.norm(p=2, dim=1, keepdim=True)
        return x + torch.addcmul(self.bias, self.weight, x * (lengths / (lengths.mean(dim=-1, keepdim=True) + self.eps)))


class Residual(nn.Module):
    """A residual stream through a norm."""

    def __init__(self, norm: nn.Module, width: int = 12) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(5, width), norm
        self.up, self.down, self.out = nn.Linear(width, 8), nn.Linear(8, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        result: Tensor = self.out(x + self.down(functional.relu(self.up(self.norm(x)))))
        return result


NORMS = {
    "written": lambda: Written(12),
    "offset": lambda: Written(12, 1.0),
    "divided": lambda: Divided(12),
    "module": lambda: nn.RMSNorm(12, eps=0.05),
    "response": lambda: Response(12),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_over_fewer_units_has_the_outputs_of_the_masked_one(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = Residual(NORMS[name]()).eval(), (torch.randn(2, 4, 5),)
    found = structures_of(model, inputs)
    stream = found.layers()["into.weight"]
    assert len(stream) == 12 and {"norm", "down"} <= {part.parameter.split(".")[0] for part in stream[0].slices}
    removed = {each.number for each in stream[::3]}
    small = shrunk(model, found, removed)
    assert differs(small, masked(model, found, removed), inputs) < 1e-6
    plan = SlimPlan.of(found, removed)
    plan.save(tmp_path / "plan.json")
    again = load(SlimPlan.load(tmp_path / "plan.json"), model)
    assert differs(again, small, inputs) == 0
    again.load_state_dict(small.state_dict())  # whose weights are changed already
    assert differs(again, small, inputs) == 0


class Centred(Written):
    """Another reader of the mean: the weight cannot make up for it."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon
        return self.weight * (x * torch.rsqrt(mean)) + mean


class Shared(Written):
    """A weight with a second use."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.weight


@pytest.mark.parametrize("norm", [Centred, Shared])
def test_a_mean_that_anything_else_reads_stays_whole(norm: type[Written]) -> None:
    torch.manual_seed(0)
    model, inputs = Residual(norm(12)).eval(), (torch.randn(2, 4, 5),)
    found = sound(structures_of(model, inputs), model, inputs)
    assert set(found.layers()) == {"up.weight"} and not found.averages


def test_a_layer_norm_says_that_its_mean_is_subtracted() -> None:
    class Centre(Written):
        def forward(self, x: Tensor) -> Tensor:
            x = x - x.mean(-1, keepdim=True)
            return super().forward(x)

    model, inputs = Residual(Centre(12)).eval(), (torch.randn(2, 4, 5),)
    found = structures_of(model, inputs)
    found.name_whole("")
    assert set(found.layers()) == {"up.weight"} and "a mean that is subtracted" in found.kept["into"]
