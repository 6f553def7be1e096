"""Losses that adapt a network to a target domain without labels.

Wu et al., CVPR 2017 (arXiv:1703.04071) join three terms: invariance across domains, less divergence of the features, adapted
prediction of labels. Their formulas are not public. These published terms replace them:

- ``adversarial``: a classifier of domains on the features, whose gradient is reversed (DANN, Ganin et al. 2016,
  arXiv:1505.07818).
- ``mmd``: maximum mean discrepancy of the features with Gaussian kernels of five widths (Gretton et al. 2012; Long et al. 2015,
  arXiv:1502.02791). ``coral``: distance of the features' covariances (Sun, Saenko 2016, arXiv:1607.01719).
- ``entropy``: of the predictions for the target (Grandvalet, Bengio 2004; Long et al. 2016, arXiv:1602.04433).

Batch normalisation takes the statistics of the target after training (Li et al. 2016, arXiv:1603.04779).
``examples/adapt_without_labels.py`` is a training with these losses.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

KERNELS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Widths of the Gaussian kernels, in mean squared distances (Long et al. 2015)."""
HIDDEN = 100
"""Width of the classifier of domains (Ganin et al. 2016, the network for MNIST)."""


@dataclass(frozen=True, slots=True)
class Strengths:
    """Weights of the loss terms. Each rises from 0 by ``ramp``; a term of weight 0 is not computed."""

    adversarial: float = 1.0
    mmd: float = 1.0
    coral: float = 0.0
    entropy: float = 0.1


def ramp(progress: float) -> float:
    """Return ``2 / (1 + exp(-10 p)) - 1``, from 0 to 1 over the training (Ganin et al. 2016, section 5.2.2)."""
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
    """Return ``x`` with its gradient multiplied by ``-scale``."""
    result: Tensor = _Reversal.apply(x, scale)  # type: ignore[no-untyped-call]
    return result


def mmd(source: Tensor, target: Tensor) -> Tensor:
    """Return the squared maximum mean discrepancy of features (B, F) and (C, F), averaged over ``KERNELS``.

    This is the biased estimate (Gretton et al. 2012, equation 5): at least 0, and 0 for equal samples. No gradient flows
    through the mean squared distance.
    """
    both = torch.cat([source, target])
    both = both - both.detach().mean(0)  # keeps the difference of squares accurate
    lengths = both.square().sum(1)
    squares = (lengths[:, None] + lengths - 2 * both @ both.T).clamp(min=0)
    count = len(both)
    mean = squares.detach().sum() / (count * (count - 1))
    kernel = torch.stack([torch.exp(-squares / (width * mean + 1e-12)) for width in KERNELS]).mean(0)
    first = len(source)
    return kernel[:first, :first].mean() + kernel[first:, first:].mean() - 2 * kernel[:first, first:].mean()


def coral(source: Tensor, target: Tensor) -> Tensor:
    """Return the squared Frobenius distance of covariances of features (B, F) and (C, F) over ``4 F^2`` (Sun, Saenko 2016)."""
    apart = torch.cov(source.T) - torch.cov(target.T)
    return apart.square().sum() / (4 * source.shape[1] ** 2)


def entropy(logits: Tensor) -> Tensor:
    """Return the mean entropy of predictions (B, classes), in nats."""
    logs = functional.log_softmax(logits, 1)
    return -(logs.exp() * logs).sum(1).mean()


class DomainLoss(nn.Module):
    """Adaptation terms of one batch of each domain.

    Args:
        features: features per sample at the layer where the domains are compared.
    """

    def __init__(self, features: int, strengths: Strengths = Strengths()) -> None:
        super().__init__()
        self.strengths = strengths
        self.domains = nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], progress: float = 1.0) -> dict[str, Tensor]:
        """Return the weighted terms, by name, to add to the loss of the source's labels.

        Args:
            source: features (B, F) and logits (B, classes). ``target``: the same of C samples.
            progress: share of the training that is done.
        """
        weights, now, terms = self.strengths, ramp(progress), {}
        if weights.adversarial:
            # The classifier of domains learns at its full rate; only the gradient of the features is scaled.
            features = reversed_gradient(torch.cat([source[0], target[0]]), weights.adversarial * now)
            of_source = torch.cat([source[0].new_ones(len(source[0])), target[0].new_zeros(len(target[0]))])
            terms["adversarial"] = functional.binary_cross_entropy_with_logits(self.domains(features).squeeze(1), of_source)
        if weights.mmd:
            terms["mmd"] = weights.mmd * now * mmd(source[0], target[0])
        if weights.coral:
            terms["coral"] = weights.coral * now * coral(source[0], target[0])
        if weights.entropy:
            terms["entropy"] = weights.entropy * now * entropy(target[1])
        return terms


def normalised_for(model: nn.Module, samples: Tensor, batch: int = 256) -> nn.Module:
    """Return a copy in eval mode whose batch normalisations have the statistics of these samples."""
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
