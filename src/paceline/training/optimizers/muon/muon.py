"""Muon: momentum whose matrices are orthogonalized, with AdamW for all other tensors (Jordan et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.adamw import adamw

from paceline.errors import UserError, unknown
from paceline.training.optimizers.bundle import listed
from paceline.training.optimizers.checks import LOW, owned
from paceline.training.optimizers.muon.exchange import BUCKET, Assignment, MatrixExchange
from paceline.training.optimizers.muon.matrices import SCALES, Division, Rule, Split, check_patterns, divide, layer_weights
from paceline.training.optimizers.muon.newton_schulz import COEFFICIENTS, EPS, PRECISIONS, STEPS, NewtonSchulz
from paceline.training.optimizers.muon.options import (
    ADAMW,
    MUON,
    WORDS,
    as_groups,
    check_keys,
    check_options,
    check_state,
    options_of_part,
)
from paceline.training.optimizers.muon.placement import ALONE, Box, Holders, holders_of, inside, placement_key, replicated
from paceline.training.optimizers.norms import like_parameter, local


class Muon(torch.optim.Optimizer):
    """Muon for hidden matrices and AdamW for the rest: one optimizer for a model.

    A matrix takes buf <- lerp(buf, g, 1 - momentum);  u = orthogonalized lerp(g, buf, momentum);
    w <- (1 - lr * weight_decay) w - lr * scale * u, as ``torch.optim.Muon``: the same bits in one process.

    Ranks with the same gradients share out the matrices, balanced by FLOPs, and exchange the results. Ranks that hold shards
    (``fully_shard``, HSDP, tensor parallelism) send whole matrices to their owners first. All ranks must call ``step`` with
    gradients of the same parameters.

    Args:
        params: the model, also in DistributedDataParallel, or its ``named_parameters()``, or groups of the latter. A group
            with ``algorithm`` "muon" or "adamw" is not divided by the rule.
        lr: rate of matrices. With ``match_rms_adamw`` it is as for AdamW.
        weight_decay: decoupled decay of matrices, and of the rest unless ``adamw_weight_decay`` is given.
        momentum, nesterov, ns_coefficients, ns_steps, eps: as ``torch.optim.Muon``.
        adjust_lr_fn: factor of the rate by a matrix' shape. ``match_rms_adamw``: 0.2 sqrt(max(rows, columns)), as Moonlight;
            ``original``: sqrt(max(1, rows / columns)), as Jordan et al.
        precision: type of the products: ``bf16`` or ``fp32``.
        rule: tensors of AdamW: ``hidden`` (``rest_reasons``: embeddings, the output layer, vectors), ``vectors``, patterns of
            names such as ["head.*"], or f(name, tensor) -> bool. Tensors of fewer than two dimensions are always AdamW's.
            ``print(optimizer.division)`` shows the result.
        split: matrices that a tensor stacks by rows: {"*.qkv.weight": 3}, or the rows of each: (2048, 512, 512).
        adamw_lr: rate of the rest; None: ``lr``, for ``match_rms_adamw`` only.
        adamw_betas, adamw_eps, adamw_weight_decay: as ``torch.optim.AdamW``.
        ranks: ranks with equal parameters and gradients that share out the work: "world", a group, or None. None takes the
            group of a DistributedDataParallel model, else no other rank. Shards need none.
        bucket_elements: elements that the ranks exchange at once.

    Attributes:
        division: which tensors are whose, and why.
        skipped_steps: steps that changed nothing because a gradient was not finite.

    Every step waits for the device once, to learn whether the gradients are finite. 16-bit parameters have an fp32 master in
    the state.

    Raises:
        UserError: an illegal option, names that are missing, a pattern without a match; at a step: a sparse gradient.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Sequence[float] = COEFFICIENTS,
        eps: float = EPS,
        ns_steps: int = STEPS,
        adjust_lr_fn: str = "match_rms_adamw",
        *,
        precision: str = "bf16",
        rule: Rule = "hidden",
        split: Split | None = None,
        adamw_lr: float | Tensor | None = None,
        adamw_betas: tuple[float, float] = (0.9, 0.95),
        adamw_eps: float = 1e-8,
        adamw_weight_decay: float | None = None,
        ranks: dist.ProcessGroup | str | None = None,
        bucket_elements: int = BUCKET,
    ) -> None:
        if isinstance(ranks, str) and ranks != "world":
            raise unknown("ranks", ranks, ["world"])
        if bucket_elements < 1:
            raise UserError(f"Muon: bucket_elements={bucket_elements}", "give a number of elements from 1 on")
        if isinstance(params, DistributedDataParallel):
            ranks = params.process_group if ranks is None else ranks
            params = params.module
        self._layers: tuple[set[str], set[str]] = set(), set()
        if isinstance(params, nn.Module):
            self._layers, params = layer_weights(params), params.named_parameters()
        self._ranks, self._rule, self._split, self._bucket = ranks, rule, dict(split or {}), bucket_elements
        self._usual: dict[str, dict[str, Any]] = {
            MUON: {
                "lr": lr,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "nesterov": nesterov,
                "adjust_lr_fn": adjust_lr_fn,
                "precision": precision,
                "ns_steps": ns_steps,
                "ns_coefficients": tuple(ns_coefficients),
                "eps": eps,
            },
            ADAMW: {
                "lr": adamw_lr,
                "weight_decay": weight_decay if adamw_weight_decay is None else adamw_weight_decay,
                "betas": tuple(adamw_betas),
                "eps": adamw_eps,
            },
        }
        check_options(MUON, self._usual[MUON])
        self._holders: dict[tuple[Any, ...], Holders] = {}
        self._planned: tuple[Any, ...] = ()
        self._exchanges: list[tuple[MatrixExchange, list[Tensor], dict[str, Any]]] = []
        self.skipped_steps = 0
        self.division = Division({}, {})
        self._complete = False
        super().__init__(self._parts(as_groups(params, rule != "vectors")), {})
        self._complete = True

    def _parts(self, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return each of the user's groups as one of Muon's and one of AdamW's, without empty ones, and add to ``division``."""
        open_ones = [entry for group in groups if not group.get("algorithm") for entry in group["params"]]
        stated = [entry for group in groups if group.get("algorithm") == MUON for entry in group["params"]]
        names = [name for group in groups for name, _ in group["params"]]
        check_patterns(self._rule, self._split, [*self.division.matrices, *self.division.rest, *names])
        found = divide(open_ones, self._rule, self._split, *self._layers)
        matrices = {**found.matrices, **divide(stated, "vectors", self._split, *self._layers).matrices}
        rest = dict(found.rest)
        rest |= {name: "by its group" for group in groups if group.get("algorithm") == ADAMW for name, _ in group["params"]}
        if vectors := [name for name, _ in stated if name not in matrices]:
            raise UserError(f"{vectors[0]} has fewer than two dimensions: Muon takes matrices", 'give it to "adamw"')
        parts = []
        for group in groups:
            check_keys(group, {**self._usual[MUON], **self._usual[ADAMW]})
            matched = group.get("adjust_lr_fn", self._usual[MUON]["adjust_lr_fn"]) == "match_rms_adamw"
            rate = group.get("lr", self._usual[MUON]["lr"]) if matched else None
            for algorithm, usual in self._usual.items():
                members = [entry for entry in group["params"] if (entry[0] in matrices) == (algorithm == MUON)]
                if members:
                    options = options_of_part(algorithm, group, usual, rate)
                    parts.append({"params": members, "algorithm": algorithm, **options})
        self.division = Division({**self.division.matrices, **matrices}, {**self.division.rest, **rest})
        return parts

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as ``torch.optim.Optimizer`` does, divided by the rule. Raises UserError for illegal options."""
        parts = self._parts(as_groups([param_group], self._rule != "vectors")) if self._complete else [param_group]
        for part in parts:
            super().add_param_group(part)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update every parameter that has a gradient, or none if a gradient of any rank is not finite.

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
            members = [(group, self._with_gradients(group)) for group in self.param_groups]
            gradients = {p: self._gradient(p) for _, found in members for p in found}
            exchanges = self._planned_exchanges(members)
            if not self._finite(list(gradients.values())):
                self.skipped_steps += 1
                return loss
            for group, found in members:
                if found and group["algorithm"] == ADAMW:
                    self._update_rest(group, found, gradients)
            for exchange, found, group in exchanges:
                self._update_matrices(exchange, found, group, gradients)
            self._publish(list(gradients))
        return loss

    def _with_gradients(self, group: Mapping[str, Any]) -> list[Tensor]:
        found = []
        for parameter, name in zip(group["params"], group["param_names"], strict=True):
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                raise UserError(f"{name} has a sparse gradient", "use sparse=False in the embedding")
            found.append(parameter)
        return found

    def _gradient(self, parameter: Tensor) -> Tensor:
        """Return this rank's part of a gradient, in the precision of its weight."""
        assert parameter.grad is not None
        gradient = like_parameter(parameter.grad, parameter)
        return gradient.to(torch.float32) if parameter.dtype in LOW else gradient

    def _holders_of(self, key: tuple[Any, ...]) -> Holders:
        """Return the ranks that hold parameters with a placement; ``ranks`` for plain ones."""
        if key not in self._holders:
            if key:
                self._holders[key] = holders_of(*key)
            elif self._ranks is None:
                self._holders[key] = ALONE
            else:
                self._holders[key] = replicated(dist.group.WORLD if isinstance(self._ranks, str) else self._ranks)
        return self._holders[key]

    def _planned_exchanges(
        self, members: Sequence[tuple[dict[str, Any], list[Tensor]]]
    ) -> list[tuple[MatrixExchange, list[Tensor], dict[str, Any]]]:
        """Return the exchanges of all matrices with a gradient, planned again when these or the options change."""
        works = {
            index: NewtonSchulz(
                PRECISIONS[group["precision"]], group["ns_steps"], tuple(group["ns_coefficients"]), group["eps"]
            )
            for index, (group, found) in enumerate(members)
            if group["algorithm"] == MUON and found
        }
        plan = tuple((index, work, tuple(map(id, members[index][1]))) for index, work in works.items())
        if plan == self._planned:
            return self._exchanges
        self._planned, self._exchanges = plan, []
        loads: dict[tuple[int, ...], dict[int, int]] = {}  # by the ranks of an exchange, which all know
        for index, work in works.items():
            group, found = members[index]
            names = {id(p): name for p, name in zip(group["params"], group["param_names"], strict=True)}
            placed: dict[tuple[Any, ...], list[Tensor]] = {}
            for parameter in found:
                placed.setdefault(placement_key(parameter), []).append(parameter)
            for key, tensors in placed.items():
                entries = [(tensor, self.division.matrices[names[id(tensor)]]) for tensor in tensors]
                holders = self._holders_of(key)
                exchange = MatrixExchange(holders, entries, work, loads.setdefault(tuple(holders.ranks), {}), self._bucket)
                self._exchanges.append((exchange, tensors, group))
        return self._exchanges

    @property
    def orthogonalization_flops(self) -> int:
        """FLOPs of this rank's orthogonalization in the last step."""
        return sum(exchange.flops for exchange, _, _ in self._exchanges)

    def _finite(self, gradients: list[Tensor]) -> bool:
        """Return whether the gradients of all ranks are finite."""
        held = [g for g in gradients if g.numel()]
        if held:
            bad = (~torch.stack(torch._foreach_norm(held)).isfinite().all()).to(torch.float32)
        else:
            bad = torch.zeros((), dtype=torch.float32)
        done = set()
        for holders in self._holders.values():
            for group in (holders.shards, holders.copies):
                if group is not None and id(group) not in done:
                    done.add(id(group))
                    dist.all_reduce(bad, group=group)
        return not bool(bad)

    def _state_of(self, parameter: Tensor, algorithm: str) -> dict[str, Any]:
        """Return the state of a parameter, with missing entries created."""
        state: dict[str, Any] = self.state[parameter]
        low = parameter.dtype in LOW
        if low and "master" not in state:
            state["master"] = parameter.detach().to(torch.float32).clone()
        for word in WORDS[algorithm]:
            if word not in state:
                state[word] = torch.zeros_like(state["master"] if low else parameter.detach(), requires_grad=False)
        if algorithm == ADAMW and "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32)
        return state

    def _publish(self, parameters: Sequence[Tensor]) -> None:
        """Copy the masters of 16-bit parameters into them."""
        for parameter in parameters:
            if parameter.dtype in LOW:
                local(parameter).copy_(local(self.state[parameter]["master"]))

    def _update_rest(self, group: Mapping[str, Any], found: Sequence[Tensor], gradients: Mapping[Tensor, Tensor]) -> None:
        states = [self._state_of(p, ADAMW) for p in found]
        beta1, beta2 = group["betas"]
        adamw(
            [local(state.get("master", p)) for p, state in zip(found, states, strict=True)],
            [gradients[p] for p in found],
            [local(state["exp_avg"]) for state in states],
            [local(state["exp_avg_sq"]) for state in states],
            [],
            [state["step"] for state in states],
            foreach=True,  # whose bits do not depend on the shards, unlike those of the fused kernel on CPUs
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=float(group["lr"]),
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _update_matrices(
        self, exchange: MatrixExchange, found: Sequence[Tensor], group: Mapping[str, Any], gradients: Mapping[Tensor, Tensor]
    ) -> None:
        states = [self._state_of(p, MUON) for p in found]
        weights = [local(state.get("master", p)) for p, state in zip(found, states, strict=True)]
        momenta, given = [local(state["momentum_buffer"]) for state in states], [gradients[p] for p in found]
        rate, momentum = float(group["lr"]), float(group["momentum"])
        torch._foreach_lerp_(momenta, given, 1 - momentum)
        torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
        dtype, scale = exchange.work.dtype, SCALES[group["adjust_lr_fn"]]

        def source(jobs: Sequence[Assignment], parts: Sequence[Box]) -> list[Tensor]:
            def views(tensors: Sequence[Tensor]) -> list[Tensor]:
                return [
                    inside(tensors[job.tensor], exchange.boxes[job.tensor], part) for job, part in zip(jobs, parts, strict=True)
                ]

            updates = views(momenta)
            if group["nesterov"] and jobs:
                updates = listed(torch._foreach_lerp(views(given), updates, momentum))
            return [update.to(dtype) for update in updates]

        def apply(job: Assignment, part: Box, update: Tensor) -> None:
            view = inside(weights[job.tensor], exchange.boxes[job.tensor], part)
            view.add_(update, alpha=-rate * scale(job.piece.rows, job.piece.columns))

        exchange.run(source, apply)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state as ``torch.optim.Optimizer`` does; moments and masters keep their precision with 16-bit weights.

        Raises:
            UserError: a state of other groups, shapes or another optimizer. Nothing was loaded then.
        """
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
            raise UserError("this is no optimizer's state: it has no state and param_groups", "give what state_dict() returned")
        names = [group["param_names"] for group in self.param_groups]
        given: dict[str, Any] = {}

        def look(optimizer: torch.optim.Optimizer, adapted: dict[str, Any]) -> None:
            check_state(self.param_groups, adapted)
            given.update(adapted)

        last = self.register_load_state_dict_pre_hook(look)  # behind those that adapt the state
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
        for group, own in zip(self.param_groups, names, strict=True):
            group["param_names"] = own
        # torch casts a state to its parameter's type, which would round fp32 moments of 16-bit weights.
        ids = [key for group in given["param_groups"] for key in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for key, parameter in zip(ids, parameters, strict=True):
            if key in given["state"]:
                self.state[parameter] = owned(given["state"][key], parameter)
                if "step" in self.state[parameter]:
                    self.state[parameter]["step"] = self.state[parameter]["step"].cpu()
        self._planned = ()

    def __getstate__(self) -> dict[str, Any]:
        mine = ("_rule", "_split", "_bucket", "_layers", "_usual", "_complete", "division", "skipped_steps")
        fresh: dict[str, Any] = {"_ranks": None, "_holders": {}, "_planned": (), "_exchanges": []}
        return {**cast(Any, super()).__getstate__(), **{name: self.__dict__[name] for name in mine}, **fresh}
