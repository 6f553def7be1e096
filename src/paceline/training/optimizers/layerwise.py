"""Common part of LARS and LAMB: checks, state, and a step in two passes.

The first pass only reads: it gives every tensor's sums of squares. One reduction makes them those of whole tensors, whatever
the sharding. They give the trust ratios, and one flag that says whether everything was finite. The second pass writes weights
and state, or nothing at all. Nothing in between waits for an accelerator.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.errors import UserError, unknown
from paceline.training.optimizers.bundle import Bundle, fitted
from paceline.training.optimizers.checks import LOW, check_group, check_keys, check_of_all, check_state, owned
from paceline.training.optimizers.diagnostics import Diagnostics
from paceline.training.optimizers.exclusion import Exclude, check_patterns_match, is_excluded
from paceline.training.optimizers.kernels import callable_now
from paceline.training.optimizers.norms import NormGroup, add_ranks, add_shards, like_parameter, local, zero_group


class Layerwise(torch.optim.Optimizer, ABC):
    """Optimizer whose step is scaled by a trust ratio for each tensor. Use its subclasses ``LARS`` and ``LAMB``."""

    _words: tuple[str, ...] = ()
    """Names of the state's tensors of the parameter's shape."""
    _saved: tuple[str, ...] = ()
    """Options of the whole optimizer that its state names, in every group, so that a resumed run has the same."""
    _counts_steps = False
    _variants: Mapping[str, Any] = {}

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        foreach: bool | None,
        norm_group: NormGroup,
        diagnostics_every: int,
    ) -> None:
        if isinstance(diagnostics_every, bool) or not isinstance(diagnostics_every, int) or diagnostics_every < 0:
            raise UserError(f"diagnostics_every={diagnostics_every!r}", "give the steps between two transfers, or 0 for none")
        if not (foreach is None or isinstance(foreach, bool)):
            raise UserError(f"{self._kind}: foreach={foreach!r}; legal: None, True and False")
        if isinstance(norm_group, str) and norm_group != "world":
            raise unknown("norm_group", norm_group, ["world"])
        if not (norm_group is None or isinstance(norm_group, str | dist.ProcessGroup)):
            raise UserError(f"{self._kind}: norm_group={norm_group!r}; legal: 'world', a group of ranks and None")
        self._foreach, self._norm_group = foreach, norm_group or zero_group()
        self._names: list[list[str]] = []
        self._excluded: list[list[bool]] = []
        self._skipped: Tensor | None = None
        self._complete = False
        self._diagnostics = Diagnostics(diagnostics_every)
        if isinstance(params, torch.nn.Module):
            raise UserError(f"{self._kind} got a {type(params).__name__}", "pass its named_parameters()")
        if not isinstance(params, Iterable):
            raise UserError(f"{self._kind} got {params!r} for parameters", "pass model.named_parameters()")
        if isinstance(params, Tensor):
            raise UserError(
                f"{self._kind} got one tensor for parameters", "pass model.named_parameters(), or a list of tensors"
            )
        groups = list(params)
        if not groups:
            raise UserError(f"{self._kind} got no parameters", "pass model.named_parameters()")
        super().__init__(groups, defaults)
        rules = [cast(Exclude, group["exclude"]) for group in self.param_groups]
        check_patterns_match(rules, [*itertools.chain(*self._names)])
        self._complete = True

    @property
    def _kind(self) -> str:
        return type(self).__name__

    @property
    def _of_all(self) -> dict[str, Any]:
        """Return the options of the whole optimizer, which groups cannot override."""
        return {"foreach": self._foreach, "norm_group": self._norm_group, "diagnostics_every": self._diagnostics.every}

    @property
    def _shared(self) -> dict[str, Any]:
        """Return the options that a state includes."""
        return {name: getattr(self, name) for name in self._saved}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as ``torch.optim.Optimizer`` does. Raises UserError for illegal parameters or options."""
        check_keys(self._kind, param_group, self.defaults, self._of_all)
        try:
            super().add_param_group(param_group)
        except TypeError as error:
            raise UserError(f"{self._kind}: {error}", "pass model.named_parameters()") from None
        group, variant = self.param_groups[-1], self.defaults["variant"]
        try:
            check_group(self._kind, len(self.param_groups) - 1, group, self._variants, may_be_empty=self.norm_group is not None)
            if group["variant"] != variant:  # which other options follow from
                raise UserError(
                    f"{self._kind}: a group has the variant {group['variant']!r}, the optimizer {variant!r}",
                    f"{self._kind}(..., variant={group['variant']!r}), or two optimizers",
                )
            if self._complete and "exclude" in param_group:
                check_patterns_match([group["exclude"]], [*itertools.chain(*self._names), *group.get("param_names", ())])
        except UserError:
            self.param_groups.pop()
            raise
        self._learn_names()
        if self._skipped is None and group["params"]:  # here, since torch.compile forgets what step sets
            self._skipped = torch.zeros((), dtype=torch.int64, device=local(group["params"][0]).device)

    def _learn_names(self) -> None:
        """Determine names and exclusions in every group, by the rules."""
        self._names = [
            list(group.get("param_names") or [f"{index}.{i}" for i in range(len(group["params"]))])
            for index, group in enumerate(self.param_groups)
        ]
        self._excluded = [
            [is_excluded(group["exclude"], *pair) for pair in zip(names, group["params"], strict=True)]
            for group, names in zip(self.param_groups, self._names, strict=True)
        ]

    def excluded(self) -> list[str]:
        """Names of the tensors without weight decay and ratio, in order.

        Parameters that were passed without names are called ``group.index``.
        """
        pairs = zip(self._names, self._excluded, strict=True)
        return [name for names, out in pairs for name, excluded in zip(names, out, strict=True) if excluded]

    @property
    def norm_group(self) -> dist.ProcessGroup | None:
        """Ranks that hold other tensors of the same model."""
        return cast(dist.ProcessGroup, dist.group.WORLD) if isinstance(self._norm_group, str) else self._norm_group

    @property
    def skipped_steps(self) -> int:
        """Number of steps skipped because a gradient was not finite. Reading it waits for the device."""
        return 0 if self._skipped is None else int(self._skipped)

    @property
    def diagnostics(self) -> Diagnostics:
        """Trust ratio, |w| and |u| of every tensor at every step; empty with ``diagnostics_every=0``."""
        return self._diagnostics

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient, or no parameter if a gradient is not finite.

        Args:
            closure: evaluates the model again and returns the loss.

        Raises:
            UserError: a sparse gradient.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            bundles = list(self._bundles())
            if bundles or self.norm_group is not None:
                self._update(bundles)
        return loss

    def _update(self, bundles: list[Bundle]) -> None:
        home = bundles[0].device if bundles else self._without_tensors()
        self._scale_gradients(bundles, home)
        sums = [self._sums(bundle).to(home) for bundle in bundles]
        parameters = [parameter for bundle in bundles for parameter in bundle.parameters]
        whole = (
            add_shards(torch.cat(sums, dim=1), parameters) if bundles else torch.zeros(3, 0, dtype=torch.float32, device=home)
        )
        finite = self._finite(bundles, whole)
        if self._skipped is None:  # a rank that owns nothing
            self._skipped = torch.zeros((), dtype=torch.int64, device=home)
        self._skipped.add_(~finite.to(self._skipped.device))
        # Not sqrt: torch hands it to MKL, which wakes its threads for a hundred numbers (5 ms where cores are shared).
        norms, at, rows = whole.rsqrt().reciprocal(), 0, []
        for bundle in bundles:
            own = norms[:, at : at + len(bundle.parameters)].to(bundle.device)
            at += len(bundle.parameters)
            ratio = torch.ones_like(own[0]) if bundle.excluded else self._ratio(bundle, own)
            self._write(bundle, ratio, finite.to(bundle.device))
            rows.append(torch.stack([ratio, *own[:2]]).to(home))
        if self._diagnostics.every and bundles:
            names = [name for bundle in bundles for name in bundle.names]
            self._diagnostics.record(names, torch.cat(rows, dim=1))

    def _without_tensors(self) -> torch.device:
        """Join the collectives of ``norm_group`` on a rank without tensors."""
        return torch.device("cuda" if dist.get_backend(self.norm_group) == "nccl" else "cpu")

    def _finite(self, bundles: list[Bundle], sums: Tensor) -> Tensor:
        """Return whether every sum of squares is representable in the weights' type, over all ranks of ``norm_group``."""
        ends = itertools.accumulate((len(bundle.parameters) for bundle in bundles), initial=0)
        own = [
            (sums[:, first:last] <= torch.finfo(bundle.weights[0].dtype).max).all()
            for bundle, (first, last) in zip(bundles, itertools.pairwise(ends), strict=True)
        ]
        within = torch.stack(own).all() if own else torch.ones((), dtype=torch.bool, device=sums.device)
        if self.norm_group is None:
            return within
        return add_ranks((~within).to(torch.float32), self.norm_group) == 0

    def _scale_gradients(self, bundles: list[Bundle], home: torch.device) -> None:
        """Set the first factor of each gradient: -1 to maximise; LAMB adds its clip."""
        for bundle in bundles:
            bundle.scale = -1.0 if bundle.group["maximize"] else 1.0

    @abstractmethod
    def _sums(self, bundle: Bundle) -> Tensor:
        """Run pass 1: sums of squares, shape (k, n), of weights, the ratio's divisor, and other values that must be finite."""

    @abstractmethod
    def _ratio(self, bundle: Bundle, norms: Tensor) -> Tensor:
        """Return trust ratios, shape (n,), from norms of shape (k, n)."""

    @abstractmethod
    def _write(self, bundle: Bundle, ratio: Tensor, finite: Tensor) -> None:
        """Run pass 2: write the new weights and state, or the old ones if ``finite`` (a number) is false."""

    def _bundles(self) -> Iterator[Bundle]:
        """Yield parameters with a gradient, in bundles that take the same path."""
        bundles: dict[tuple[Any, ...], Bundle] = {}
        modules = [] if self._foreach else callable_now()
        for index, group in enumerate(self.param_groups):
            check_of_all(self._kind, group, self._shared)  # which ZeroRedundancyOptimizer loads past ``load_state_dict``
            for parameter, name, excluded in zip(group["params"], self._names[index], self._excluded[index], strict=True):
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    raise UserError(
                        f"{name} has a sparse gradient: {self._kind} needs the norm of the whole tensor's update",
                        "use sparse=False in the embedding, or give it to torch.optim.SparseAdam",
                    )
                state = self._state_of(parameter)
                weight, words = local(state.get("master", parameter)), [local(state[word]) for word in self._words]
                gradient = like_parameter(parameter.grad, parameter)
                kernels = next((module for module in modules if module.serves(weight, words)), None)
                if kernels:
                    gradient = fitted(gradient, weight)
                key = (index, excluded, kernels, weight.device, parameter.dtype, gradient.dtype)
                if key not in bundles:
                    bundles[key] = Bundle(group, excluded, kernels, weight.device)
                bundles[key].add(name, parameter, weight, gradient, words, state.get("step"))
        return iter(bundles.values())

    def _state_of(self, parameter: Tensor) -> dict[str, Any]:
        """Return the state of a parameter, with missing entries created: zeros of at least fp32, and an fp32 copy of 16-bit
        weights.
        """
        state: dict[str, Any] = self.state[parameter]
        low = parameter.dtype in LOW
        if low and "master" not in state:
            state["master"] = parameter.detach().to(torch.float32).clone()
        if self._words[0] not in state:
            if self._counts_steps:
                state["step"] = torch.zeros((), dtype=torch.float32, device=local(parameter).device)
            for word in self._words:
                state[word] = torch.zeros_like(state["master"] if low else parameter.detach(), requires_grad=False)
        return state

    def state_dict(self) -> dict[str, Any]:
        """Return the state as ``torch.optim.Optimizer`` does, without the exclusion rule and the group of ranks."""
        packed = dict(super().state_dict())
        programs = ("exclude", "norm_group")  # the latter put there by ZeroRedundancyOptimizer
        groups = [{k: v for k, v in group.items() if k not in programs} for group in packed["param_groups"]]
        packed["param_groups"] = [group | self._shared for group in groups]
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state as ``torch.optim.Optimizer`` does; moments and masters keep their precision with 16-bit weights.

        Raises:
            UserError: a state of other groups, shapes, another variant or another optimizer. Nothing was loaded then.
        """
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
            raise UserError("this is no optimizer's state: it has no state and param_groups", "give what state_dict() returned")
        programs = ("exclude", "param_names")
        before: list[dict[str, Any]] = [{k: group[k] for k in programs if k in group} for group in self.param_groups]
        given: dict[str, Any] = {}

        def look(optimizer: torch.optim.Optimizer, adapted: dict[str, Any]) -> None:
            words = (*self._words, "step") if self._counts_steps else self._words
            check_state(self._kind, self.param_groups, adapted, words, self.defaults, self._shared)
            given.update(adapted)

        last = self.register_load_state_dict_pre_hook(look)  # behind those that adapt the state
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
        for group, own in zip(self.param_groups, before, strict=True):
            for name in ("param_names", *self._saved):
                group.pop(name, None)
            group.update(own)
        # torch casts a state to its parameter's type, which would round fp32 moments of 16-bit weights.
        ids = [key for group in given["param_groups"] for key in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for key, parameter in zip(ids, parameters, strict=True):
            if key in given["state"]:
                self.state[parameter] = owned(given["state"][key], parameter)
        self._learn_names()

    def __getstate__(self) -> dict[str, Any]:
        mine = ("_foreach", "_norm_group", "_names", "_excluded", "_skipped", "_complete", "_diagnostics")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in mine}}


def rates(group: Mapping[str, Any], ratio: Tensor) -> Tensor:
    """Return learning rate times ratio, shape (n,). The rate is a number or a tensor of one, on any device."""
    lr = group["lr"]
    return ratio * (lr.to(ratio.device, ratio.dtype) if isinstance(lr, Tensor) else lr)


def kept(factor: float, finite: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the factor of a moment: ``factor``, or 1 if the step is skipped."""
    whole = torch.full((), factor, dtype=dtype, device=finite.device)
    return torch.where(finite, whole, torch.ones_like(whole))
