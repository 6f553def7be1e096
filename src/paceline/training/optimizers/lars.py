"""LARS: momentum SGD with a learning rate for each layer (You, Gitman and Ginsburg 2017, arXiv:1708.03888)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from paceline.training.optimizers.bundle import Bundle, listed, scalar_dtype
from paceline.training.optimizers.exclusion import DEFAULT_RULE, Exclude
from paceline.training.optimizers.layerwise import Layerwise, kept, rates
from paceline.training.optimizers.norms import NormGroup, squares
from paceline.training.optimizers.published_variants import LARS_VARIANTS, LarsVariant, trust_ratio, variant_of


class LARS(Layerwise):
    """LARS in the published form that ``variant`` names (``LARS_VARIANTS``): one word of state, seven moved per parameter.

    With d = g + weight_decay * w and ratio = trust_coefficient * |w| / (|g| + weight_decay * |w| + eps), the paper's step is
    v <- momentum * v + lr * ratio * d;  w <- w - v. Excluded tensors take d = g and ratio 1.

    Args:
        params: ``model.named_parameters()``, plain parameters, or groups of either; any of the options below can differ by
            group, except ``variant``.
        lr: learning rate; a number, or a tensor of one that a schedule or a graph changes.
        trust_coefficient: eta.
        eps: added to the ratio's denominator; None: the variant's.
        nesterov: where the variant's source has it.
        variant: ``paper``, ``mlperf``, ``joint`` (optax) or ``lr-outside`` (timm).
        exclude: tensors without decay and ratio (``rules.Exclude``); ``excluded()`` lists them.
        maximize: ascend.
        capturable: accepted for torch's sake: every step can be captured in a CUDA graph anyway, if lr is a tensor.
        foreach: True keeps fp32 tensors from the kernels (C++ on the CPU, Triton on NVIDIA GPUs).
        norm_group: ranks that hold other tensors of the same model: "world" or a group; None finds that of the
            ZeroRedundancyOptimizer that makes this one. One flag for all of them tells whether the step is skipped. Shards of a
            tensor (``fully_shard``) need none.
        diagnostics_every: steps between two transfers of ``diagnostics``; 0 keeps none.

    A step whose weights or gradients have squares that are not finite changes nothing and counts in ``skipped_steps``. 16-bit
    parameters have an fp32 master in the state, made from them at the first step: who writes other weights into them after that
    makes a new optimizer. Norms are of squares in fp32 in the kernels: numbers below 1e-23 count as zero there.

    Raises:
        UserError: unknown variant or rule, an option out of range, an empty group, complex or integer parameters, those of
            FullyShardedDataParallel; at a step: a sparse gradient.
    """

    _words = ("momentum_buffer",)
    _variants = LARS_VARIANTS

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        trust_coefficient: float = 0.001,
        eps: float | None = None,
        nesterov: bool = False,
        variant: str = "paper",
        exclude: Exclude = DEFAULT_RULE,
        maximize: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        norm_group: NormGroup = None,
        diagnostics_every: int = 0,
    ) -> None:
        published = variant_of("LARS", variant, LARS_VARIANTS)
        defaults: dict[str, Any] = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "eps": published.eps if eps is None else eps,
            "nesterov": nesterov,
            "variant": variant,
            "exclude": exclude,
            "maximize": maximize,
            "capturable": capturable,
        }
        super().__init__(params, defaults, foreach, norm_group, diagnostics_every)

    def _sums(self, bundle: Bundle) -> Tensor:
        joint = _variant(bundle).denominator == "joint"
        if bundle.kernels:
            return cast(Tensor, bundle.kernels.lars_sums(bundle, joint))
        dtype, parts = scalar_dtype(bundle.weights[0]), []
        for part in bundle.chunks():
            divisor = _direction(bundle, part, bundle.scaled(part)) if joint else bundle.scaled(part)
            parts.append(torch.stack([squares(bundle.weights[part], dtype), squares(divisor, dtype)]))
        return torch.cat(parts, dim=1)

    def _ratio(self, bundle: Bundle, norms: Tensor) -> Tensor:
        group = bundle.group
        decay = bundle.decay if _variant(bundle).denominator == "sum" else 0.0
        return trust_ratio(norms[0], norms[1], coefficient=group["trust_coefficient"], decay=decay, eps=group["eps"])

    def _write(self, bundle: Bundle, ratio: Tensor, finite: Tensor) -> None:
        # v <- momentum * v + gain * d;  w <- w - rate * v, or with Nesterov w - rate * (gain * d + momentum * v)
        group = bundle.group
        if _variant(bundle).rate == "inside":
            gain, rate = rates(group, ratio), torch.ones((), dtype=ratio.dtype, device=ratio.device)
        else:
            gain, rate = ratio, rates(group, torch.ones((), dtype=ratio.dtype, device=ratio.device))
        if bundle.kernels:
            bundle.kernels.lars_step(bundle, gain, rate, finite)
            bundle.publish(slice(None))
            return
        dtype = bundle.weights[0].dtype
        rate = torch.where(finite, -rate, 0).to(dtype)
        momentum = kept(group["momentum"], finite, dtype)
        gains = torch.where(finite, gain, 0).to(dtype).unbind()
        for part in bundle.chunks():
            buffers, weights = bundle.words[0][part], bundle.weights[part]
            change = listed(torch._foreach_mul(_direction(bundle, part, bundle.scaled(part, finite)), gains[part]))
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, change)
            if group["nesterov"]:
                torch._foreach_add_(change, buffers, alpha=group["momentum"])
            else:
                change = buffers
            torch._foreach_add_(weights, torch._foreach_mul(change, rate))
            bundle.publish(part)


def _variant(bundle: Bundle) -> LarsVariant:
    return LARS_VARIANTS[bundle.group["variant"]]


def _direction(bundle: Bundle, part: slice, gradients: list[Tensor]) -> list[Tensor]:
    """Return g + decay * w."""
    if not bundle.decay:
        return gradients
    return listed(torch._foreach_add(gradients, bundle.weights[part], alpha=bundle.decay))
