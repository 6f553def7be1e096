"""The adaptation example: it reads a shifted domain, its batches are drawn by seed, and mistakes are said."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'paceline[train]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from adapt_without_labels import DomainAdaptation, Recipe, adapt, predictions  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from paceline.errors import UserError  # noqa: E402
from paceline.slimming.methods.domain_adaptation import Strengths, normalised_for  # noqa: E402
from paceline.slimming.methods.group_lasso import GroupLasso  # noqa: E402
from paceline.slimming.structures.tracing import structures_of  # noqa: E402

NONE = Strengths(0, 0, 0, 0)


def net(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2))


def clouds(shift: float, seed: int = 0, count: int = 400) -> tuple[Tensor, Tensor]:
    """Two classes, left and right, each a cloud; all moved to the right."""
    made = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=made)
    centres = torch.stack([2.0 * labels - 1, torch.zeros(count)], 1)
    return centres + 0.2 * torch.randn(count, 2, generator=made) + torch.tensor([shift, 0.0]), labels


def test_a_shifted_domain_is_read_without_its_labels() -> None:
    source, (target, classes) = clouds(0), clouds(1.5, seed=1)
    recipe = Recipe(steps=60, batch=32, rate=0.05)

    def right(model: nn.Module) -> float:
        return float((predictions(model, target) == classes).float().mean())

    model = net()
    before = copy.deepcopy(model.state_dict())
    alone = DomainAdaptation(copy.deepcopy(model), source, target, replace(recipe, strengths=NONE))
    alone.run()
    assert right(normalised_for(alone.model, source[0])) < 0.7
    assert right(adapt(model, source, target, recipe)) > 0.95
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "the model stays"
    assert alone.terms.keys() == {"source"}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_run_repeats_bit_for_bit_with_a_penalty(dropout: float) -> None:
    source, (target, _) = clouds(0), clouds(1.5, seed=1)
    recipe = Recipe(steps=9, batch=8, strengths=Strengths(1, 1, 1, 0.1))

    def run(model: nn.Module) -> DomainAdaptation:
        found = structures_of(model, (target[:2],))
        adaptation = DomainAdaptation(model, source, target, recipe, lambda optimizer: GroupLasso(optimizer, model, found, 0.1))
        torch.rand(5)
        adaptation.run()
        return adaptation

    first, second = run(net(dropout)), run(net(dropout))
    assert (second.step, second.terms) == (9, first.terms)
    for one, other in zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert first.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / (1 + 10 * 8 / 9) ** 0.75)


def test_each_step_and_each_seed_draws_batches_of_its_own_and_the_callers_generator_goes_on() -> None:
    source, (target, _) = clouds(0), clouds(1.5, seed=1)
    seen: list[Tensor] = []
    for seed in (0, 0, 1):
        model = net()
        model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        torch.manual_seed(5)
        DomainAdaptation(model, source, target, Recipe(steps=2, batch=16, seed=seed)).run()
        assert float(torch.rand(1)) == float(torch.rand(1, generator=torch.Generator().manual_seed(5)))
    drawn = [tuple(batch.flatten().tolist()) for batch in seen]
    assert drawn[:4] == drawn[4:8] and len(set(drawn)) == 8


@pytest.mark.parametrize(
    ("model", "count", "changed", "words"),
    [
        (nn.Conv2d(1, 1, 1), 4, {}, "Conv2d has no linear layer"),
        (nn.Linear(2, 2), 0, {}, "4 samples of the source and 0 of the target"),
        (nn.Linear(2, 2), 4, {"steps": 0}, "0 steps"),
        (nn.Linear(2, 2), 4, {"batch": 1}, "1 samples in a batch"),
    ],
)
def test_what_cannot_be_adapted_is_said(model: nn.Module, count: int, changed: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        DomainAdaptation(model, clouds(0, count=4), torch.zeros(count, 2), replace(Recipe(), **changed))  # type: ignore[arg-type]
