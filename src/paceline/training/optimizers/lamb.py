"""LAMB: Adam with a learning rate for each layer (You et al. 2020, arXiv:1904.00962)."""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import torch
from torch import Tensor

from paceline.errors import UserError
from paceline.training.optimizers.bundle import Bundle, listed, scalar_dtype
from paceline.training.optimizers.checks import is_number
from paceline.training.optimizers.exclusion import DEFAULT_RULE, Exclude
from paceline.training.optimizers.layerwise import Layerwise, kept, rates
from paceline.training.optimizers.norms import NormGroup, add_ranks, add_shards, squares
from paceline.training.optimizers.published_variants import LAMB_VARIANTS, trust_ratio, variant_of


class LAMB(Layerwise):
    """LAMB in the published form that ``variant`` names (``LAMB_VARIANTS``): two words of state, eleven moved per parameter.

    With Adam's moments m and v, u = m' / (sqrt(v') + eps) + weight_decay * w, where m' and v' are corrected for their bias;
    w <- w - lr * phi(|w|) / |u| * u. Excluded tensors have neither the decay nor the ratio.

    Args:
        params: ``model.named_parameters()``, plain parameters, or groups of either; any of the options below can differ by
            group, except ``variant``, ``max_grad_norm`` and ``bounds``.
        lr: learning rate; a number, or a tensor of one that a schedule or a graph changes.
        betas: decay of the two moments a step.
        variant: ``paper``; ``paper-v3``: no bias correction; ``nvlamb``: as ``paper`` after a global clip to ``max_grad_norm``.
        max_grad_norm: gradients are divided by max(1, |g| / max_grad_norm), |g| over all tensors (one more reduction);
            None: never; ``"variant"``: 1 for ``nvlamb``, else never.
        bounds: (lo, hi) of phi(z) = min(max(z, lo), hi); None: phi(z) = z.
        exclude, maximize, capturable, foreach, norm_group, diagnostics_every: see ``LARS``; ``norm_group`` also carries the
            global norm.

    A step whose weights, gradients or updates have squares that are not finite changes nothing and counts in
    ``skipped_steps``. 16-bit parameters have an fp32 master in the state, made from them at the first step.

    Raises:
        UserError: as ``LARS``.
    """

    _words = ("exp_avg", "exp_avg_sq")
    _counts_steps = True
    _saved = ("max_grad_norm", "bounds")
    _variants = LAMB_VARIANTS

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        variant: str = "paper",
        max_grad_norm: float | Literal["variant"] | None = "variant",
        bounds: tuple[float, float] | None = None,
        exclude: Exclude = DEFAULT_RULE,
        maximize: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        norm_group: NormGroup = None,
        diagnostics_every: int = 0,
    ) -> None:
        published = variant_of("LAMB", variant, LAMB_VARIANTS)
        self.max_grad_norm = published.max_grad_norm if max_grad_norm == "variant" else max_grad_norm
        if not (self.max_grad_norm is None or (is_number(self.max_grad_norm) and 0 < self.max_grad_norm < math.inf)):
            raise UserError(f"LAMB: max_grad_norm={self.max_grad_norm!r}; legal: above 0 and finite, or None for no clip")
        pair = isinstance(bounds, tuple | list) and len(bounds) == 2 and all(map(is_number, bounds))
        if bounds is not None and not (pair and 0 <= bounds[0] < bounds[1]):
            raise UserError(f"LAMB: bounds={bounds!r}; legal: (lo, hi) with 0 <= lo < hi")
        self.bounds = bounds
        defaults: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "variant": variant,
            "exclude": exclude,
            "maximize": maximize,
            "capturable": capturable,
        }
        super().__init__(params, defaults, foreach, norm_group, diagnostics_every)

    @property
    def _of_all(self) -> dict[str, Any]:
        return {**super()._of_all, "max_grad_norm": self.max_grad_norm, "bounds": self.bounds}

    def _scale_gradients(self, bundles: list[Bundle], home: torch.device) -> None:
        super()._scale_gradients(bundles, home)
        if self.max_grad_norm is None:
            return
        parameters = [parameter for bundle in bundles for parameter in bundle.parameters]
        sums = [_gradient_squares(bundle).to(home) for bundle in bundles]
        total = (
            add_shards(torch.cat(sums)[None], parameters).sum()
            if bundles
            else torch.zeros((), dtype=torch.float32, device=home)
        )
        norm = add_ranks(total, self.norm_group).sqrt()
        clip = self.max_grad_norm / norm.clamp(min=self.max_grad_norm)
        for bundle in bundles:
            bundle.scale = bundle.scale * clip.to(bundle.device, scalar_dtype(bundle.weights[0]))

    def _sums(self, bundle: Bundle) -> Tensor:
        bundle.corrections = _corrections(bundle)
        if bundle.kernels:
            return cast(Tensor, bundle.kernels.lamb_sums(bundle))
        dtype, parts = scalar_dtype(bundle.weights[0]), []
        beta1, beta2 = bundle.group["betas"]
        for part in bundle.chunks():
            gradients = bundle.scaled(part)
            first = listed(torch._foreach_mul(bundle.words[0][part], beta1))
            torch._foreach_add_(first, gradients, alpha=1 - beta1)
            second = listed(torch._foreach_mul(bundle.words[1][part], beta2))
            torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
            update = _direction(bundle, part, first, second)
            parts.append(torch.stack([squares(list(t), dtype) for t in (bundle.weights[part], update, gradients)]))
        return torch.cat(parts, dim=1)

    def _ratio(self, bundle: Bundle, norms: Tensor) -> Tensor:
        return trust_ratio(norms[0], norms[1], bounds=self.bounds)

    def _write(self, bundle: Bundle, ratio: Tensor, finite: Tensor) -> None:
        rate = rates(bundle.group, ratio)
        if bundle.kernels:
            bundle.kernels.lamb_step(bundle, rate, finite)
            bundle.publish(slice(None))
            _count(bundle, finite)
            return
        dtype = bundle.weights[0].dtype
        beta1, beta2 = bundle.group["betas"]
        keep1, keep2 = (kept(beta, finite, dtype) for beta in (beta1, beta2))
        changes = torch.where(finite, -rate, 0).to(dtype).unbind()
        for part in bundle.chunks():
            gradients = bundle.scaled(part, finite)
            first, second, weights = bundle.words[0][part], bundle.words[1][part], bundle.weights[part]
            torch._foreach_mul_(first, keep1)
            torch._foreach_add_(first, gradients, alpha=1 - beta1)
            torch._foreach_mul_(second, keep2)
            torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
            update = _direction(bundle, part, first, second)
            torch._foreach_mul_(update, changes[part])
            torch._foreach_add_(weights, update)
            bundle.publish(part)
        _count(bundle, finite)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "max_grad_norm": self.max_grad_norm, "bounds": self.bounds}


def _count(bundle: Bundle, finite: Tensor) -> None:
    """Count a finite step of each tensor.

    The counts are a list, because one tensor for all would be read on the host, which stops a compiled step.
    """
    torch._foreach_add_(bundle.steps, [finite.to(torch.float32)] * len(bundle.steps))


def _gradient_squares(bundle: Bundle) -> Tensor:
    if bundle.kernels:
        return cast(Tensor, bundle.kernels.gradient_squares(bundle))
    dtype = scalar_dtype(bundle.weights[0])
    return torch.cat([squares(bundle.scaled(part), dtype) for part in bundle.chunks()])


def _corrections(bundle: Bundle) -> tuple[Tensor, Tensor]:
    """Return factors of the first moment and of the root of the second in the coming step, shape (n,) each."""
    dtype = scalar_dtype(bundle.weights[0])
    if not LAMB_VARIANTS[bundle.group["variant"]].bias_correction:
        ones = torch.ones(len(bundle.steps), dtype=dtype, device=bundle.device)
        return ones, ones
    steps = torch.stack(bundle.steps).to(dtype) + 1
    # 1 - beta ** step by expm1: at the first steps the difference itself would lose five digits in fp32
    first, second = (-torch.expm1(steps * (math.log(beta) if beta else -math.inf)) for beta in bundle.group["betas"])
    return first.reciprocal(), second.rsqrt()


def _direction(bundle: Bundle, part: slice, first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
    """Return u: the corrected first moment over the root of the corrected second, plus decay."""
    dtype = bundle.weights[0].dtype
    correct1, correct2 = (c.to(dtype).unbind()[part] for c in bundle.corrections)
    root = torch._foreach_sqrt(second)
    torch._foreach_mul_(root, correct2)
    torch._foreach_add_(root, bundle.group["eps"])
    update = listed(torch._foreach_mul(first, correct1))
    torch._foreach_div_(update, root)
    if bundle.decay:
        torch._foreach_add_(update, bundle.weights[part], alpha=bundle.decay)
    return update
