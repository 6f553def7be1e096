"""Hook of PowerSGD (Vogels et al. 2019): PyTorch's own, with a state that can be resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.codecs import key
from paceline.errors import UserError
from paceline.strategy import GradientExchange, ring_bytes
from paceline.strategy.compression.compression import low_rank_factors
from paceline.strategy.compression.formats import FP32
from paceline.training.attach.attach_options import AttachOptions
from paceline.training.attach.bucketing import Group, Groups
from paceline.training.attach.exchange_thread import Future, promise
from paceline.training.attach.hooks.base import HookBase, StepEnd, step_end
from paceline.training.attach.hooks.state import (
    OF_RANK,
    Kinds,
    check_entries,
    check_same_exchange,
    damaged,
    is_tensors,
    refuse_first_rank_only,
    settings,
    well_formed,
)
from paceline.training.exchanges import allreduce
from paceline.training.exchanges.gradients.gradient_statistics import is_finite
from paceline.training.exchanges.gradients.residual_keeping import keeping_of
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice, TensorSlice, TensorSpec, clip
from paceline.training.exchanges.wires.collectives import collective

_NOTHING = 1e-30  # added to a column's norm: it only changes the norm of a zero column, which is then no divisor of 0
_SEED = 1e-15  # norm of a direction: negligible next to any gradient's, and its square is above 0 in fp32
START = 2  # the least first compressed step: PyTorch's hook accepts no lower number with error feedback
LARGEST = 2.0**40
"""Largest magnitude of a gradient, so that the squared norm of a factor with up to 2^40 elements is finite in fp32 (2^128)."""
_MEMORIES = ("error_dict", "p_memory_dict", "q_memory_dict")
_KINDS: Kinds = {**OF_RANK, "iter": int, "rng": Mapping, **dict.fromkeys(_MEMORIES, Mapping)}


class PowerSGD(HookBase):
    """Hook of PowerSGD; ``Hook`` serves all other compressions."""

    def __init__(
        self,
        model: DistributedDataParallel,
        gradient_exchange: GradientExchange,
        tensors: Mapping[int, TensorSpec],
        options: AttachOptions,
    ) -> None:
        super().__init__(model, gradient_exchange, tensors, options)
        described = gradient_exchange.description
        self.rank, self.min_rate = int(described.option("rank")), described.option("min_rate")
        self._keeping = keeping_of(gradient_exchange)
        self._groups = Groups(model, self._named, fused=False)
        self._flat: dict[int, torch.Tensor] = {}
        self._before: dict[int, dict[str, torch.Tensor | None]] = {}  # memories of the groups sent in this step, by group
        self.state = powerSGD_hook.PowerSGDState(
            self.wire.group,
            matrix_approximation_rank=self.rank,
            start_powerSGD_iter=max(START, int(described.option("start_iter"))),
            min_compression_rate=self.min_rate,
            orthogonalization_epsilon=_NOTHING,
            random_seed=options.seed % 2**32,  # NumPy accepts no larger seed
        )

    def __str__(self) -> str:
        title = self.gradient_exchange.description.title
        return f"{title}, rank {self.rank}" + "".join(f"\n  {n}: {why}" for n, why in self.dense.items())

    def submit(self, bucket: Any) -> Future:
        """Run PyTorch's hook and count its bytes: two factors of each matrix, and the other tensors uncompressed.

        The hook starts its second collective after its first, in no fixed order among buckets. Gloo would hang, so
        buckets run one after another, on a separate thread and group.
        """
        self._begin_step(bucket)
        last = bucket.is_last()
        future = promise(bucket.buffer())
        self.meter.bucket_ready()
        end = step_end(last, bucket.buffer().device)
        for group in self._groups.add(bucket, future):
            used = self._take_used(group.parts)
            self._work.submit(partial(self._run, group, used, end if group.last else None), group.finished, group.last)
        return self._to_ddp(future, last)

    def exchange_now(self, gradient: torch.Tensor) -> None:
        """Replace ``gradient`` (all exchanged elements, flat) by its mean over the workers, to measure an exchange.

        This counts as an iteration of PyTorch's hook, which compresses from iteration ``start_iter`` on, but not as a step.
        """
        parts = dict(zip((t.name for t in self.tensors), gradient.split([t.elements for t in self.tensors]), strict=True))
        last, done = len(self._groups.members) - 1, promise(gradient)
        groups = [
            Group(index, members, {t.name: parts[t.name] for t in members}, (), index == last)
            for index, members in enumerate(self._groups.members)
        ]
        for group in groups:
            waiting = [(gradient, done)] if group.last else []
            self._work.submit(partial(self._run, group, set(group.parts), None), waiting)
        done.wait()
        self._before.clear()
        self._encoded = False
        self._work.check()

    def _run(self, group: Group, used: set[str], end: StepEnd | None) -> None:
        """Exchange a group, and end the step.

        A group with a NaN or an infinity bypasses PyTorch's hook, since the value would stay in residuals and factors. They
        are restored for earlier groups of the step. Tensors that no rank has used keep gradients and residuals, because DDP
        discards their means.
        """
        self._follow_scaler()
        unused = self._unused(group.parts, used)
        flat = self._buffer(group)
        places = flat.split([t.elements for t in group.tensors])
        for tensor, place in zip(group.tensors, places, strict=True):
            place.zero_() if tensor.name in unused else place.copy_(group.parts[tensor.name])
        taken, bucket = list(zip(group.tensors, places, strict=True)), _Bucket(group, flat, places)
        if not self._nonfinite:
            flag = torch.tensor([float(not _is_fit(flat))], dtype=torch.float32, device=self.wire.device)
            self._nonfinite = bool(self.wire.all_reduce(flag, dist.ReduceOp.MAX, "scales").wait())
        if self._nonfinite:
            allreduce(flat, FP32, self.wire)
            self.state.maybe_increase_iter(bucket)
        else:
            self._before[group.index] = self._memories(group.index)  # this or a later group may still show a NaN
            self._low_rank(group, bucket, flat)
            self._nonfinite |= not is_finite(flat)  # the means are equal on all ranks
            self._take_back(group, {tensor.name: place for tensor, place in taken if tensor.name in unused})
            if not self._nonfinite:
                self._take_back(group, self._clip(group, taken))
            self._put_away(group)
        for tensor, place in taken:
            if tensor.name not in unused:
                group.parts[tensor.name].copy_(place)
        if end is not None:
            self._end_step(end)

    def _memories(self, index: int) -> dict[str, torch.Tensor | None]:
        """Return residual and factors of a group. PyTorch's hook makes new residuals, but works on factors in place."""
        kept: dict[str, torch.Tensor | None] = {name: getattr(self.state, name).get(index) for name in _MEMORIES}
        return {name: None if t is None else t if name == "error_dict" else t.clone() for name, t in kept.items()}

    def _keep_residuals(self, keep: bool) -> None:
        for index, memories in self._before.items() if not keep else ():
            for name, values in memories.items():
                memory = getattr(self.state, name)
                memory.pop(index, None)
                if values is not None:
                    memory[index] = values
        self._before.clear()

    def _buffer(self, group: Group) -> torch.Tensor:
        if group.index not in self._flat:
            kinds = {part.dtype for part in group.parts.values()}
            # Sums, factors and residuals of fp16 gradients would overflow in fp16.
            kind = kinds.pop() if len(kinds) == 1 and torch.float16 not in kinds else torch.float32
            if self.gradient_exchange.dense_bits == 16:  # what PyTorch's bf16_compress_wrapper gives this hook
                kind = torch.bfloat16
            self._flat[group.index] = torch.empty(sum(t.elements for t in group.tensors), dtype=kind, device=self.wire.device)
        return self._flat[group.index]

    def _low_rank(self, group: Group, bucket: _Bucket, flat: torch.Tensor) -> None:
        start, elements = self.meter.now(), 0
        for t in group.tensors:
            compressed = self.state.iter >= self.state.start_powerSGD_iter
            factors = low_rank_factors(t.shape, self.rank, self.min_rate) if compressed else None
            elements += sum(factors) if factors else t.elements
        self.meter.sent_bytes += ring_bytes(flat.element_size() * elements, self.wire.world_size)
        self._revive(group.index)
        if group.index in self.state.error_dict:  # as the hook works on it
            self.state.error_dict[group.index] = self.state.error_dict[group.index].to(flat)
        self._encoded |= self.state.iter >= self.state.start_powerSGD_iter
        future = powerSGD_hook.powerSGD_hook(self.state, bucket)
        with collective():
            value = future.wait()
        flat.copy_(value if isinstance(value, torch.Tensor) else value[0])
        self.meter.add("powersgd", "network", start)

    def _clip(self, group: Group, taken: Sequence[tuple[TensorSpec, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Clip the means to the range of the gradients' type. Returns the rest by tensor, which belongs to the residuals."""
        rest: dict[str, torch.Tensor] = {}
        for tensor, place in taken:
            rest |= clip(place, [GradientSlice(TensorSlice(tensor, 0, tensor.elements), group.parts[tensor.name])], 1)
        self._clipped |= bool(rest)
        return rest

    def _take_back(self, group: Group, means: Mapping[str, torch.Tensor]) -> None:
        """Add means, by tensor, back to the residuals: each rank takes an equal share of the sum."""
        error = self.state.error_dict.get(group.index)
        if error is None:
            return
        for tensor, owed in zip(group.tensors, error.split([t.elements for t in group.tensors]), strict=True):
            if tensor.name in means:
                owed.add_(means[tensor.name])

    def _put_away(self, group: Group) -> None:
        """Store the residual that PyTorch's hook has made for a group, unless it is stored in this form already."""
        error = self.state.error_dict.get(group.index)
        if error is not None and not self._keeping.in_place(error.device):
            kept = self._keeping.zeros(error.numel(), error.device)
            self._keeping.put(error.float(), kept, key(self.seed, self.step, self.meter.rank), group.tensors[0].offset)
            self.state.error_dict[group.index] = kept

    def _rescale(self, ratio: float) -> None:
        """Rescale the residuals. The factors need no scaling, since each step makes them orthogonal again."""
        for error in self.state.error_dict.values():
            error.mul_(ratio)

    def _revive(self, index: int) -> None:
        """Replace zero factors by a direction that is equal on every rank. A gradient of zeros leaves zero factors."""
        q = self.state.q_memory_dict.get(index)
        if q is not None and bool((q == 0).any()):
            noise = torch.randn(q.shape, dtype=torch.float32, generator=torch.Generator().manual_seed(self.step)).mul_(_SEED)
            q.copy_(torch.where(q == 0, noise.to(q), q))

    def state_dict(self, *, copied: bool = True) -> dict[str, Any]:
        """Return residuals, factors and position of this rank. PyTorch's hook stores them by bucket.

        The keys are the same in every step, so that ``torch.distributed.checkpoint`` can load into the state of a new hook.

        Args:
            copied: as of ``Hook.state_dict``.
        """
        refuse_first_rank_only(self.wire.world_size)
        memories = {name: self._empty(name) | getattr(self.state, name) for name in _MEMORIES}
        kept = {
            name: {i: t.detach().cpu().clone() if copied else t.detach() for i, t in values.items()}
            for name, values in memories.items()
        }
        draws = self.state.rng.get_state(legacy=False)
        words = torch.from_numpy(draws["state"]["key"].astype(np.int64))  # torch.load accepts no NumPy array by default
        return {
            "low_rank": self.rank,
            "min_rate": self.min_rate,
            "groups": self._tensor_groups(),
            "step": self.step,
            "iter": self.state.iter,
            "seed": self.seed,
            "compression": "powersgd",
            "gradient_exchange": settings(self.gradient_exchange),
            "workers": self.wire.world_size,
            "nonfinite_steps": self.meter.nonfinite_steps,
            "rank": self.meter.rank,
            "factor": self._factor,
            "rng": {**draws, "state": {"key": words, "pos": int(draws["state"]["pos"])}},
            **kept,
        }

    def _tensor_groups(self) -> list[list[str]]:
        return [[f"{t.name} {list(t.shape)}" for t in members] for members in self._groups.members]

    def _empty(self, name: str) -> dict[int, torch.Tensor]:
        """Return a residual of the length that PyTorch's hook expects; zeros mean that there is none."""
        empty = {}
        for index, members in enumerate(self._groups.members):
            factors = [low_rank_factors(t.shape, self.rank, self.min_rate) or (0, 0) for t in members]
            sizes = sum(t.elements for t in members), sum(p for p, _ in factors), sum(q for _, q in factors)
            empty[index] = torch.zeros(sizes[_MEMORIES.index(name)], dtype=torch.float32)
        return empty

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a state of ``state_dict``; arguments and errors as ``Hook.load_state_dict``.

        PyTorch's hook stores residuals by bucket, so the model must have the same groups.
        """
        states = well_formed(state)
        check_same_exchange(states[0], self.gradient_exchange)
        for rank_state in states:
            self._check(rank_state)
        by_rank = {rank_state["rank"]: rank_state for rank_state in states}
        before = states[0]["workers"]
        own = by_rank.get(self.meter.rank) if before == self.wire.world_size else None
        if own is None:
            if sorted(by_rank) != list(range(before)):
                raise UserError(f"the states of {sorted(by_rank)} are not of all {before} ranks", "give those of every rank")
            owed = [self._empty("error_dict") | rank_state["error_dict"] for rank_state in states]
            total = {i: sum(values[i].double() for values in owed) for i in owed[0]}
            own = {**by_rank[0], "error_dict": {i: (t / before).float() for i, t in total.items()}}
        draws = _draws(own["rng"])
        for name in _MEMORIES:
            setattr(self.state, name, {i: self._in_hook_form(name, t) for i, t in own[name].items() if bool(t.any())})
        self.state.iter, self.step, self.seed = own["iter"], own["step"], own["seed"]
        self.meter.nonfinite_steps, self._factor = own["nonfinite_steps"], own["factor"]
        self.state.rng = draws

    def _check(self, state: Mapping[str, Any]) -> None:
        """Raise UserError if the state is damaged, or its residuals and factors belong to other groups."""
        check_entries(state, _KINDS)
        if state.get("groups") != self._tensor_groups():
            raise UserError(
                "the state is of another model or other groups", "attach to the same model, with the same bucket_cap_mb"
            )
        for name in _MEMORIES:
            sizes = {index: values.numel() for index, values in self._empty(name).items()}
            if not is_tensors(state[name]) or any(sizes.get(i) != values.numel() for i, values in state[name].items()):
                raise damaged([name])

    def _in_hook_form(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Convert a stored residual or factor to the form of this hook."""
        device = self.wire.device
        if name != "error_dict" or self._keeping.in_place(device):
            return values.to(device).clone()
        return self._keeping.zeros(values.numel(), device).copy_(values)


def _draws(state: Mapping[str, Any]) -> np.random.RandomState:
    """Return the generator of PyTorch's hook from its saved state. Raises UserError for a damaged one."""
    draws = np.random.RandomState()
    try:
        words = np.asarray(state["state"]["key"]).astype(np.uint32)
        draws.set_state({**state, "state": {**state["state"], "key": words}})
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise damaged(["rng"]) from error
    return draws


def _is_fit(values: torch.Tensor) -> bool:
    """Return whether no element is NaN, infinite or too large."""
    if not values.numel():
        return True
    low, high = torch.aminmax(values)
    return float(-low) <= LARGEST and float(high) <= LARGEST  # never of NaN


class _Bucket:
    """Group of gradients with the interface of a ``GradBucket`` for PyTorch's hook, which has no empty or scalar tensors."""

    def __init__(self, group: Group, flat: torch.Tensor, places: Sequence[torch.Tensor]) -> None:
        self._group, self._flat = group, flat
        shaped = zip(group.tensors, places, strict=True)
        self._gradients = [torch.atleast_1d(place.view(t.shape)) for t, place in shaped if t.elements]

    def buffer(self) -> torch.Tensor:
        """Return all elements, flat."""
        return self._flat

    def gradients(self) -> list[torch.Tensor]:
        """Return views of the buffer."""
        return self._gradients

    def index(self) -> int:
        """Return the index of the group in the step."""
        return self._group.index

    def is_last(self) -> bool:
        """Return True if this is the last group of the step."""
        return self._group.last
