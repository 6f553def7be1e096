"""A ``Recipe`` on an optimizer, as stock ``LRScheduler``s of the usual rules for large batches."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from paceline.errors import UserError
from paceline.strategy.recipe import RateScaling, Recipe, scaled
from paceline.strategy.updates.batch_growth import StepPlan


def growing_factor(recipe: Recipe, plan: StepPlan, batch: int, rule: RateScaling) -> Callable[[int], float]:
    """Return the factor on the peak rate by step, for a batch that grows.

    Warm-up and decay follow the samples. The rate grows with the batch by ``rule``.
    """

    def factor(step: int) -> float:
        first, now = plan.place(step)
        return recipe.factor(first) * scaled(1.0, batch, now, rule)

    return factor


def scheduler(
    optimizer: Optimizer, recipe: Recipe, steps_done: int = 0, factor: Callable[[int], float] | None = None
) -> LambdaLR:
    """Return a scheduler of the recipe's rates for ``optimizer``; call its ``step`` after every step of the optimizer.

    Groups keep the proportions of their rates: the largest gets the recipe's peak.

    Args:
        steps_done: completed steps of a resumed run, which continues with the rate of the next step.
        factor: factor on the peak by step; None: the recipe's.

    Raises:
        UserError: every group has a rate of 0, or ``steps_done`` is negative.
    """
    if steps_done < 0:
        raise UserError(f"{steps_done} steps are done", "give 0 or more")
    rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    if not max(rates) > 0:
        raise UserError("every group of the optimizer has a learning rate of 0", "give it any other: the recipe's replaces it")
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["initial_lr"] = recipe.lr * (rate / max(rates))  # the peak itself if all groups are equal
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(group["initial_lr"])  # what a captured step reads stays where it is
        else:
            group["lr"] = group["initial_lr"]
    return LambdaLR(optimizer, factor or recipe.factor, last_epoch=steps_done - 1)
