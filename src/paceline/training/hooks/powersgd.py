"""PowerSGD (Vogels et al. 2019) by PyTorch's own hook, behind the same ``attach()``: what it lacks is a state that resumes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.strategy import ring_bytes
from paceline.strategy.compression import low_rank_factors
from paceline.strategy.formats import FP32
from paceline.training.bucketing import Group, Groups
from paceline.training.collectives import collective
from paceline.training.exchange_group import is_finite
from paceline.training.exchange_thread import Future, promise, result
from paceline.training.exchanges import allreduce
from paceline.training.hooks.base import Attached
from paceline.training.hooks.state import well_formed
from paceline.training.ways import Way

_log = logging.getLogger("paceline")

_NOTHING = 1e-30  # added to a column's norm: changes no other than that of zeros, which then is no divisor of zero
_SEED = 1e-15  # of a direction: vanishes beside any gradient's, and its square is no zero in fp32
START = 2  # the first step that compresses; PyTorch's hook takes no less with error feedback


class PowerSGD(Attached):
    """Stands where ``Hook`` stands for the other compressions."""

    def __init__(
        self, model: DistributedDataParallel, way: Way, *, seed: int, check_every: int, timeout_s: float, scaler: Any = None
    ) -> None:
        super().__init__(model, way, seed=seed, check_every=check_every, timeout_s=timeout_s, scaler=scaler)
        self.rank = int(way.compression.option("rank"))
        self._groups = Groups(model, self._named, fused=False)
        self._flat: dict[int, torch.Tensor] = {}
        self.state = powerSGD_hook.PowerSGDState(
            self.wire.group,
            matrix_approximation_rank=self.rank,
            start_powerSGD_iter=START,
            orthogonalization_epsilon=_NOTHING,
            random_seed=seed % 2**32,  # NumPy takes no more
        )

    def __str__(self) -> str:
        return f"{self.way.compression.title}, rank {self.rank}" + "".join(f"\n  {n}: {why}" for n, why in self.dense.items())

    def submit(self, bucket: Any) -> Future:
        """PyTorch's hook, counted: two factors of each matrix, and the other tensors as they are.

        It issues its second collective where its first has ended, in no fixed order among buckets, which gloo answers with a
        hang. So buckets go one after another, on a thread and a group of their own.
        """
        future = promise(bucket.buffer())
        self.meter.bucket_ready()
        for group in self._groups.add(bucket, future):
            self._work.submit(partial(self._exchange, group), group.finished)
        return future.then(result)

    def _exchange(self, group: Group) -> None:
        """A NaN or an infinity would stay in the residuals and the factors: such a group passes PyTorch's hook by."""
        self._follow_scaler()
        parts = list(group.parts.values())
        if group.index not in self._flat:
            kinds = {part.dtype for part in parts}
            kind = kinds.pop() if len(kinds) == 1 else torch.float32
            self._flat[group.index] = torch.empty(sum(t.elements for t in group.tensors), dtype=kind, device=self.wire.device)
        flat = self._flat[group.index]
        places = flat.split([t.elements for t in group.tensors])
        for place, part in zip(places, parts, strict=True):
            place.copy_(part)
        bucket = _Bucket(group, flat, places)
        if not self._nonfinite:
            flag = torch.tensor([float(not is_finite(flat))], device=self.wire.device)
            self._nonfinite = bool(self.wire.all_reduce(flag, dist.ReduceOp.MAX, "scales").wait())
        if self._nonfinite:
            allreduce(flat, FP32, self.wire)
            self.state.maybe_increase_iter(bucket)
        else:
            self._low_rank(group, bucket, flat)
        for place, part in zip(places, parts, strict=True):
            part.copy_(place)
        if group.last:
            self._end_step()

    def _low_rank(self, group: Group, bucket: _Bucket, flat: torch.Tensor) -> None:
        start, elements = self.meter.now(), 0
        for t in group.tensors:
            factors = low_rank_factors(t.shape, self.rank) if self.state.iter >= START else None
            elements += sum(factors) if factors else t.elements
        self.meter.sent_bytes += ring_bytes(4 * elements, self.wire.world_size)
        self._revive(group.index)
        future = powerSGD_hook.powerSGD_hook(self.state, bucket)
        with collective():
            value = future.wait()
        flat.copy_(value if isinstance(value, torch.Tensor) else value[0])
        self.meter.add("powersgd", "network", start)

    def _rescale(self, ratio: float) -> None:
        """The factors need no scaling: they are made orthogonal anew."""
        for error in self.state.error_dict.values():
            error.mul_(ratio)

    def _revive(self, index: int) -> None:
        """Give factors of zero a direction again, the same on every rank: a gradient of zeros leaves none to start from."""
        q = self.state.q_memory_dict.get(index)
        if q is not None and bool((q == 0).any()):
            noise = torch.randn(q.shape, generator=torch.Generator().manual_seed(self.step)).mul_(_SEED)
            q.copy_(torch.where(q == 0, noise.to(q), q))

    def exchange_now(self, gradient: torch.Tensor) -> None:
        """Not here: PyTorch's hook works on a ``GradBucket`` alone. Raises UserError."""
        raise UserError("powersgd cannot exchange a bare gradient", "measure a whole step")

    def state_dict(self) -> dict[str, Any]:
        """Residuals, factors and position of this rank; PyTorch's hook keeps them by bucket."""
        kept = {name: dict(getattr(self.state, name)) for name in ("error_dict", "p_memory_dict", "q_memory_dict")}
        copied = {name: {i: t.detach().cpu().clone() for i, t in values.items()} for name, values in kept.items()}
        return {
            "low_rank": self.rank,
            "groups": self._cut(),
            "step": self.step,
            "iter": self.state.iter,
            "seed": self.seed,
            "compression": "powersgd",
            "workers": self.wire.world_size,
            "nonfinite_steps": self.meter.nonfinite_steps,
            "rank": self.meter.rank,
            "factor": self._factor,
            "rng": self.state.rng.get_state(legacy=False),
            **copied,
        }

    def _cut(self) -> list[list[str]]:
        return [[f"{t.name} {list(t.shape)}" for t in members] for members in self._groups.members]

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on where ``state_dict`` was taken; arguments and errors as ``Hook.load_state_dict``.

        PyTorch's hook keeps residuals by bucket: the model must be cut into the same groups.
        """
        states = well_formed(state)
        for one in states:
            found = (one["compression"], one.get("low_rank"), one.get("groups"))
            if found != ("powersgd", self.rank, self._cut()):
                raise UserError(
                    f"the state is of {found[0]}, rank {found[1]}, or of another model; here powersgd, rank {self.rank}",
                    "attach the same compression to the same model, with the same bucket_cap_mb",
                )
        by_rank = {one["rank"]: one for one in states}
        before = states[0]["workers"]
        own = by_rank.get(self.meter.rank) if before == self.wire.world_size else None
        if own is None:
            if sorted(by_rank) != list(range(before)):
                raise UserError(f"the states of {sorted(by_rank)} are not of all {before} ranks", "give those of every rank")
            total = {i: sum(one["error_dict"][i].double() for one in states) for i in by_rank[0]["error_dict"]}
            own = {**by_rank[0], "error_dict": {i: (t / self.wire.world_size).float() for i, t in total.items()}}
        for name in ("error_dict", "p_memory_dict", "q_memory_dict"):
            setattr(self.state, name, {i: t.to(self.wire.device).clone() for i, t in own[name].items()})
        self.state.iter, self.step, self.seed = own["iter"], own["step"], own["seed"]
        self.meter.nonfinite_steps, self._factor = own["nonfinite_steps"], own.get("factor", 1.0)
        self.state.rng.set_state(own["rng"])


class _Bucket:
    """A group as PyTorch's hook sees a ``GradBucket``: its tensors are matrices, none empty, none without a dimension."""

    def __init__(self, group: Group, flat: torch.Tensor, places: Sequence[torch.Tensor]) -> None:
        self._group, self._flat = group, flat
        shaped = zip(group.tensors, places, strict=True)
        self._gradients = [torch.atleast_1d(place.view(t.shape)) for t, place in shaped if t.elements]

    def buffer(self) -> torch.Tensor:
        """All elements, flat."""
        return self._flat

    def gradients(self) -> list[torch.Tensor]:
        """Views of the buffer."""
        return self._gradients

    def index(self) -> int:
        """The group's place among those of a step."""
        return self._group.index

    def is_last(self) -> bool:
        """Whether the step ends with it."""
        return self._group.last
