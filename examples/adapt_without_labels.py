"""Adapt a network that learned one kind of images to another kind without labels.

    python examples/adapt_without_labels.py

The source is scikit-learn's digits, with labels; the target is other digits of the same set, wider and darker. The losses come
from ``paceline.slimming.methods.domain_adaptation``; this file is the training around them. The rates follow DANN's schedule.
Source and target pass one after the other, each normalised by its own batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from paceline.errors import UserError, check_count
from paceline.models.vision.compact import narrow
from paceline.slimming.methods.domain_adaptation import DomainLoss, Strengths, normalised_for
from paceline.training.runs import data


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of the training.

    Attributes:
        steps: optimizer steps. ``batch``: samples of each domain per step.
        rate: first learning rate; after a share ``p`` of the steps it is ``rate / (1 + 10 p)^0.75`` (Ganin et al. 2016).
    """

    steps: int = 500
    batch: int = 64
    rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    seed: int = 0
    strengths: Strengths = field(default_factory=Strengths)


class DomainAdaptation:
    """A training that adapts a model in place.

    Args:
        model: images to logits. Its features are what enters its last ``nn.Linear``.
        source: samples and class indices. ``target``: samples alone.
        wrap: around the optimizer, for a penalty such as ``GroupLasso``.

    Attributes:
        step: steps done. ``terms``: the loss of the last step, by term.

    Raises:
        UserError: a model without a linear layer, no samples, or a recipe without steps.
    """

    def __init__(
        self,
        model: nn.Module,
        source: tuple[Tensor, Tensor],
        target: Tensor,
        recipe: Recipe = Recipe(),
        wrap: Callable[[Optimizer], Optimizer] = lambda optimizer: optimizer,
    ) -> None:
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise UserError(
                f"{type(model).__name__} has no linear layer", "the domains are compared at the input of its last one"
            )
        if not len(source[0]) or not len(target):
            raise UserError(f"{len(source[0])} samples of the source and {len(target)} of the target", "give some of both")
        if len(source[0]) != len(source[1]):
            raise UserError(f"{len(source[0])} samples of the source and {len(source[1])} labels", "give a label for each")
        check_count(recipe.steps, "steps")
        check_count(recipe.batch, "samples in a batch", least=2)
        self.model, self.source, self.target, self.recipe = model, source, target, recipe
        self.step, self.terms = 0, dict[str, float]()
        self._last = linear[-1]
        with _seeded(recipe.seed):
            self.loss = DomainLoss(self._last.in_features, recipe.strengths).to(self._last.weight.device)
        parameters = [*model.parameters(), *self.loss.parameters()]
        sgd = torch.optim.SGD(parameters, recipe.rate, recipe.momentum, weight_decay=recipe.weight_decay, nesterov=True)
        self.optimizer = wrap(sgd)

    def run(self) -> None:
        """Train to the end. Each step draws its batches from a seed of its number."""
        self.model.train()
        while self.step < self.recipe.steps:
            with _seeded(self.recipe.seed * 1_000_003 + self.step + 1):
                self._step()
            self.step += 1

    def _step(self) -> None:
        recipe, (samples, labels) = self.recipe, self.source
        progress = self.step / recipe.steps
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.rate / (1 + 10 * progress) ** 0.75
        chosen = torch.randint(len(samples), (recipe.batch,)).to(samples.device)
        source, logits = self._features(samples[chosen])
        losses = {"source": functional.cross_entropy(logits, labels[chosen])}
        if any(asdict(recipe.strengths).values()):
            target = self._features(self.target[torch.randint(len(self.target), (recipe.batch,)).to(self.target.device)])
            losses |= self.loss((source, logits), target, progress)
        self.optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        self.optimizer.step()
        self.terms = {name: float(loss.detach()) for name, loss in losses.items()}

    def _features(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        entered: list[Tensor] = []
        hook = self._last.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
        try:
            logits = self.model(samples)
        finally:
            hook.remove()
        return entered[-1], logits


def adapt(
    model: nn.Module,
    source: tuple[Tensor, Tensor],
    target: Tensor,
    recipe: Recipe = Recipe(),
    wrap: Callable[[Optimizer], Optimizer] = lambda optimizer: optimizer,
) -> nn.Module:
    """Return an adapted copy of a model, with the target's statistics. Arguments and errors as ``DomainAdaptation``."""
    adaptation = DomainAdaptation(copy.deepcopy(model), source, target, recipe, wrap)
    adaptation.run()
    return normalised_for(adaptation.model, target)


@torch.no_grad()
def predictions(model: nn.Module, samples: Tensor, batch: int = 512) -> Tensor:
    """Return class indices (B,) of a model in eval mode."""
    training = model.training
    model.eval()
    found = torch.cat([model(samples[start : start + batch]).argmax(1) for start in range(0, len(samples), batch)])
    model.train(training)
    return found


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators, and restore them afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def main() -> None:
    """Train on the source alone, then for the target too."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = data.load("digits")
    half = len(digits.train_x) // 2
    source = digits.train_x[:half], digits.train_y[:half]
    images, classes = digits.train_x[half:], digits.train_y[half:]
    target = 0.5 * nn.functional.interpolate(images, size=(28, 36))[:, :, :, 4:-4]

    def right(model: nn.Module, images: Tensor) -> str:
        return f"{(predictions(model, images) == classes).float().mean().item():.1%}"

    recipe = Recipe(steps=150, batch=32, rate=0.1)
    alone = DomainAdaptation(narrow(0.5), source, target, replace(recipe, strengths=Strengths(0, 0, 0, 0)))
    alone.run()
    print(f"trained on the source: {right(alone.model, images)} of its kind, {right(alone.model, target)} of the target")
    print(f"with the target's statistics: {right(normalised_for(alone.model, target), target)} of the target")
    print(f"adapted: {right(adapt(narrow(0.5), source, target, recipe), target)} of the target")


if __name__ == "__main__":
    main()
