"""Trust ratio in one function, and the published variants of LARS and LAMB as data.

LARS: You, Gitman and Ginsburg 2017 (arXiv:1708.03888). LAMB: You et al. 2020 (ICLR, arXiv:1904.00962). The variants differ
by up to tens of percent in the weights after twenty steps: a recipe tuned for one is not the other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from paceline.errors import UserError
from paceline.names import did_you_mean


@dataclass(frozen=True, slots=True)
class LarsVariant:
    """Published variant of LARS.

    Attributes:
        denominator: ``sum``: |g| + decay * |w|; ``joint``: |d|.
        rate: where the learning rate stands. ``inside``: v <- momentum * v + rate * ratio * d, w <- w - v;
            ``outside``: v <- momentum * v + ratio * d, w <- w - rate * v. They agree only while the rate is constant.
        eps: added to the denominator unless the caller gives one.
        nesterov: whether its source has Nesterov momentum.
        source: where it is written down.
    """

    name: str
    denominator: Literal["sum", "joint"]
    rate: Literal["inside", "outside"]
    eps: float
    nesterov: bool
    source: str


@dataclass(frozen=True, slots=True)
class LambVariant:
    """Published variant of LAMB.

    Attributes:
        bias_correction: whether the moments are divided by 1 - beta ** step.
        max_grad_norm: the gradient of all tensors together is scaled down to this norm before anything else; None: never.
        source: its publication.
    """

    name: str
    bias_correction: bool
    max_grad_norm: float | None
    source: str


LARS_VARIANTS: Mapping[str, LarsVariant] = {
    v.name: v
    for v in (
        LarsVariant("paper", "sum", "inside", 0.0, False, "arXiv:1708.03888, algorithm 1"),
        LarsVariant("mlperf", "sum", "inside", 1e-7, True, "MLPerf ResNet-50, resnet-tf2 lars_optimizer.py, Keras' epsilon"),
        LarsVariant("joint", "joint", "inside", 0.0, True, "optax.lars: decay joins the gradient before the ratio"),
        LarsVariant("lr-outside", "sum", "outside", 1e-8, True, "timm Lars, torch_optimizer, apex LARC without its clip"),
    )
}
LAMB_VARIANTS: Mapping[str, LambVariant] = {
    v.name: v
    for v in (
        LambVariant("paper", True, None, "arXiv:1904.00962, algorithm 2; tensorflow_addons, optax"),
        LambVariant("paper-v3", False, None, "arXiv:1904.00962v3: moments without bias correction; cybertronai/pytorch-lamb"),
        LambVariant("nvlamb", True, 1.0, "NVIDIA apex FusedLAMB: the gradient is clipped to a global norm of 1 first"),
    )
}

V = TypeVar("V")


def variant_of(optimizer: str, name: str, variants: Mapping[str, V]) -> V:
    """Return the variant of that name. Raises UserError naming the nearest."""
    if not isinstance(name, str) or name not in variants:
        other, of_other = ("LAMB", LAMB_VARIANTS) if optimizer == "LARS" else ("LARS", LARS_VARIANTS)
        near = did_you_mean(str(name), variants, 1)[0]
        fix = f"{name!r} is one of {other}" if str(name) in of_other else f"did you mean {near!r}?"
        raise UserError(f"unknown {optimizer} variant {name!r}; legal: {', '.join(variants)}", fix)
    return variants[name]


def trust_ratio(
    weight: Tensor,
    update: Tensor,
    *,
    coefficient: float = 1.0,
    decay: float = 0.0,
    eps: float = 0.0,
    bounds: tuple[float, float] | None = None,
) -> Tensor:
    """Return ``coefficient * phi(|w|) / (|u| + decay * |w| + eps)``, or 1 if |w| or |u| is zero.

    Every variant has this form: LARS with |u| = |g| and its decay (``sum``) or |u| = |g + decay * w| and none (``joint``);
    LAMB with |u| = |m / (sqrt(v) + eps) + decay * w| and coefficient 1.

    Args:
        weight, update: norms of n tensors, shape (n,).
        bounds: (lo, hi) of phi(z) = min(max(z, lo), hi); None: phi(z) = z, as in the authors' code.

    Returns:
        shape (n,).
    """
    shaped = weight if bounds is None else weight.clamp(bounds[0], bounds[1])
    ratio = coefficient * shaped / (update + decay * weight + eps)
    return torch.where((weight == 0) | (update == 0), torch.ones_like(ratio), ratio)
