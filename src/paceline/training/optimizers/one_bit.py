"""1-bit Adam and 1-bit LAMB: after a warm-up the variance is frozen, and workers exchange the momentum as signs.

Tang et al. 2021, 1-bit Adam, ICML, arXiv 2102.02888, Algorithm 1; Li et al. 2021, 1-bit LAMB, arXiv 2104.06069, Algorithm 1.
During the warm-up gradients are averaged dense; afterwards DDP exchanges none. Each rank adds its own gradient to the common
momentum, and the errors of the signs on the way to its owner and back are added to later steps (``hooks/momentum``). Signs have
a scale for each block of elements, not one a tensor, and move all elements of a block by like amounts: freeze only when every
weight has had gradients of its usual size, else one with a tiny variance explodes. Elements without any gradient before the
freeze stay as they are after it, as do whole tensors of an unused branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Unpack, cast

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.training.attach.attach import attach_momentum
from paceline.training.attach.attach_keywords import RankKeywords
from paceline.training.attach.attach_options import AttachOptions
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec
from paceline.training.optimizers.exclusion import DEFAULT_RULE, Exclude
from paceline.training.optimizers.lamb import LAMB

AVERAGED = 100  # steps before the freeze whose trust ratios count: with COEFFICIENT's weights earlier ones are below 3e-5
COEFFICIENT = 0.9  # weight of the earlier trust ratios in their average (1-bit LAMB's beta_3)
FACTOR = (0.5, 4.0)  # bounds of a frozen ratio's correction (r_min, r_max)
CHANGE = 0.1  # and the largest relative change of it a step (r_threshold)
# These are the defaults of the authors' own code: coeff_beta, factor_min, factor_max and factor_threshold of OnebitLamb
# (DeepSpeed, deepspeed/runtime/fp16/onebit/lamb.py). Its max_coeff of 10 and min_coeff of 0.01 (c_max, c_min) bound the trust
# ratio of LAMB itself, before the freeze too; the ratios here are those of ``paceline.LAMB``, which are not bounded.


class _OneBit(torch.optim.Optimizer):
    """Common part of both optimizers: the freeze, the exchange of momentum, the skipped steps. ``hook`` has the residuals, so
    save its state too.
    """

    _step_supports_amp_scaling = True  # so that a GradScaler leaves the step to ``step``, which refuses it

    def _connect(self, model: DistributedDataParallel, freeze_step: int, block: int, options: AttachOptions) -> None:
        if isinstance(freeze_step, bool) or not isinstance(freeze_step, int) or freeze_step < 1:
            raise UserError(
                f"freeze_step={freeze_step!r}", "give a whole number of steps from 1 on; the papers take 15 to 25 %"
            )
        self.freeze_step, self.skipped_compressed = freeze_step, 0
        for _, parameter in self._entries():
            if parameter.dtype != torch.float32:
                raise UserError(f"a parameter is {parameter.dtype}", "1-bit optimizers take fp32 ones; use torch.autocast")
        self.hook, tensors = attach_momentum(model, block, options)
        self._specs: Mapping[int, TensorSpec] = tensors
        absent = [spec.name for key, spec in tensors.items() if key not in {id(p) for _, p in self._entries()}]
        foreign = [p for _, p in self._entries() if p.requires_grad and id(p) not in tensors]
        if absent or foreign:
            what = f"{', '.join(absent)} of the model" if absent else "a parameter that the model does not exchange"
            raise UserError(f"the optimizer and the model differ in {what}", "give both the same parameters")

    def _entries(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        return ((group, p) for group in self.param_groups for p in group["params"])

    @property
    def steps_done(self) -> int:
        """Number of steps so far, from the state of the parameters."""
        return max((int(self.state[p]["step"]) for _, p in self._entries() if "step" in self.state.get(p, {})), default=0)

    @property
    def frozen(self) -> bool:
        """True if the variance is frozen, which is so from ``freeze_step`` steps on."""
        return self.steps_done >= self.freeze_step

    def state_dict(self) -> dict[str, Any]:
        """Return the state as ``torch.optim.Optimizer`` does, with ``freeze_step`` in every group."""
        packed = dict(super().state_dict())
        packed["param_groups"] = [{**group, "freeze_step": self.freeze_step} for group in packed["param_groups"]]
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state as ``torch.optim.Optimizer`` does; ``hook.load_state_dict`` takes the residuals, on any number of ranks.

        Raises:
            UserError: a state of another ``freeze_step``, or of none. Nothing was loaded then.
        """
        last = self.register_load_state_dict_pre_hook(lambda _, adapted: self._check_freeze(adapted))  # behind the user's
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
        self.hook.frozen = self.frozen

    def _check_freeze(self, saved: Mapping[str, Any]) -> None:
        """Raise UserError for a state frozen at another step, whose variance would be corrected wrongly."""
        own = f"this {type(self).__name__} has freeze_step={self.freeze_step}"
        for group in saved["param_groups"]:
            step = group.get("freeze_step") if isinstance(group, Mapping) else None
            if step is None:
                raise UserError(f"this state names no freeze_step, {own}", "load the state_dict() of a 1-bit optimizer")
            if step != self.freeze_step:
                raise UserError(f"this state is of freeze_step={step!r}, {own}", f"make it with freeze_step={step!r}")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take one step of all parameters, or of none if a gradient of any rank is not finite and the variance is frozen.

        Raises:
            UserError: a ``torch.amp.GradScaler`` runs the step.
        """
        self._refuse_scaler()
        if not self.frozen:
            loss = self._warm_step(closure)
            self.hook.frozen = self.frozen
            return loss
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._frozen_step()
        return loss

    def _refuse_scaler(self) -> None:
        """Refuse a gradient scaler: after the freeze it would skip the step of one rank, and the others would wait."""
        if "found_inf" not in self.__dict__:  # grad_scale is None after ``unscale_``
            return
        for name in ("grad_scale", "found_inf"):  # the scaler deletes them after a step that returns only
            self.__dict__.pop(name, None)
        raise UserError(
            "a GradScaler skips steps on one rank alone, and 1-bit optimizers exchange momenta in each",
            "leave the scaler out: torch.autocast in bfloat16 needs none",
        )

    def _frozen_step(self) -> None:
        own: dict[str, Tensor] = {}
        for group, p in self._entries():
            if id(p) not in self._specs:
                continue
            beta = group["betas"][0]
            momentum = self._frozen_state(p)["exp_avg"] * beta
            if p.grad is not None:
                momentum.add_(self._gradient_of(group, p), alpha=1 - beta)
            own[self._specs[id(p)].name] = momentum.reshape(-1)
        if not self.hook.exchange(own):
            self.skipped_compressed += 1
            return
        since = self.steps_done - self.freeze_step + 1
        for group, p in self._entries():
            if id(p) in self._specs:
                state = self.state[p]
                # Signs cannot represent 0: elements that had no gradient before the freeze would explode over their variance.
                moved = state["exp_avg_sq"] > 0
                before, state["exp_avg"] = state["exp_avg"], own[self._specs[id(p)].name].view_as(p) * moved
                state["step"] += 1
                # Fewer than freeze_step where some steps had no gradient; none where the only one was skipped.
                self._apply(group, p, state, before, max(1, int(state["step"]) - since))

    def _frozen_state(self, p: Tensor) -> dict[str, Any]:
        """Return the state of a parameter, with zeros if it never had a gradient, so that every rank exchanges every tensor."""
        state: dict[str, Any] = self.state[p]
        if "exp_avg" not in state:
            zeros = {word: torch.zeros_like(p) for word in ("exp_avg", "exp_avg_sq")}
            state.update(step=torch.tensor(float(self.steps_done), dtype=torch.float32), **zeros)
        return state

    def _gradient_of(self, group: Mapping[str, Any], p: Tensor) -> Tensor:
        assert p.grad is not None
        return -p.grad if group["maximize"] else p.grad

    def _corrected(self, group: Mapping[str, Any], state: Mapping[str, Any], seen: int) -> tuple[Tensor, Tensor]:
        """Return the momentum and the root of the frozen variance, each corrected for bias (of the variance at the freeze)."""
        beta1, beta2 = group["betas"]
        root = (state["exp_avg_sq"] / (1 - beta2**seen)).sqrt()
        return state["exp_avg"] / (1 - beta1 ** int(state["step"])), root

    def _warm_step(self, closure: Callable[[], Any] | None) -> Any:
        raise NotImplementedError

    def _apply(self, group: Mapping[str, Any], p: Tensor, state: dict[str, Any], before: Tensor, seen: int) -> None:
        """Change the parameter by the new momentum. ``before``: momentum of the previous step; ``seen``: steps of the
        variance."""
        raise NotImplementedError


class OneBitAdam(_OneBit, torch.optim.Adam):
    """Adam that sends one bit per element after ``freeze_step`` steps (Tang et al. 2021); until then ``torch.optim.Adam``.

    Args:
        params: parameters or groups, fp32, all that ``model`` trains; ``model.parameters()`` is usual.
        lr, betas, eps, weight_decay, maximize: as ``torch.optim.Adam``; the decay is added to the gradient.
        model: the ``DistributedDataParallel`` model; it may have no other communication hook.
        freeze_step: steps after which the variance is frozen; the paper has 15 to 25 % of all.
        block: elements that share a scale.
        options: seed, checks and time limit; ``keywords``: fields of ``AttachOptions`` that replace those of ``options``.

    Attributes:
        hook: holds the errors of this rank; save ``hook.state_dict()`` of every rank together with ``state_dict()``.
        skipped_compressed: steps after the freeze that changed nothing, as a gradient of some rank was not finite.

    Raises:
        UserError: an illegal option, 16-bit parameters, a model that ``attach`` refuses or that has other parameters; in a
            step, a ``torch.amp.GradScaler``; in ``load_state_dict``, a state of another ``freeze_step``.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        model: DistributedDataParallel,
        freeze_step: int,
        maximize: bool = False,
        block: int = 1024,
        options: AttachOptions | None = None,
        **keywords: Unpack[RankKeywords],
    ) -> None:
        run = AttachOptions.everywhere("OneBitAdam", options, keywords)
        torch.optim.Adam.__init__(self, params, lr, betas, eps, weight_decay, maximize=maximize)
        self._connect(model, freeze_step, block, run)

    def _warm_step(self, closure: Callable[[], Any] | None) -> Any:
        return torch.optim.Adam.step(self, closure)

    def _gradient_of(self, group: Mapping[str, Any], p: Tensor) -> Tensor:
        gradient = super()._gradient_of(group, p)
        return gradient.add(p, alpha=group["weight_decay"]) if group["weight_decay"] else gradient

    def _apply(self, group: Mapping[str, Any], p: Tensor, state: dict[str, Any], before: Tensor, seen: int) -> None:
        momentum, root = self._corrected(group, state, seen)
        p.sub_(group["lr"] * momentum / root.add_(group["eps"]))


class OneBitLamb(_OneBit, LAMB):
    """LAMB that sends one bit per element after ``freeze_step`` steps (Li et al. 2021); until then ``paceline.LAMB``.

    After the freeze a tensor's trust ratio is its average before, times a factor: how much smaller a variance of the gradients
    that follow from the momentum would be (``exp_avg_sq_fresh``), within ``FACTOR`` and ``CHANGE``.

    Args:
        params: ``model.named_parameters()``, or groups; fp32, all that ``model`` trains.
        lr, betas, eps, weight_decay, exclude, maximize: as ``LAMB`` in its variant ``paper``.
        model, freeze_step, block, options: as ``OneBitAdam``, which has the attributes and errors too.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        model: DistributedDataParallel,
        freeze_step: int,
        block: int = 1024,
        options: AttachOptions | None = None,
        exclude: Exclude = DEFAULT_RULE,
        maximize: bool = False,
        **keywords: Unpack[RankKeywords],
    ) -> None:
        run = AttachOptions.everywhere("OneBitLamb", options, keywords)
        LAMB.__init__(self, params, lr, betas, eps, weight_decay, exclude=exclude, maximize=maximize)
        self._connect(model, freeze_step, block, run)

    def _warm_step(self, closure: Callable[[], Any] | None) -> Any:
        weights = [p.detach().clone() for _, p in self._entries()] if self.steps_done >= self.freeze_step - AVERAGED else []
        loss = LAMB.step(self, closure)
        with torch.no_grad():
            for before, (group, p), excluded in zip(weights, self._entries(), self._excluded_each(), strict=bool(weights)):
                state = self.state.get(p, {})
                if "exp_avg" in state and not excluded:
                    update = self._direction_of(group, state, int(state["step"])).add_(before, alpha=group["weight_decay"])
                    ratio = _trust(before, update)
                    earlier = state.get("coefficient", ratio)
                    state["coefficient"] = COEFFICIENT * earlier + (1 - COEFFICIENT) * ratio
        return loss

    def _direction_of(self, group: Mapping[str, Any], state: Mapping[str, Any], steps: int) -> Tensor:
        beta1, beta2 = group["betas"]
        root = (state["exp_avg_sq"] / (1 - beta2**steps)).sqrt_().add_(group["eps"])
        return cast(Tensor, state["exp_avg"] / (1 - beta1**steps) / root)

    def _excluded_each(self) -> Iterator[bool]:
        return (excluded for group in self._excluded for excluded in group)

    def _apply(self, group: Mapping[str, Any], p: Tensor, state: dict[str, Any], before: Tensor, seen: int) -> None:
        momentum, root = self._corrected(group, state, seen)
        root.add_(group["eps"])
        update = momentum / root
        if "coefficient" not in state:  # excluded tensors: neither decay nor ratio
            p.sub_(group["lr"] * update)
            return
        beta1, beta2 = group["betas"]
        gradient = (state["exp_avg"] - beta1 * before) / (1 - beta1)
        fresh = state.setdefault("exp_avg_sq_fresh", state["exp_avg_sq"].clone())
        fresh.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        current = (fresh / (1 - beta2**seen)).sqrt_().add_(group["eps"])
        last = state.get("factor", torch.ones((), dtype=torch.float32, device=p.device))
        factor = (root / current).max().clamp(*FACTOR).clamp((1 - CHANGE) * last, (1 + CHANGE) * last)
        state["factor"] = factor
        update.add_(p, alpha=group["weight_decay"])
        p.sub_(group["lr"] * state["coefficient"] * factor * update)


def _trust(weights: Tensor, update: Tensor) -> Tensor:
    """Return |w| / |u|, or 1 if either is 0, as in LAMB."""
    w, u = weights.norm(), update.norm()
    return torch.where((w > 0) & (u > 0), w / u, torch.ones_like(w))
