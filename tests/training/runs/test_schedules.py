"""Schedulers against torch's own and against the recipe."""

from __future__ import annotations

import pytest
import torch

import paceline
from paceline.errors import UserError
from paceline.strategy.recipe import Recipe
from paceline.strategy.updates.batch_growth import BatchGrowth, StepPlan
from paceline.training.runs.schedules import growing_factor, scheduler


def rates(schedule: torch.optim.lr_scheduler.LRScheduler, steps: int) -> list[list[float]]:
    seen = []
    for _ in range(steps):
        seen.append([group["lr"] for group in schedule.optimizer.param_groups])
        schedule.optimizer.step()
        schedule.step()
    return seen


def sgd(*lrs: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": lr} for lr in lrs])


def decay(warmup_steps: int = 0) -> Recipe:
    """From 0.3 to 0 in 20 steps, by the square."""
    return Recipe(optimizer="sgd", lr=0.3, total_steps=20, warmup_steps=warmup_steps, power=2.0)


def test_decay_is_torch_s_polynomial() -> None:
    stock = torch.optim.lr_scheduler.PolynomialLR(one := sgd(0.3), total_iters=20, power=2.0)
    assert stock.optimizer is one
    ours = scheduler(sgd(0.3), decay())
    assert torch.tensor(rates(ours, 25)).allclose(torch.tensor(rates(stock, 25)))


def test_warm_up_comes_first_and_groups_keep_their_proportions() -> None:
    recipe = Recipe(optimizer="lars", lr=8.0, total_steps=12, warmup_steps=4)
    seen = rates(scheduler(sgd(0.1, 0.05), recipe), 12)
    assert [a for a, _ in seen] == pytest.approx([recipe.rate(k) for k in range(12)])
    assert [b for _, b in seen] == pytest.approx([recipe.rate(k) / 2 for k in range(12)])
    assert seen[3][0] == 8.0 == seen[4][0]


def test_a_schedule_resumes() -> None:
    first = scheduler(sgd(0.3), decay(5))
    whole = rates(first, 9)
    again = scheduler(sgd(0.3), decay(5))
    before = rates(again, 4)
    later = scheduler(sgd(0.3), decay(5))
    later.load_state_dict(again.state_dict())
    later.optimizer.load_state_dict(again.optimizer.state_dict())
    assert before + rates(later, 5) == whole


def test_a_rate_that_is_a_tensor_stays_that_tensor() -> None:
    """What a captured or compiled step reads."""
    rate = torch.tensor(0.5)
    optimizer = paceline.LAMB([torch.nn.Parameter(torch.ones(2))], lr=rate)
    schedule = scheduler(optimizer, Recipe(optimizer="lamb", lr=0.4, total_steps=10, warmup_steps=4, power=1.0))
    assert optimizer.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.1)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.2)


def test_what_no_schedule_can_follow_is_refused() -> None:
    recipe = Recipe(optimizer="lamb", lr=0.4, total_steps=10)
    with pytest.raises(UserError, match="learning rate of 0; give it any other"):
        scheduler(sgd(0.0), recipe)
    with pytest.raises(UserError, match="-3 steps are done; give 0 or more"):
        scheduler(sgd(0.1), recipe, steps_done=-3)


def test_the_rate_of_a_growing_batch_follows_samples_and_batch() -> None:
    """Sixty samples, 16 of them at half the batch: the decay is that of a constant batch at the same sample."""
    recipe = Recipe(optimizer="sgd", lr=0.5, total_steps=14, power=1.0)
    plan = StepPlan(60, 8, BatchGrowth.of("16@16"))
    linear, root = (growing_factor(recipe, plan, 8, rule) for rule in ("linear", "sqrt"))
    assert [linear(step) for step in range(4)] == pytest.approx([1.0, 13 / 14, 2 * 12 / 14, 2 * 10 / 14])
    assert root(2) == pytest.approx(2**0.5 * 12 / 14)
