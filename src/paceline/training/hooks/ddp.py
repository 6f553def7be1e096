"""The communication hook of an attached model: buckets in, means out, while the backward pass goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.strategy import FP32
from paceline.training.auto import Auto
from paceline.training.bucketing import Groups
from paceline.training.collectives import WireError
from paceline.training.exchange_group import ExchangeSetup, Gradients, exchange_group, is_finite, room, share
from paceline.training.exchange_thread import Future, promise, result
from paceline.training.exchanges import begin_allreduce
from paceline.training.hooks.base import Attached, finish_queued
from paceline.training.hooks.state import State, check_same_way, check_tensors, own_state, well_formed
from paceline.training.liveness import LostRank
from paceline.training.noise_scale import NoiseMeter
from paceline.training.tensor_layout import Layout, Tensor
from paceline.training.ways import Way, make_plan

_log = logging.getLogger("paceline")


class Hook(Attached):
    """Groups of buckets through a codec and an exchange, or bucket for bucket where nothing is compressed."""

    def __init__(
        self,
        model: DistributedDataParallel,
        way: Way,
        *,
        seed: int,
        check_every: int,
        timeout_s: float,
        scaler: Any = None,
        auto: Auto | None = None,
        noise_scale: bool = False,
    ) -> None:
        super().__init__(model, way, seed=seed, check_every=check_every, timeout_s=timeout_s, scaler=scaler)
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._flat = torch.empty(0)
        self._groups = Groups(model, self._named, fused=True)
        self._owed: dict[str, torch.Tensor] = {}  # residuals that a way without feedback has yet to send
        self.noise = NoiseMeter(self.wire) if noise_scale else None
        self._auto = auto
        self._adopts = auto is not None
        self._plan: ExchangeSetup | None = None
        self.use(way)

    def use(self, way: Way) -> None:
        """Send gradients this way from the next backward pass on; on every rank alike. Residuals go along, momentum does not.

        Raises:
            UserError: an exchange that does not fit the number of ranks.
        """
        before = self._plan.feedback if self._plan else None
        self.way = way
        self.dense = dict(way.compression.dense(self.tensors))
        self._plan = make_plan(way, self.wire, self.sample)
        self._layouts.clear()
        if before is not None:
            self._owe(before.residual.state())

    def _owe(self, residual: Mapping[str, torch.Tensor]) -> None:
        """Whatever sends the next gradients sends these too."""
        if self._plan is not None and self._plan.feedback is not None:
            self._plan.feedback.residual.load(residual)
        else:
            self._owed = dict(residual)

    def __str__(self) -> str:
        kept = "".join(f"\n  {name}: {reason}" for name, reason in self.dense.items())
        rule = self.way.compression.rule or "every tensor alike"
        return f"{self.way.compression.title} over {self.way.exchange}; {rule}{kept}"

    def submit(self, bucket: Any) -> Future:
        """Exchange one ``GradBucket`` in the background; the future holds its mean over the workers."""
        buffer, last = bucket.buffer(), bucket.is_last()
        future = promise(buffer)
        finish_queued(buffer)
        self.meter.bucket_ready()
        if self.noise is not None:
            self.noise.local(buffer)
        if last and self._auto is not None:
            self._auto.backward_ended()
        if self._plan is None:
            parts = self._groups.of(bucket)
            begun = self._begin(parts, buffer) if self.way.compression.format == FP32 else None
            self._work.submit(lambda: self._run(parts, last, buffer, begun), [(buffer, future)])
        else:
            for group in self._groups.add(bucket, future):
                self._work.submit(partial(self._run, group.parts, group.last), group.finished)
        return future.then(result)

    def exchange_now(self, gradient: torch.Tensor) -> None:
        """Replace ``gradient`` (all trained elements, flat) by its mean over the workers; for measuring."""
        done = promise(gradient)
        parts = dict(zip((t.name for t in self.tensors), gradient.split([t.elements for t in self.tensors]), strict=True))
        self._work.submit(lambda: self._run(parts, False, gradient), [(gradient, done)])
        done.wait()

    def state_dict(self) -> State:
        """What resuming needs of this rank: position and seed of the draws, residuals, momentum. Keep every rank's."""
        feedback = self._plan.feedback if self._plan else None
        owed = {name: values.cpu().clone() for name, values in self._owed.items()}
        way = self.way if self._auto is None else self._auto.ways[0]  # what is on trial may not stay
        return {
            "step": self.step,
            "seed": self.seed,
            "nonfinite_steps": self.meter.nonfinite_steps,
            "compression": way.compression.name,
            "way": way.settings(),
            "measuring": self._auto is not None,
            "workers": self.wire.world_size,
            "rank": self.wire.rank,
            "factor": self._factor,
            "feedback": feedback.state() if feedback else {"residual": owed, "velocity": {}},
        }

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Go on where ``state_dict`` was taken.

        Args:
            state: this rank's, or those of all ranks of the run before. From as many ranks as now the run goes on bit for
                bit; from another number the residuals' sum over the workers is kept. ``allreduce`` goes on as DDP itself
                does: the engine adds in an order that its first buckets change by a rounding.

        Under ``auto`` the way is the state's, and nothing is measured again if it was chosen by then; all ranks must load, as
        nodes may need groups.

        Raises:
            UserError: not a state, one of another compression, exchange, option or tensor, of other ranks, or not of all.
        """
        states = well_formed(state)
        first, way = states[0], self.way
        if self._adopts and first["compression"] != "powersgd":
            way = Way.of(first["way"])
        check_same_way(first, way)
        own = own_state(states, way, self.wire.world_size, self.wire.rank)
        check_tensors(own, self.tensors)
        if way.settings() != self.way.settings():
            self.use(way)
        if self._auto is not None:
            self._auto = Auto(self._auto.ways) if own["measuring"] else None
        self._owed = {}
        self.step, self.seed, self._factor = own["step"], own["seed"], own["factor"]
        self.meter.nonfinite_steps = own["nonfinite_steps"]
        feedback = self._plan.feedback if self._plan else None
        if feedback is None:
            self._owe(own["feedback"]["residual"])
            return
        feedback.load(own["feedback"])
        if self._plan is not None and self._plan.inner is not None and own["workers"] != self.wire.world_size:
            device = self._plan.device(self.wire.device)
            for members in self._groups.members:
                layout = self._layout(members)
                feedback.keep(layout, *share(self._plan, layout), self._plan.inner.world_size, device)

    def _begin(self, parts: Mapping[str, torch.Tensor], whole: torch.Tensor) -> Callable[[], None]:
        """Start a bucket's all-reduce. On the caller's thread where there is no codec: several are then under way, as in DDP.

        All ranks begin them in DDP's order, and none while the exchange thread has collectives of its own, which come after
        a step's last bucket and before its future. An error is for the exchange thread, which names the lost rank.
        """
        try:
            self._pay(parts)
            return begin_allreduce(whole, self.way.compression.format, self.wire)
        except WireError as error:
            return partial(_fail, error)

    def _run(
        self,
        parts: Mapping[str, torch.Tensor],
        last: bool,
        whole: torch.Tensor | None = None,
        begun: Callable[[], None] | None = None,
    ) -> None:
        """Exchange gradients, flat and by name, and end the step; ``whole`` is the buffer that they fill."""
        if self._plan is not None:
            self._pay(parts)
            self._exchange(self._plan, parts)
        elif whole is not None:
            (begun or self._begin(parts, whole))()
            if not self._adopts:  # under auto a dense run pays no pass over memory for a count
                with self.meter.span("scatter", "codec"):
                    self._nonfinite |= not is_finite(whole)
            if self._auto is not None:
                self._auto.seen(whole)
        if self.noise is not None:
            for part in (whole,) if whole is not None else parts.values():
                self.noise.mean(part)
        finish_queued(next(iter(parts.values())))
        if last:
            self._end_step()

    def _exchange(self, setup: ExchangeSetup, parts: Mapping[str, torch.Tensor]) -> None:
        self._follow_scaler()
        layout = self._layout([t for t in self.tensors if t.name in parts])
        wanted, device = room(setup, layout), setup.device(next(iter(parts.values())).device)
        if self._flat.numel() < wanted or self._flat.device != device:
            self._flat = torch.empty(wanted, device=device)
        gradients = Gradients(layout=layout, parts=parts, workspace=self._flat[:wanted], seed=self.seed, step=self.step)
        self._nonfinite |= exchange_group(setup, gradients, self._nonfinite)

    def _layout(self, tensors: Sequence[Tensor]) -> Layout:
        names = tuple(sorted(t.name for t in tensors))
        if names not in self._layouts:
            self._layouts[names] = Layout(tensors, self.dense)
        return self._layouts[names]

    def _pay(self, parts: Mapping[str, torch.Tensor]) -> None:
        if self._owed:
            self._follow_scaler()
        for name in self._owed.keys() & parts.keys():
            parts[name].add_(self._owed.pop(name).to(parts[name]))

    def _rescale(self, ratio: float) -> None:
        if self._plan is not None and self._plan.feedback is not None:
            self._plan.feedback.residual.scale(ratio)
            self._plan.feedback.velocity.scale(ratio)
        for values in self._owed.values():
            values.mul_(ratio)

    def _end_step(self) -> None:
        if self.noise is not None:
            self.noise.end_step(not self._nonfinite, self._factor)
        super()._end_step()
        if self._auto is not None and self._auto.decided(self):
            self._auto = None


def _fail(error: Exception) -> None:
    raise error


def paceline_hook(state, bucket):  # type: ignore[no-untyped-def]
    """What DDP calls; it reads annotations of the signature and accepts none that are strings."""
    return state.submit(bucket)


__all__ = ["Hook", "LostRank", "paceline_hook"]
