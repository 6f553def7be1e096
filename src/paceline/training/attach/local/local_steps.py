"""Local steps: workers train alone, and exchange the changes of their weights at intervals (Local SGD, DiLoCo).

A pseudo-gradient is the anchor, the shared weights of the last exchange, minus the weights now. Its mean over the workers goes
through the same exchange as gradients do, and an outer SGD step with Nesterov momentum moves the anchor (Douillard et al. 2023,
arXiv:2311.08105, Algorithm 1). With a delay the exchange of a fragment runs during the next steps (Douillard et al. 2025,
arXiv:2501.18512, Algorithm 2).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from paceline.errors import UserError
from paceline.strategy import GradientExchange, LocalSteps
from paceline.training.attach.attach_options import AttachOptions
from paceline.training.attach.consistency import same_weights
from paceline.training.attach.exchange_thread import Exchanges, promise
from paceline.training.attach.hooks.state import refuse_first_rank_only
from paceline.training.attach.local.local_fragments import Fragment, StartedExchange
from paceline.training.attach.local.local_state import LocalState, load, refuse_one_name, state_of
from paceline.training.attach.local.worker_exchange import WorkerRanks, exchanged
from paceline.training.attach.local.worker_ranks import Seat, local_of, parts_of, reshard
from paceline.training.device_stream import in_order_of_launches, settle_copies
from paceline.training.exchanges import begin_allreduce
from paceline.training.exchanges.exchange_group import Gradients, exchange_group, room
from paceline.training.exchanges.exchange_setup import make_setup, setup_at
from paceline.training.exchanges.gradients.error_feedback import Feedback
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.gradient_statistics import is_finite
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.collectives import Wire
from paceline.training.exchanges.wires.meter import Meter
from paceline.training.exchanges.wires.process_groups import own_wire

_log = logging.getLogger("paceline")


class LocalSync:
    """Exchange of a model's pseudo-gradients; call ``step`` after every step of the optimizer.

    Buffers of floating-point numbers, such as BatchNorm's statistics, are averaged once in ``sync_every`` steps, as fp32; those
    few bytes are not counted by ``meter``. Other buffers are left alone.

    A worker may be a group of ranks (``worker_ranks``). Each rank then keeps the state of one shard.

    Args:
        group: all ranks of all workers.
        seat: place of this rank in its worker.
        peers: the ranks with the same place in all workers.

    Attributes:
        gradient_exchange: compression and exchange; ``local``: how often and with which outer step.
        step_number: steps so far; the random draws depend on it.
        tensors: tensors that this rank exchanges, in ``named_parameters()`` order, each flat where the worker divides it;
            ``dense``: names of those sent as fp32, with the reason.
        whole: the whole tensors. ``place``: place of this rank in its worker. ``parts``: its part of each tensor, by name.
        fragments: parts of the network that take turns. ``pending``: the exchange that has begun and is not applied.
        setup: setup of its exchange; None for the engine's all-reduce.
        buffers: averaged buffers by name; ``kept_buffers``: their shared values, flat. ``counts``: the other buffers.
        returned: how often all workers went back to the shared weights because a pseudo-gradient was NaN or infinite.
        meter: counts bytes and events of the last exchange that has ended; ``began_s``: when it began, on this process's clock.
        sample: stages of one tensor's pseudo-gradient, on request.
    """

    def __init__(
        self,
        model: nn.Module,
        gradient_exchange: GradientExchange,
        local: LocalSteps,
        tensors: Mapping[str, TensorSpec],
        options: AttachOptions,
        group: dist.ProcessGroup,
        seat: Seat,
        peers: Sequence[int],
    ) -> None:
        self.gradient_exchange, self.local, self.options = gradient_exchange, local, options
        self.seed, self.step_number, self.returned = options.seed, 0, 0  # until a state is loaded
        whole = list(tensors.values())
        self._model, self.place, self.whole = model, seat.place, whole
        self.dense = dict(gradient_exchange.description.dense(whole))
        self.meter, self.sample = Meter(dist.get_rank(group)), Sample()
        parameters = dict(model.named_parameters())
        self.parts = {part.name: part for part in parts_of(parameters, whole, seat.place)}
        self.tensors = whole if seat.place.devices == 1 else [part.exchanged for part in self.parts.values()]
        device = parameters[whole[0].name].device
        self.wire = own_wire(group, peers, device, self.meter, options.timeout_s)
        self.worker = WorkerRanks(seat, self.wire, group) if seat.place.devices > 1 else None
        _spread(model, self.worker, self.wire)
        self.setup = make_setup(gradient_exchange, self.wire, self.sample)
        if self.feedback is not None:
            self.feedback.decay = local.residual_decay
        block = gradient_exchange.description.format.block
        own = {tensor.name: tensor for tensor in self.tensors}
        self.fragments = [
            Fragment(
                [self.parts[t.name].shard for t in part],
                [local_of(parameters[t.name]) for t in part],
                Layout([own[t.name] for t in part if own[t.name].elements], self.dense, block),
                local,
            )
            for part in local.split(whole)
        ]
        self.buffers = {n: b for n, b in model.named_buffers() if b.is_floating_point()}
        self.counts = {n: b for n, b in model.named_buffers() if not b.is_floating_point()}
        self.kept_buffers = self._flat_buffers()
        self._count, self._over = 0, False
        widest = max(self.fragments, key=lambda f: f.elements)
        self._difference = torch.empty(widest.elements, dtype=widest.anchor.dtype, device=device)
        self._flat = torch.empty(0, dtype=torch.float32)
        self.pending: StartedExchange | None = None
        self.owed: dict[str, torch.Tensor] = {}  # residuals that an exchange without feedback still has to send
        self.began_s = 0.0
        self._work = Exchanges(self.wire, group)

    def __str__(self) -> str:
        kept = "".join(f"\n  {name}: {reason}" for name, reason in self.dense.items())
        described = self.gradient_exchange.description
        how = f"{described.title} over {self.gradient_exchange.exchange}"
        return f"{self.local.title}; {how}; {described.rule or 'every tensor equally'}{kept}"

    def step(self) -> bool:
        """Count a step of the optimizer, and exchange a fragment and move its weights if one is due.

        Returns:
            True if an exchange has ended; ``meter`` and ``began_s`` are then those of that exchange.

        All ranks must take the same number of steps, or call ``finish`` when their data ends.

        Raises:
            LostRank: a rank has ended or does not answer.
            ReplicasDiverged: the shared weights differ between ranks.
            PayloadError: a message is damaged.
            UserError: the model's tensors are no longer those that were attached, or others are trained too; after ``finish``.
        """
        if self._over:
            raise UserError("step() after finish(), which has ended the exchanges", "call finish() once, after the last step()")
        for fragment in self.fragments:
            fragment.idle = False
        return bool(self._advance())

    def finish(self) -> None:
        """Take part in the others' exchanges until no rank trains any more. Every rank then has the same weights.

        This is for ranks with unequal numbers of steps, and for the steps since the last exchange. A rank without data counts
        with unchanged weights. Raises as ``step``.
        """
        silent = 0
        while silent < len(self.fragments):
            trained = self._advance()
            silent = silent + 1 if trained == 0 else 0 if trained else silent
        self._apply()
        self._take_all()
        self._over = True

    @contextmanager
    def shared_weights(self) -> Iterator[None]:
        """Give the model the shared weights and buffers of the last exchanges within the block, equal on every rank."""
        self._refuse_others()
        own = [w.clone() for fragment in self.fragments for w in fragment.weights]
        buffers = self._flat_buffers()
        self._take_all()
        try:
            yield
        finally:
            reshard(self._model)
            with torch.no_grad():
                for w, before in zip((w for f in self.fragments for w in f.weights), own, strict=True):
                    w.copy_(before)
            self._set_buffers(buffers)

    def check_replicas(self) -> None:
        """Compare a checksum of the shared weights; all ranks must call it. Raises ReplicasDiverged on every rank."""
        self._wait()
        self._compare_anchors()

    def _compare_anchors(self) -> None:
        anchors = [f.anchor for f in self.fragments]
        if self.worker is None:
            same_weights(self.wire.group, anchors, self.wire.device)
        else:
            self.worker.same_weights(anchors)

    def state_dict(self) -> LocalState:
        """Return the state of this rank for resumption, with its own weights. Save those of all ranks and optimizers.

        Raises:
            UserError: Accelerate or torch.distributed.checkpoint asks for it, which would keep the state of one rank.
        """
        refuse_first_rank_only(self.wire.world_size * self.place.devices)
        refuse_one_name()
        self._wait()
        reshard(self._model)
        return state_of(self)

    def load_state_dict(self, state: LocalState | Sequence[LocalState]) -> None:
        """Continue from a state of ``state_dict``; all ranks must load. It sets the model's weights and buffers.

        Args:
            state: the state of this rank, or those of all ranks of the earlier run. With the same number of ranks the run
                continues bit for bit. With another number every rank begins with the mean of the ranks' weights and the
                mean of their residuals.

        Raises:
            UserError: not a state, or the state has another compression, exchange, rule or tensor, or lacks ranks; the model's
                tensors are no longer those that were attached.
        """
        self._refuse_others()
        self._wait()
        load(self, state)

    @property
    def feedback(self) -> Feedback | None:
        """Residuals of earlier pseudo-gradients; None for a codec without error feedback."""
        return self.setup.feedback if self.setup else None

    def go_on(self, pending: Mapping[str, Any] | None) -> None:
        """Continue an exchange that had arrived but was not applied, from a state."""
        self.pending = None
        if pending is not None:
            mean = self._difference[: pending["mean"].numel()].copy_(pending["mean"])
            done = promise(mean)
            done.set_result(mean)
            buffers = pending["buffers"].to(self.wire.device)
            settled = {name: pending[name] for name in ("trained", "finite")}
            self.pending = StartedExchange(pending["fragment"], pending["due"], mean, buffers, done, **settled)

    def _advance(self) -> int | None:
        """Take part in the exchanges of one step. Returns the number of workers that had trained in a completed exchange; None
        if none was completed."""
        self._work.check()
        self.step_number += 1
        trained = None
        if self.pending is not None and self.pending.due <= self.step_number:
            trained = self._apply()
        turn = self.local.due(self.step_number)
        if turn is not None:
            self._begin(turn)
            if not self.local.sync_delay:
                trained = self._apply()
        return trained

    def _refuse_others(self) -> None:
        """Raise UserError if the model trains other or more tensors than those in the exchange."""
        reshard(self._model)
        parameters, buffers = dict(self._model.named_parameters()), dict(self._model.named_buffers())
        taken = ((t.name, w) for f in self.fragments for t, w in zip(f.tensors, f.weights, strict=True))
        other = [name for name, w in taken if not _share_memory(parameters.get(name), w)]
        other += [name for name, b in (self.buffers | self.counts).items() if not _share_memory(buffers.get(name), b)]
        if other:
            raise UserError(
                f"{other[0]} is no longer the tensor that attach_local was given: the model was converted, moved or replaced",
                "call attach_local behind .to(), .cuda() and load_state_dict(assign=True)",
            )
        thawed = [name for name, p in parameters.items() if p.requires_grad and name not in self.parts]
        if thawed:
            raise UserError(
                f"{', '.join(thawed)}: frozen or not there when attach_local was called, trained now. It is not exchanged",
                "set requires_grad before attach_local, or drop what it returned and attach again",
            )

    def _begin(self, turn: int) -> None:
        self._refuse_others()
        fragment = self.fragments[turn]
        mean = fragment.difference(self._difference)
        for name, whole in fragment.named(mean).items():
            if name in self.owed:
                part = whole[self.parts[name].start : self.parts[name].stop]
                part.add_(self.owed.pop(name).reshape(-1).to(part))
        buffers = self._flat_buffers() if turn == len(self.fragments) - 1 else self.kept_buffers[:0]
        done = promise(mean)
        self._work.receive(buffers)
        self.pending = StartedExchange(turn, self.step_number + self.local.sync_delay, mean, buffers, done, time.perf_counter())
        self._work.submit(partial(self._exchange, self.pending, fragment, fragment.idle, self.step_number), [(mean, done)])
        fragment.idle = True
        if self._work.on_stream and in_order_of_launches():  # with collectives of the script
            done.wait()

    def _exchange(self, pending: StartedExchange, fragment: Fragment, idle: bool, step: int) -> None:
        """Replace a pseudo-gradient by its mean, on the exchange thread."""
        self.wire.meter.begin_step()
        told = torch.tensor([0.0 if idle else 1.0, 0.0], dtype=torch.float32, device=self.wire.device)
        if self.worker is not None:  # each rank sees one shard, and all must decide the same before any residual changes
            told = self.worker.total(torch.stack([told[0] / self.place.devices, told[1] + (not is_finite(pending.mean))]))
        trained, spoilt = self.wire.note(told)().tolist()
        pending.trained, pending.finite = round(trained), not spoilt
        if not pending.trained or not pending.finite:
            return
        if self.options.check_every and self._count % self.options.check_every == 0:
            self._compare_anchors()
        self._count += 1
        if pending.buffers.numel():  # before anything is encoded: residuals stay if a buffer is infinite
            if self.worker is not None:
                pending.buffers = self.worker.total(pending.buffers) / self.place.devices
            pending.buffers = self.wire.note(pending.buffers)() / self.wire.world_size
            pending.finite = is_finite(pending.buffers)
        if pending.finite:
            self._average(pending.mean, fragment, step)
            pending.finite = is_finite(pending.mean)
            if self.worker is not None:
                pending.finite = not self.worker.any(not pending.finite)
        settle_copies(self.wire.device)
        pending.meter = copy(self.wire.meter)  # the next exchange may begin before somebody looks

    def _average(self, mean: torch.Tensor, fragment: Fragment, step: int) -> None:
        """Replace the pseudo-gradient of a fragment by its mean, of which this rank exchanges its part."""
        parts = [self.parts[t.name] for t in fragment.tensors]
        own = exchanged(mean, parts, self.place)
        if fragment.layout.total:  # equal on the ranks that exchange it
            self._replace_by_mean(own, fragment, step)
        if self.worker is not None and self.worker.replicas is not None:
            self.worker.gather(own, parts, mean)

    def _replace_by_mean(self, difference: torch.Tensor, fragment: Fragment, step: int) -> None:
        if self.setup is None:
            begin_allreduce(difference, self.gradient_exchange.description.format, self.wire)()
            return
        setup = setup_at(self.setup, self.gradient_exchange, step)
        wanted, device = room(setup, fragment.layout), setup.device(difference.device)
        if self._flat.numel() < wanted or self._flat.device != device:
            self._flat = torch.empty(wanted, dtype=torch.float32, device=device)
        gradients = Gradients(
            layout=fragment.layout,
            parts=self._named(difference, fragment),
            workspace=self._flat[:wanted],
            seed=self.seed,
            step=step,
        )
        exchange_group(setup, gradients)

    def _named(self, own: torch.Tensor, fragment: Fragment) -> dict[str, torch.Tensor]:
        """Return each tensor's elements in what this rank exchanges of a fragment."""
        parts = [self.parts[t.name] for t in fragment.tensors]
        return {p.name: e for p, e in zip(parts, own.split([p.stop - p.start for p in parts]), strict=True) if e.numel()}

    def _wait(self) -> None:
        if self.pending is not None:
            self.pending.done.wait()
        self._work.check()

    def _apply(self) -> int | None:
        """Move a fragment by the mean that has arrived. All ranks have the same mean, so they decide equally."""
        self._wait()
        pending, self.pending = self.pending, None
        if pending is None or not pending.trained:
            return None if pending is None else 0
        self.began_s = pending.began_s
        if pending.meter is not None:
            self.meter = pending.meter
            self.meter.nonfinite_steps = self.returned
        if not pending.finite:
            self._give_up()
            return pending.trained
        fragment = self.fragments[pending.fragment]
        fragment.move(pending.mean)
        fragment.take(self.local.own_share)
        if pending.buffers.numel():
            self.kept_buffers = pending.buffers
            self._work.take_back(pending.buffers)
            self._set_buffers(pending.buffers)
        return pending.trained

    def _give_up(self) -> None:
        """Return to the shared weights of all fragments, because a bad fragment has affected the whole network."""
        if not self.returned and self.wire.rank == 0:
            _log.warning(
                "step %d: a pseudo-gradient is NaN or infinite; all workers return to the shared weights of the last exchange. "
                "If this repeats, lower outer_momentum or the optimizer's rate; reset its state, which may hold such values",
                self.step_number,
            )
        self.returned += 1
        self.meter.nonfinite_steps = self.returned
        self._take_all()
        for fragment in self.fragments:
            fragment.idle = True

    def _take_all(self) -> None:
        for fragment in self.fragments:
            fragment.take()
        self._set_buffers(self.kept_buffers)

    def _flat_buffers(self) -> torch.Tensor:
        """Return all averaged buffers as one fp32 tensor."""
        device = self.wire.device
        return torch.cat(
            [
                torch.zeros(0, dtype=torch.float32, device=device),
                *(b.detach().reshape(-1).float() for b in self.buffers.values()),
            ]
        )

    @torch.no_grad()
    def _set_buffers(self, flat: torch.Tensor) -> None:
        for buffer, part in zip(self.buffers.values(), flat.split([b.numel() for b in self.buffers.values()]), strict=True):
            buffer.copy_(part.view(buffer.shape))


def _share_memory(tensor: torch.Tensor | None, b: torch.Tensor) -> bool:
    if tensor is None:
        return False
    a = local_of(tensor)
    return (a.data_ptr(), a.dtype, a.device) == (b.data_ptr(), b.dtype, b.device)


def _spread(model: nn.Module, worker: WorkerRanks | None, wire: Wire) -> None:
    """Give every rank the weights and buffers of the first worker, as DDP does, and ranks with equal shards equal ones."""
    for tensor in (*model.parameters(), *model.buffers()):
        values = local_of(tensor)
        if not values.numel():
            continue
        if worker is not None:
            same = worker.replicas if isinstance(tensor, DTensor) else worker.members
            if same is not None:
                dist.broadcast(values, same.job_rank(0), group=same.group)
        dist.broadcast(values, wire.job_rank(0), group=wire.group)
