"""Hook of a model that ``fully_shard`` (FSDP2) has sharded, which replaces each unit's reduce-scatter and all-gather."""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor

from paceline.codecs import key
from paceline.errors import UserError
from paceline.strategy import GradientExchange
from paceline.strategy.gradient_exchange import ROUTE_CHOICES
from paceline.training.attach.attach_options import AttachOptions
from paceline.training.attach.buffer_watch import buffers_of_sharded
from paceline.training.attach.consistency import comparable, odd_in_mesh, same_in_mesh
from paceline.training.attach.exchange_thread import Exchanges, Future, promise
from paceline.training.attach.hooks.state import (
    POSITION,
    HookState,
    check_entries,
    check_same_exchange,
    damaged,
    listed,
    refuse_first_rank_only,
    refuse_whole_models,
    settings,
)
from paceline.training.attach.shards.fsdp_units import (
    Unit,
    after_each_backward,
    check_root,
    may_be_root,
    reduce_by_shards_alone,
    refuse_sparse_gradients,
    widest_mesh,
    widest_unit,
)
from paceline.training.attach.shards.sharded_setup import make_reducers
from paceline.training.attach.shards.sharded_state import (
    KINDS,
    Holding,
    check_saved,
    is_part,
    of_other_ranks,
    read,
    saved_sizes,
)
from paceline.training.attach.shards.step_verdict import StepVerdict, Verdict, verdict_wires
from paceline.training.attach.shards.unit_exchange import ShardedTensor
from paceline.training.attach.shards.unit_reducer import Draws, UnitReducer
from paceline.training.attach.shards.weight_gather import WeightGather
from paceline.training.device_stream import in_order_of_launches, settle_copies
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec
from paceline.training.exchanges.wires.message_buffers import BufferPool
from paceline.training.exchanges.wires.meter import Meter

_log = logging.getLogger("paceline")

MOST_QUEUED = 1
"""Exchanges that may wait or run when the next unit has its gradients, so that two units hold unsharded ones. A longer queue
hides no more time, because exchanges run one after another."""


class ShardedHook:
    """Hook that exchanges the gradients of FSDP2's units with their owners during the backward pass.

    Args:
        units: units of the model, frozen ones too; every rank has the same.

    Attributes:
        gradient_exchange: compression and exchange in use.
        step: number of exchanged backward passes; the random draws depend on it.
        tensors: every exchanged tensor, in ``named_parameters()`` order.
        dense: names of the dense tensors, each with the reason.
        meter: counts bytes, events and non-finite steps.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[Unit],
        gradient_exchange: GradientExchange,
        options: AttachOptions,
    ) -> None:
        self.gradient_exchange, self.options, self.step = gradient_exchange, options, 0
        self.seed = options.seed  # until a state is loaded
        self.units = tuple(unit for unit in units if unit.tensors)
        self._model, self._every_unit = model, tuple(units)
        self._names = {name for name, _ in model.named_parameters()}
        places = {name: place for place, (name, _) in enumerate(model.named_parameters())}
        whole = [t.whole for unit in self.units for t in unit.tensors]
        self.tensors: list[TensorSpec] = sorted(whole, key=lambda t: places[t.name])
        self.dense = dict(gradient_exchange.description.dense(self.tensors))
        self.meter, self.sample = Meter(dist.get_rank()), Sample()  # a shard is never sampled
        self._reducers: dict[Unit, UnitReducer] = make_reducers(
            self.units, gradient_exchange, set(self.dense), self.meter, options.timeout_s
        )
        self._factor = 1.0
        widest = self._reducers[widest_unit(self.units)]
        self._data_wires = tuple(dict.fromkeys((widest.world, widest.replicas)))
        ranks = {rank for wire in self._data_wires for rank in dist.get_process_group_ranks(wire.group)}
        self._buffers = buffers_of_sharded(model, ranks)
        everyone = dist.group.WORLD if widest_mesh(self.units).size() == dist.get_world_size() else None
        wires = verdict_wires(self.units, (r.world for r in self._reducers.values()), self.meter, options.timeout_s)
        every_wire = (*wires, *(wire for reducer in self._reducers.values() for wire in reducer.wires))
        self._work = Exchanges(self._reducers[self.units[0]].world, everyone, every_wire)
        self._in_turn = self._work.on_stream and in_order_of_launches()  # with FSDP2's own collectives
        self._waiting: list[Future] = []
        self._queued: deque[Future] = deque()  # exchanges that may still hold the gradients of a whole unit
        self._verdict = StepVerdict(wires, gradient_exchange.description.lossy)
        self._in_step = self._exchanged = False
        self._told: set[str] = set()
        messages = BufferPool()
        for number, unit in enumerate(units):
            if unit.replicate_group is not None:
                reduce_by_shards_alone(unit)
            unit.module.set_custom_reduce_scatter(UnitReduceScatter(self, unit))
            unit.module.set_custom_all_gather(UnitAllGather(self, unit, number, messages))
        refuse_sparse_gradients(self.units)
        after_each_backward(model, self._end_step)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def __str__(self) -> str:
        kept = "".join(f"\n  {name}: {reason}" for name, reason in self.dense.items())
        described, over = self.gradient_exchange.description, self.gradient_exchange.exchange
        units = f"{len(self.units)} units over {self.units[0].owners} owners"
        return f"{described.title} over {over}, {units}; {described.rule or 'every tensor equally'}{kept}"

    def naming(self) -> AbstractContextManager[None]:
        """Name the lost ranks in the LostRank of collectives in this block, as the hook's exchanges do."""
        return self._work.naming()

    def reduce(self, unit: Unit, output: torch.Tensor, matrix: torch.Tensor, op: Any) -> None:
        """Write this rank's part of the mean of ``matrix`` into ``output``. If FSDP2 reads the part only after the backward
        pass, it may be written later.
        """
        self._work.receive(matrix, output)
        self._begin_step()
        self.meter.bucket_ready()
        reducer, late = self._reducers[unit], unit.may_be_late(output) and not self._in_turn
        compressed = matrix.numel() == unit.owners * unit.columns
        holds = compressed and reducer.holds
        self._exchanged |= not holds
        if not compressed:
            self._say_once(
                "unused", "a unit's backward pass left tensors without a gradient; its gradients are sent dense in such steps"
            )
        self._wait_for_room()
        future = promise(output)
        task = partial(self._run, reducer, output, matrix, unit.divisor(op), self.step, compressed, holds)
        self._work.submit(task, [(output, future)])
        self._queued.append(future)
        if late:
            self._waiting.append(future)
        else:
            future.wait()
            self._work.check()

    def _wait_for_room(self) -> None:
        """Wait until fewer than ``MOST_QUEUED`` units hold unsharded gradients, as FSDP2 does for its own reduce-scatters."""
        while len(self._queued) >= MOST_QUEUED:
            self._queued.popleft().wait()
            self._work.check()

    def state_dict(self) -> HookState:
        """Return the state for resumption: position and seed of the draws, and each rank's residuals as DTensors over the
        ranks. Save it with ``torch.distributed.checkpoint``, which also accepts the hook itself. Every rank must call this.
        """
        refuse_first_rank_only(dist.get_world_size())
        owed = {kind: {name: h.saved(values) for name, _, h, values in self._values(kind)} for kind in KINDS}
        return {**self._plain_state(), **owed}

    def _plain_state(self) -> HookState:
        return {
            "step": self.step,
            "seed": self.seed,
            "nonfinite_steps": self.meter.nonfinite_steps,
            "compression": self.gradient_exchange.compression.name,
            "gradient_exchange": json.dumps(settings(self.gradient_exchange)),  # one entry, whatever options it has
            "factor": self._factor,
            "gather_bits": self.options.gathered_as,
        }

    def load_state_dict(self, state: HookState) -> None:
        """Continue bit for bit from a state of equally many ranks on the same mesh. Every rank must call this.

        Raises:
            UserError: not a state, or the state has another compression, option, tensor or mesh.
        """
        self._check(state)
        found: list[tuple[torch.Tensor, DTensor]] = []
        for kind in KINDS:
            for name, _, holding, values in self._values(kind):
                saved = _entry(state, kind, name)
                if not isinstance(saved, DTensor) or saved.shape != holding.saved(values).shape:
                    raise UserError(
                        f"the state has no {kind} of {name} for this mesh",
                        "load_checkpoint reads that of other ranks, load_own_states what own_state() returned",
                    )
                found.append((values, saved))
        for values, saved in found:
            values.copy_(saved.to_local().view_as(values))
        self._continue(state)

    def own_state(self, *, copied: bool = True) -> HookState:
        """Return the state of this rank as plain tensors, for ``load_own_states``. Every rank must call this, because the first
        call communicates.

        Args:
            copied: False returns the tensors themselves, which the next step changes, for callers that copy them.
        """
        own = self._plain_state()
        for kind in KINDS:
            own[kind] = {name: holding.part(values, copied) for name, _, holding, values in self._values(kind)}
        return own

    def load_own_states(self, states: Sequence[HookState]) -> None:
        """Continue from ``own_state`` of this rank, or of all ranks of the earlier run. Every rank must call this.

        With the same ranks and mesh the run continues bit for bit; with others the residuals are kept as a sum. Under
        tensor parallelism a rank takes only the residuals of its parts of the tensors.

        Raises:
            UserError: not states, or states of another compression, option or model, or not those of all ranks.
        """
        states = listed(states)
        for state in states:
            self._check(state)
        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for kind in KINDS:
            for name, tensor, holding, values in self._values(kind):
                parts = [part for state in states if (part := _entry(state, kind, name)) is not None]
                if not parts or not all(is_part(part) for part in parts):
                    raise UserError(
                        f"the states have no {kind} of {name}", "give what own_state() returned, of this rank or of all ranks"
                    )
                found.append((values, holding.from_parts(parts, tensor)))
        for values, own in found:
            values.copy_(own)
        self._continue(states[0])

    def load_checkpoint(self, path: str | Path, name: str = "exchange") -> None:
        """Continue from a checkpoint of ``torch.distributed.checkpoint`` on any number of ranks and any mesh.

        With the same ranks and mesh the run continues bit for bit. With others each gets the mean of the residuals, which
        preserves their effect. Every rank calls it.

        Args:
            path: the checkpoint's ``checkpoint_id``.
            name: under which the hook's state was saved in it.

        Raises:
            UserError: no such checkpoint or state, a damaged one, or one of another compression, option or model.
        """
        sizes = saved_sizes(path, name)
        own: HookState = self.state_dict()
        plain = {key: value for key, value in own.items() if key not in KINDS}
        read({name: plain}, path)
        self._check(plain)
        owed = [(f"{name}.{kind}.{label}", own[kind][label], *of) for kind in KINDS for label, *of in self._values(kind)]
        for key_, _, tensor, _, _ in owed:
            if key_ not in sizes:
                raise UserError(f"the checkpoint has no {key_}", "load it into the model that saved it")
            check_saved(tensor, sizes[key_])
        for key_, saved, tensor, holding, values in owed:
            if sizes[key_] == saved.shape:
                read({key_: saved}, path)
                values.copy_(saved.to_local().view_as(values))
            else:
                values.copy_(of_other_ranks(path, key_, tensor, holding, sizes[key_], values.device))
        self._continue(plain)

    def _check(self, state: HookState) -> None:
        """Raise UserError for a wrong state, or for one of another compression. Its exchange may differ with the mesh."""
        check_entries(state, {})
        refuse_whole_models(state)
        check_entries(state, {**POSITION, "gradient_exchange": str})
        try:
            own, before = self.gradient_exchange.to_json(), json.loads(state["gradient_exchange"])
        except ValueError as error:
            raise damaged(["gradient_exchange"]) from error
        if not isinstance(before, dict):
            raise damaged(["gradient_exchange"])
        route = {name: own[name] for name in ROUTE_CHOICES if name in own}
        check_same_exchange({**state, "gradient_exchange": {**before, **route}}, self.gradient_exchange)

    def _continue(self, state: HookState) -> None:
        self.step, self.seed, self._factor = state["step"], state["seed"], state["factor"]
        self.meter.nonfinite_steps = state["nonfinite_steps"]
        self._say_what_waits()

    def _say_what_waits(self) -> None:
        owed = [float(v.float().square().sum()) for _, _, _, v in self._values("residual")] if self.units[0].owners == 1 else ()
        if any(owed):
            norm = f"{math.sqrt(sum(owed)):.3g}"
            self._say_once(
                "owed", f"residuals of norm {norm} stay in the state until gradients are exchanged; FSDP2 may not on one rank"
            )

    def _values(self, kind: str) -> Iterator[tuple[str, ShardedTensor, Holding, torch.Tensor]]:
        """Yield name, tensor and place of all residuals (or momentum) of this rank, with their values."""
        for unit in self.units:
            reducer = self._reducers[unit]
            if (holding := reducer.holding) is None:
                continue
            for tensor in reducer.compressed:
                values = reducer.owed_to(tensor, kind)
                if values is not None:
                    yield unit.label(tensor), tensor, holding, values

    def _run(
        self,
        reducer: UnitReducer,
        output: torch.Tensor,
        matrix: torch.Tensor,
        divisor: float,
        step: int,
        compressed: bool,
        holds: bool,
    ) -> None:
        draws = Draws(self.seed, step)
        self._follow_scaler()
        bad = reducer.reduce(output, matrix, divisor, draws, self._verdict.nonfinite, compressed)
        if not holds:
            self._verdict.seen(bad, compressed and reducer.encodes, reducer.agrees if compressed else None)

    def _begin_step(self) -> None:
        if not self._in_step:
            if not may_be_root(self._model):
                check_root(self._model)
            self._refuse_thawed()
            self._in_step = True

    def _refuse_thawed(self) -> None:
        """Raise UserError, before the step sends anything, for a trained tensor that was frozen or not there at ``attach``."""
        thawed = [name for unit in self._every_unit for name in unit.thawed]
        thawed += [name for name, p in self._model.named_parameters() if p.requires_grad and name not in self._names]
        if thawed:
            raise UserError(
                f"{', '.join(thawed)}: frozen or not there when attach was called, trained now. It is not compressed",
                "set requires_grad before attach; what is trained then may be frozen and trained again later",
            )

    def _end_step(self) -> None:
        """End a backward pass after all its gradients."""
        if not self._in_step:  # no unit has been reduced
            return
        exchanged, self._in_step, self._exchanged = self._exchanged, False, False
        verdicts: list[Callable[[], Verdict]] = []
        ended = promise(nothing := torch.empty(0, dtype=torch.float32, device=self._data_wires[0].device))

        def conclude() -> None:
            settle_copies(nothing.device)
            if exchanged:
                verdicts.append(self._verdict.conclude())

        self._work.submit(conclude, [(nothing, ended)])
        for future in (*self._waiting, ended):
            future.wait()
        self._waiting.clear()
        self._queued.clear()
        self._work.check()
        if not exchanged:  # HSDP: all units have collected their gradients for a later backward pass
            return
        self.step += 1
        self._obey(verdicts[0])
        if self.options.check_every and self.step % self.options.check_every == 0:
            with self.naming():
                self.check_replicas()

    def _obey(self, told: Callable[[], Verdict]) -> None:
        """Keep the residuals of this step, or restore the earlier ones. After a mixed step every gradient is NaN."""
        if not self.gradient_exchange.description.lossy:
            self.meter.count_later(lambda: told().nonfinite, self.step - 1)
            return
        verdict = told()
        self.meter.count_nonfinite(verdict.nonfinite, self.step - 1)
        for reducer in self._reducers.values():
            reducer.end_step(not verdict.nonfinite)
        if verdict.mixed:
            with torch.no_grad():
                for parameter in (p for unit in self.units for p in unit.parameters if p.grad is not None):
                    Unit.shard_of(parameter.grad).fill_(torch.nan)

    def check_replicas(self) -> None:
        """Compare the shards with the other replicas' in HSDP, and buffers between all ranks.

        Raises:
            ReplicasDiverged: on every rank, if shards or the buffers of SyncBatchNorm differ. Other buffers are reported once.
        """
        replicated = [unit for unit in self.units if unit.replicate_group is not None]
        others = [wire.group for wire in self._verdict.wires]
        for wire in dict.fromkeys(self._reducers[unit].replicas for unit in replicated):
            units = [unit for unit in replicated if self._reducers[unit].replicas is wire]
            shards = [unit.shard_of(p) for unit in units for p in unit.parameters]
            same_in_mesh("weights", comparable(shards), [wire.group], others, wire.device)
        alike, own = self._buffers.unsent()
        groups, device = [wire.group for wire in self._data_wires], self._data_wires[0].device
        same_in_mesh("buffers of SyncBatchNorm", alike, groups, others, device)
        if odd_in_mesh(own, groups, others, device) and self.meter.rank == 0:
            self._buffers.tell_of_own()

    def _follow_scaler(self) -> None:
        """Rescale the residuals, which belong to scaled gradients, if the gradient scaler changes its factor."""
        factor = self._factor if self.options.grad_scaler is None else float(self.options.grad_scaler.get_scale())
        if factor != self._factor:
            for reducer in self._reducers.values():
                reducer.feedback_scale(factor / self._factor)
            self._factor = factor

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._told and self.meter.rank == 0:
            _log.warning("%s", text)
        self._told.add(what)


def _entry(state: HookState, kind: str, name: str) -> Any:
    """Return a tensor's residual or momentum in the state; None if it has none."""
    entries = state.get(kind)
    return entries.get(name) if isinstance(entries, Mapping) else None


class UnitReduceScatter(ReduceScatter):
    """Reduce-scatter of one unit, with the interface that FSDP2 calls."""

    def __init__(self, hook: ShardedHook, unit: Unit) -> None:
        self._hook, self._unit = hook, unit

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate a buffer for FSDP2."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        self._hook.reduce(self._unit, output_tensor, input_tensor, op)


class UnitAllGather(AllGather):
    """All-gather of one unit's weights, with the interface that FSDP2 calls."""

    def __init__(self, hook: ShardedHook, unit: Unit, number: int, messages: BufferPool) -> None:
        self._hook = hook
        options, shards = hook.options, unit.gathered_shards
        self._gather = WeightGather(
            options.gather_bits,
            unit.shard_group,
            hook.meter,
            number,
            options.timeout_s,
            messages,
            shards,
            options.gather_format,
        )

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate a buffer for FSDP2."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        draws = key(self._hook.seed, self._hook.step, group.rank())
        with self._hook.naming():
            work = self._gather(output_tensor, input_tensor, group, draws, async_op)
        return None if work is None else _NamingWork(partial(self._gather.wait, work, output_tensor), self._hook.naming)


class _NamingWork(dist.Work):  # FSDP2 waits for nothing else
    """Collective in flight whose error names the lost ranks."""

    def __init__(self, wait: Callable[[], bool], naming: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._wait, self._naming = wait, naming

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait as ``dist.Work`` does, with the hook's timeout. Raises LostRank."""
        with self._naming():
            return self._wait()
