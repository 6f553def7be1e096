"""Adapts a network to a target domain without a label of it.

The terms that Wu et al., CVPR 2017 (arXiv:1703.04071) join are public in words only: invariance across domains, less divergence
of the features, adapted prediction of labels. These published terms stand in for theirs; they are not their formulas:

- ``adversarial``: a classifier of domains on the features, whose gradient is reversed (DANN, Ganin et al. 2016,
  arXiv:1505.07818).
- ``mmd``: maximum mean discrepancy of the features with Gaussian kernels of five widths (Gretton et al. 2012; Long et al. 2015,
  arXiv:1502.02791). ``coral``: distance of the features' covariances (Sun, Saenko 2016, arXiv:1607.01719).
- ``entropy``: of the predictions for the target (Grandvalet, Bengio 2004; Long et al. 2016, arXiv:1602.04433).

The rates and strengths follow DANN's schedule. Batch normalisation: source and target pass one after the other, each normalised
by its own batch; after training the running statistics are those of the target (Li et al. 2016, arXiv:1603.04779).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from paceline.errors import UserError, check_count

KERNELS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Widths of the Gaussian kernels, in mean squared distances (Long et al. 2015)."""
HIDDEN = 100
"""Width of the classifier of domains (Ganin et al. 2016, the network for MNIST)."""


@dataclass(frozen=True, slots=True)
class Strengths:
    """Weights of the terms; a term of weight 0 is not computed. All rise from 0 by ``ramp``."""

    adversarial: float = 1.0
    mmd: float = 1.0
    coral: float = 0.0
    entropy: float = 0.1


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to adapt.

    Attributes:
        steps: of the optimizer. ``batch``: samples of each domain in a step.
        rate: the first learning rate; after a share ``p`` of the steps it is ``rate / (1 + 10 p)^0.75`` (Ganin et al. 2016).
    """

    steps: int = 500
    batch: int = 64
    rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    seed: int = 0
    strengths: Strengths = Strengths()


def ramp(progress: float) -> float:
    """``2 / (1 + exp(-10 p)) - 1``: from 0 to 1 over the training (Ganin et al. 2016, section 5.2.2)."""
    return 2 / (1 + math.exp(-10 * progress)) - 1


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, scale: float) -> Tensor:
        context.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -context.scale * gradients[0], None


def reversed_gradient(x: Tensor, scale: float) -> Tensor:
    """``x`` itself, whose gradient is multiplied by ``-scale``."""
    result: Tensor = _Reversal.apply(x, scale)  # type: ignore[no-untyped-call]
    return result


def mmd(source: Tensor, target: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of features (B, F) and (C, F), at least 0 and 0 for equal samples: the biased estimate
    (Gretton et al. 2012, equation 5), the mean over ``KERNELS``. The mean squared distance is taken without a gradient."""
    both = torch.cat([source, target])
    both = both - both.detach().mean(0)  # so that little is lost in the difference of squares
    lengths = both.square().sum(1)
    squares = (lengths[:, None] + lengths - 2 * both @ both.T).clamp(min=0)
    count = len(both)
    mean = squares.detach().sum() / (count * (count - 1))
    kernel = torch.stack([torch.exp(-squares / (width * mean + 1e-12)) for width in KERNELS]).mean(0)
    first = len(source)
    return kernel[:first, :first].mean() + kernel[first:, first:].mean() - 2 * kernel[:first, first:].mean()


def coral(source: Tensor, target: Tensor) -> Tensor:
    """Squared Frobenius distance of the covariances of features (B, F) and (C, F), divided by ``4 F^2`` (Sun, Saenko 2016)."""
    apart = torch.cov(source.T) - torch.cov(target.T)
    return apart.square().sum() / (4 * source.shape[1] ** 2)


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy of predictions (B, classes), in nats."""
    logs = functional.log_softmax(logits, 1)
    return -(logs.exp() * logs).sum(1).mean()


class DomainLoss(nn.Module):
    """The terms of a batch of each domain.

    Args:
        features: how many numbers a sample has where the domains are compared.
    """

    def __init__(self, features: int, strengths: Strengths = Strengths()) -> None:
        super().__init__()
        self.strengths = strengths
        self.domains = nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], progress: float = 1.0) -> dict[str, Tensor]:
        """What to add to the loss of the source's labels, by term, weighted.

        Args:
            source: features (B, F) and logits (B, classes). ``target``: the same of C samples.
            progress: share of the training that is over.
        """
        weights, now, terms = self.strengths, ramp(progress), {}
        if weights.adversarial:
            # The classifier of domains learns at its full rate; only what the features get back is scaled.
            given = reversed_gradient(torch.cat([source[0], target[0]]), weights.adversarial * now)
            of_source = torch.cat([source[0].new_ones(len(source[0])), target[0].new_zeros(len(target[0]))])
            terms["adversarial"] = functional.binary_cross_entropy_with_logits(self.domains(given).squeeze(1), of_source)
        if weights.mmd:
            terms["mmd"] = weights.mmd * now * mmd(source[0], target[0])
        if weights.coral:
            terms["coral"] = weights.coral * now * coral(source[0], target[0])
        if weights.entropy:
            terms["entropy"] = weights.entropy * now * entropy(target[1])
        return terms


class DomainAdaptation:
    """A training that adapts a model in place, step by step, and can stop and go on.

    Args:
        model: images to logits. Its features are what enters its last ``nn.Linear``.
        source: samples and class indices. ``target``: samples alone.
        wrap: around the optimizer, for a penalty such as ``GroupLasso``.

    Attributes:
        step: so many were made. ``terms``: the loss of the last step, by term.

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
            raise UserError(f"{type(model).__name__} has no linear layer", "the domains are compared where its last one begins")
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

    def run(self, until: int | None = None) -> None:
        """Train to a step, by default to the end; a run in parts equals a whole one, bit for bit."""
        self.model.train()
        end = self.recipe.steps if until is None else min(until, self.recipe.steps)
        while self.step < end:
            with _seeded(self.recipe.seed * 1_000_003 + self.step + 1):
                self._step()
            self.step += 1

    def _step(self) -> None:
        recipe, (samples, labels) = self.recipe, self.source
        progress = self.step / recipe.steps
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.rate / (1 + 10 * progress) ** 0.75
        own = torch.randint(len(samples), (recipe.batch,)).to(samples.device)
        source, logits = self._features(samples[own])
        losses = {"source": functional.cross_entropy(logits, labels[own])}
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

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs: tensors, numbers and lists."""
        trained = {"model": self.model.state_dict(), "loss": self.loss.state_dict(), "optimizer": self.optimizer.state_dict()}
        return copy.deepcopy({"step": self.step, "recipe": asdict(self.recipe), **trained})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of ``state_dict``. Raises UserError for the state of another recipe."""
        if state["recipe"] != asdict(self.recipe):
            raise UserError("the state is of a training with another recipe", "resume with the same recipe")
        self.model.load_state_dict(state["model"])
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]


def adapt(
    model: nn.Module,
    source: tuple[Tensor, Tensor],
    target: Tensor,
    recipe: Recipe = Recipe(),
    wrap: Callable[[Optimizer], Optimizer] = lambda optimizer: optimizer,
) -> nn.Module:
    """A copy of a model, trained on the labels of the source for the target, with the target's statistics. As
    ``DomainAdaptation``, which can stop and go on.

    Raises:
        UserError: as ``DomainAdaptation``.
    """
    adaptation = DomainAdaptation(copy.deepcopy(model), source, target, recipe, wrap)
    adaptation.run()
    return normalised_for(adaptation.model, target)


def normalised_for(model: nn.Module, samples: Tensor, batch: int = 256) -> nn.Module:
    """A copy in eval mode whose batch normalisations have the statistics of these samples; all else is as it was."""
    same = copy.deepcopy(model)
    norms = [module for module in same.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in norms if norm.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    same.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    if norms:
        with torch.no_grad():
            for start in range(0, len(samples) - len(samples) % batch or len(samples), batch):
                same(samples[start : start + batch])
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return same.eval()


@torch.no_grad()
def predictions(model: nn.Module, samples: Tensor, batch: int = 512) -> Tensor:
    """Class indices (B,) of a model in eval mode: also the labels of the next source in a chain of domains."""
    training = model.training
    model.eval()
    found = torch.cat([model(samples[start : start + batch]).argmax(1) for start in range(0, len(samples), batch)])
    model.train(training)
    return found


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Torch's generators begin anew at this seed and go on as they were afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


__all__ = [
    "DomainAdaptation",
    "DomainLoss",
    "Recipe",
    "Strengths",
    "adapt",
    "coral",
    "entropy",
    "mmd",
    "normalised_for",
    "predictions",
    "ramp",
    "reversed_gradient",
]
