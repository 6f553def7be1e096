"""Lines of PyTorch for the optimizer and its learning rates in the user's script, with the plan's recipe if there is one.

``torch.optim.lr_scheduler.LambdaLR``: https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.LambdaLR.html;
``ZeroRedundancyOptimizer``: https://docs.pytorch.org/docs/stable/distributed.optim.html.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from paceline.planning.emit.job import EmittedJob
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.recipe import Recipe


def optimizer_import(job: EmittedJob) -> str:
    """Return the package that has the optimizer's class; empty for PyTorch."""
    package = OPTIMIZERS[job.optimizer].python.partition(".")[0]
    return "" if package == "torch" else package


def import_lines(job: EmittedJob, hooked: bool) -> Iterator[str]:
    """Yield the imports of the script. ``hooked``: whether it calls Paceline."""
    packages = {optimizer_import(job), "paceline" if hooked else ""} - {""}
    yield from (f"import {package}" for package in sorted(packages))


_KEYWORDS = {"looped": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
"""Arguments of PyTorch's optimizers for each way to run their kernels."""


def optimizer_arguments(job: EmittedJob, kernels: bool = True) -> dict[str, Any]:
    """Return options of the optimizer except its rate, by PyTorch's names: from the recipe, else the essential ones.

    Args:
        kernels: whether the way to run its kernels is one of them.
    """
    optimizer, update = OPTIMIZERS[job.optimizer], job.strategy.weight_update.update
    ways = _KEYWORDS.get(update, {}) if optimizer.of_torch and kernels else {}
    if optimizer.factored:
        ways = {"relative_step": False, "scale_parameter": False}
    return {**optimizer.needed} | (job.recipe.arguments if job.recipe else {}) | ways


def optimizer_lines(job: EmittedJob, sharded: bool = False) -> Iterator[str]:
    """Yield the optimizer, then its learning-rate scheduler. Without a recipe ``lr=...`` is left to the user.

    Args:
        sharded: whether ``ZeroRedundancyOptimizer`` shards its state.

    Raises:
        UserError: an optimizer that ``ZeroRedundancyOptimizer`` cannot shard, because it divides the model by names.
    """
    recipe, kind = job.recipe, OPTIMIZERS[job.optimizer].python
    begin = f"torch.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), {kind}" if sharded else ""
    if OPTIMIZERS[job.optimizer].orthogonal:
        if sharded:
            raise job.refused(f"optimizer {job.optimizer} with ZeroRedundancyOptimizer", "give sharding ddp or zero3")
        begin = f"{kind}(model"
    rate = f"{recipe.lr:.6g}" if recipe else "..."
    options = "".join(
        f", {name}={value if isinstance(value, bool) else json.dumps(value)}"
        for name, value in optimizer_arguments(job).items()
    )
    yield f"optimizer = {begin or f'{kind}(model.parameters()'}, lr={rate}{options})"
    if recipe:
        yield f"# learning rate: {recipe.source}"
        yield f"scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, {rate_factor(recipe)})"
        yield "scheduler.step()  # after each step of the optimizer"
    else:
        yield "# learning rate: no source has one for this network, optimizer and batch; choose it"


def rate_factor(recipe: Recipe) -> str:
    """Return ``Recipe.factor`` as a Python lambda: the share of the peak at a step, counted from 0."""
    warmup, total, power, ahead = recipe.warmup_steps, recipe.total_steps, recipe.power, recipe.steps_ahead
    least = recipe.end_lr / recipe.lr if power else 1.0
    after = f"{least!r}"
    if power and total > warmup:
        begun = f"step - {warmup}" if warmup else "step"
        gone = f"(1 - min(1, ({begun}) / {total - warmup})) ** {power:g}"
        after = f"{least!r} + {1 - least!r} * {gone}" if least else gone
    if not warmup:
        return f"lambda step: {after}"
    return f"lambda step: (step + {1 + ahead}) / {warmup + ahead} if step < {warmup} else {after}"
