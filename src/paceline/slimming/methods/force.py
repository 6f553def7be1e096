"""Force regularisation (Wen et al., ICCV 2017): filters of a layer attract one another, so that fewer directions span them.

With ``w_i = W_i / |W_i|``, the force on a filter is ``f_i = sum_j (w_j - w_i)`` (``L2``) or ``f_i = sum_j (w_j - w_i) / |w_j -
w_i|`` (``L1``). A step of rate ``lr`` moves it by ``lr strength |W_i| (f_i - (f_i . w_i) w_i)``: along the sphere, so that its
norm stays to first order. This is gradient descent on the sum over pairs of half the squared distance, or of the distance, of
normalised filters, times ``|W_i|^2``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.errors import UserError, check_name
from paceline.slimming.methods.wrapped_optimizer import WrappedOptimizer

_TINY = 1e-12
"""Norm below which a filter has no direction."""
_NEAR = 1e-3
"""Distance below which filters do not attract: with L1 they would oscillate, and the Gram matrix has float32's rounding."""


def _squared(directions: Tensor) -> Tensor:
    """Return ``n mean - n w_i``, in O(filters x weights of one)."""
    return directions.sum(0) - len(directions) * directions


def _constant(directions: Tensor) -> Tensor:
    """Return unit pulls by the Gram matrix, in O(filters^2 x weights of one), with no tensor larger than either."""
    gram = directions @ directions.T
    distances = (2 - 2 * gram).clamp(min=0).sqrt()  # of unit vectors
    pulls = torch.where(distances > _NEAR, 1 / distances, 0.0).fill_diagonal_(0)
    return pulls @ directions - pulls.sum(1, keepdim=True) * directions


FORCES: MappingProxyType[str, Callable[[Tensor], Tensor]] = MappingProxyType({"L1": _constant, "L2": _squared})


def tangent_force(weight: Tensor, force: str = "L2") -> Tensor:
    """Return ``|W_i| (f_i - (f_i . w_i) w_i)`` of each filter, in the shape of ``weight``; its first dimension counts filters.

    Raises:
        UserError: an unknown force.
    """
    check_name("force", force, FORCES)
    filters = weight.detach().flatten(1)
    norms = filters.norm(dim=1, keepdim=True)
    directions = torch.where(norms > _TINY, filters / norms.clamp(min=_TINY), 0.0)
    pull = FORCES[force](directions)
    along = (pull * directions).sum(1, keepdim=True)
    moved: Tensor = norms * (pull - along * directions)
    return moved.view_as(weight)


class ForceRegularizer(WrappedOptimizer):
    """Optimizer that moves the filters of a layer towards one another after each step.

    The force is a separate step after the optimizer's, like decoupled weight decay (Loshchilov and Hutter 2019). It passes
    neither through momentum nor through Adam's scaling, so a strength means the same with every optimizer. The authors' code
    adds it to the gradient before momentum ``m``: its strength acts as ``strength / (1 - m)`` here.

    Args:
        optimizer: any; each of its groups' learning rates is that of the force.
        strength: strength of the force; it acts in proportion to the number of filters.
        force: ``L1``, of constant size for each pair, or ``L2``, in proportion to the distance.
        layers: names of modules; by default every convolution of one group. Frozen layers do not move.
        linear: treat rows of linear layers as filters too, if ``layers`` is not given.
        same: drop components of the force that oppose the step along the loss's gradient.
        adaptive: scale each layer's force to the norm of its gradient.

    Raises:
        UserError: a negative strength, an unknown force, a layer that is not there or has no filters.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        strength: float,
        *,
        force: str = "L2",
        layers: Collection[str] | None = None,
        linear: bool = False,
        same: bool = False,
        adaptive: bool = False,
    ) -> None:
        check_name("force", force, FORCES)
        super().__init__(optimizer, strength)
        self.force, self.same, self.adaptive = force, same, adaptive
        names = [name for name, module in model.named_modules() if _has_filters(module, linear)] if layers is None else layers
        self._filters = {id(_weight(model, name)) for name in names}

    @torch.no_grad()
    def after_step(self) -> None:
        """Move the filters."""
        for group in self.inner.param_groups:
            for weight in group["params"]:
                if id(weight) in self._filters and weight.requires_grad:
                    weight.add_(self._pull(weight), alpha=float(group["lr"]) * self.strength)

    def _pull(self, weight: nn.Parameter) -> Tensor:
        pull = tangent_force(weight, self.force)
        if self.same and weight.grad is not None:
            pull = torch.where(pull * weight.grad <= 0, pull, 0.0)
        if self.adaptive and weight.grad is not None:
            pull = pull * (weight.grad.norm() / pull.norm().clamp(min=_TINY))
        return pull


def _has_filters(module: nn.Module, linear: bool) -> bool:
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return module.groups == 1
    return linear and isinstance(module, nn.Linear)


def _weight(model: nn.Module, name: str) -> nn.Parameter:
    modules = dict(model.named_modules())
    check_name("layer", name, [each for each, module in modules.items() if isinstance(getattr(module, "weight", None), Tensor)])
    module = modules[name]
    if not _has_filters(module, linear=True):
        raise UserError(f"{name} is a {type(module).__name__}", "name convolutions of one group or linear layers")
    weight: nn.Parameter = module.weight  # type: ignore[assignment]
    return weight
