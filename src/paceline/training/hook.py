"""The communication hook of an attached model: buckets in, means out, while the backward pass goes on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.strategy import FUSE_BYTES
from paceline.training.auto import Auto
from paceline.training.background import Exchanges, Future, promise, result
from paceline.training.exchanges import allreduce
from paceline.training.group import Plan, exchange_group, is_finite, room
from paceline.training.guards import same_weights
from paceline.training.liveness import LostRank
from paceline.training.meter import Meter
from paceline.training.sample import Sample
from paceline.training.states import State, check_same_way, check_tensors, own_state, well_formed
from paceline.training.tensors import Layout, Tensor, trained
from paceline.training.ways import Way, make_plan
from paceline.training.wire import Wire, own_group

_log = logging.getLogger("paceline")

Bucket = tuple[torch.Tensor, Sequence[Tensor], Future]
"""Its buffer, its tensors, and the future that DDP waits for."""


class Hook:
    """The state behind an attached model: what is sent, what stays dense and why, and where the draws stand.

    Attributes:
        way: compression and exchange in use.
        step: backward passes exchanged so far; the draws depend on it.
        tensors: every trained tensor, in ``named_parameters()`` order.
        dense: names of the tensors sent dense, each with the reason. ``print(hook)`` shows the rule.
        meter: bytes, events and non-finite steps.
        sample: stages of one tensor's gradient, on request.
    """

    def __init__(
        self, model: DistributedDataParallel, way: Way, *, seed: int, check_every: int, timeout_s: float,
        scaler: Any = None, auto: Auto | None = None,
    ) -> None:  # fmt: skip
        self.seed, self.step = seed, 0
        self._tensors = trained(model.module)
        self.tensors = list(self._tensors.values())
        self.meter = Meter(dist.get_rank(model.process_group))
        self.sample = Sample()
        # A group of its own: the script, DDP or a second model may use theirs while buckets are exchanged, in no fixed order.
        ranks = dist.get_process_group_ranks(model.process_group)
        group = own_group(model.process_group, ranks, timeout_s)
        self.wire = Wire(group, next(model.module.parameters()).device, self.meter, timeout_s)
        self._weights = [p for p in model.module.parameters() if p.requires_grad]
        self._check_every, self._scaler, self._factor = check_every, scaler, 1.0
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._flat = torch.empty(0)
        self._pending: list[Bucket] = []
        self._nonfinite = False  # in this step, on any rank
        self._auto = auto
        self._adopts = auto is not None
        self.use(way)
        # One thread: groups keep their order, and the backward pass goes on meanwhile.
        self._work = Exchanges(group)

    def use(self, way: Way) -> None:
        """Send gradients this way from the next backward pass on; on every rank alike. Residuals begin anew.

        Raises:
            UserError: an exchange that does not fit the number of ranks.
        """
        self.way = way
        self.dense = dict(way.compression.dense(self.tensors))
        self._plan: Plan | None = make_plan(way, self.wire, self.sample)
        self._layouts.clear()

    def __str__(self) -> str:
        kept = "".join(f"\n  {name}: {reason}" for name, reason in self.dense.items())
        rule = self.way.compression.rule or "every tensor alike"
        return f"{self.way.compression.title} over {self.way.exchange}; {rule}{kept}"

    def submit(self, bucket: Any) -> Future:
        """Exchange one ``GradBucket`` in the background; the future holds its mean over the workers.

        Buckets are fused until they hold at least 4 MB: below that an exchange costs its latency (Wang et al. 2023, Cupcake).
        """
        buffer, last = bucket.buffer(), bucket.is_last()
        future = promise(buffer)
        _finish_queued(buffer)
        self.meter.bucket_ready()
        if last and self._auto is not None:
            self._auto.backward_ended()
        self._pending.append((buffer, [self._tensors[id(p)] for p in bucket.parameters()], future))
        if last or self._plan is None or 4 * sum(b.numel() for b, _, _ in self._pending) >= FUSE_BYTES:
            group, self._pending = self._pending, []
            self._submit(group, last)
        return future.then(result)

    def exchange_now(self, gradient: torch.Tensor) -> None:
        """Replace ``gradient`` (all trained elements, flat) by its mean over the workers; for measuring."""
        done = promise(gradient)
        self._submit([(gradient, self.tensors, done)], False)
        done.wait()

    def _submit(self, group: list[Bucket], last: bool) -> None:
        self._work.submit(lambda: self._run(group, last), [(buffer, future) for buffer, _, future in group])

    def state_dict(self) -> State:
        """What resuming needs of this rank: position and seed of the draws, residuals, momentum. Keep every rank's."""
        feedback = self._plan.feedback if self._plan else None
        return {
            "step": self.step,
            "seed": self.seed,
            "nonfinite_steps": self.meter.nonfinite_steps,
            "compression": self.way.compression.name,
            "way": self.way.settings(),
            "measuring": self._auto is not None and self._auto.measuring,
            "workers": self.wire.world_size,
            "rank": self.wire.rank,
            "factor": self._factor,
            "feedback": feedback.state() if feedback else {"residual": {}, "velocity": {}},
        }

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Go on where ``state_dict`` was taken.

        Args:
            state: this rank's, or those of all ranks of the run before. From as many ranks as now the run goes on bit for
                bit; from another number the residuals' sum over the workers is kept.

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
        self.step, self.seed, self._factor = own["step"], own["seed"], own["factor"]
        self.meter.nonfinite_steps = own["nonfinite_steps"]
        if self._plan is not None and self._plan.feedback is not None:
            self._plan.feedback.load(own["feedback"])

    def _run(self, group: list[Bucket], last: bool) -> None:
        self._exchange([(buffer, tensors) for buffer, tensors, _ in group])
        _finish_queued(group[0][0])
        if last:
            self._end_step()

    def _exchange(self, group: Sequence[tuple[torch.Tensor, Sequence[Tensor]]]) -> None:
        if self._plan is None:
            for buffer, _ in group:
                allreduce(buffer, self.way.compression.format, self.wire)
                with self.meter.span("scatter", "codec"):
                    self._nonfinite |= not is_finite(buffer)
                if self._auto is not None:
                    self._auto.seen(buffer)
            return
        parts: dict[str, torch.Tensor] = {}
        for buffer, tensors in group:
            parts |= zip((t.name for t in tensors), buffer.split([t.elements for t in tensors]), strict=True)
        self._follow_scaler()
        names = tuple(parts)
        if names not in self._layouts:
            self._layouts[names] = Layout([t for _, tensors in group for t in tensors], self.dense)
        layout = self._layouts[names]
        wanted = room(self._plan, layout)
        device = self._plan.device(group[0][0].device)
        if self._flat.numel() < wanted or self._flat.device != device:
            self._flat = torch.empty(wanted, device=device)
        self._nonfinite |= exchange_group(
            self._plan, layout, parts, self._flat[:wanted], self.seed, self.step, self._nonfinite
        )

    def _follow_scaler(self) -> None:
        """Residuals are of scaled gradients: when the gradient scaler changes its factor they change with it."""
        if self._scaler is None or self._plan is None or self._plan.feedback is None:
            return
        factor = float(self._scaler.get_scale())
        if factor != self._factor:
            self._plan.feedback.residual.scale(factor / self._factor)
            self._plan.feedback.velocity.scale(factor / self._factor)
            self._factor = factor

    def _end_step(self) -> None:
        self.step += 1
        self.meter.count_nonfinite(self._nonfinite, self.step - 1)
        self._nonfinite = False
        if self._check_every and self.step % self._check_every == 0:
            same_weights(self.wire.group, self._weights, self.wire.device)
        if self._auto is not None and self._auto.decided(self):
            self._auto = None


def _finish_queued(buffer: torch.Tensor) -> None:
    """Wait for the kernels that this thread has queued: the backward pass and the exchange have streams of their own."""
    if buffer.is_cuda:
        torch.cuda.current_stream(buffer.device).synchronize()


def paceline_hook(state, bucket):  # type: ignore[no-untyped-def]
    """What DDP calls; it reads annotations of the signature and accepts none that are strings."""
    return state.submit(bucket)


__all__ = ["Hook", "LostRank", "paceline_hook"]
