"""Communication hook of an attached model, which replaces buckets by their means during the backward pass."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.strategy import GradientExchange
from paceline.training.attach.attach_options import AttachOptions
from paceline.training.attach.auto import Auto
from paceline.training.attach.bucketing import Groups
from paceline.training.attach.exchange_thread import Background, Future, promise
from paceline.training.attach.hooks.base import HookBase, StepEnd, step_end
from paceline.training.attach.hooks.state import (
    HookState,
    check_same_exchange,
    check_tensors,
    exchange_of,
    is_low_rank,
    own_state,
    refuse_first_rank_only,
    settings,
    well_formed,
    with_every_residual,
)
from paceline.training.attach.noise_scale import NoiseMeter
from paceline.training.exchanges import begin_allreduce
from paceline.training.exchanges.exchange_group import ExchangeSetup, Gradients, exchange_group, room, share
from paceline.training.exchanges.exchange_setup import make_setup, setup_at
from paceline.training.exchanges.gradients.gradient_statistics import is_finite
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec

_log = logging.getLogger("paceline")


class Hook(HookBase):
    """Hook that exchanges groups of gradients through a codec, or single buckets without compression."""

    def __init__(
        self,
        model: DistributedDataParallel,
        gradient_exchange: GradientExchange,
        tensors: Mapping[int, TensorSpec],
        options: AttachOptions,
        candidates: Sequence[GradientExchange] = (),
    ) -> None:
        super().__init__(model, gradient_exchange, tensors, options)
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._flat = torch.empty(0, dtype=torch.float32)
        self._groups = Groups(model, self._named, fused=True)
        self._starts = Background(self, "paceline-start")
        self._owed: dict[str, torch.Tensor] = {}  # residuals that an exchange without feedback still has to send
        self._paid: dict[str, torch.Tensor] = {}  # those that it has sent in this step
        self.noise = NoiseMeter(self.wire) if options.noise_scale else None
        self._auto = self._chooser(candidates) if candidates else None
        self._adopts = self._auto is not None
        self._setup: ExchangeSetup | None = None
        self.use(gradient_exchange)

    def _chooser(self, candidates: Sequence[GradientExchange]) -> Auto:
        return Auto(candidates, self.wire, sum(t.elements for t in self.tensors))

    def use(self, gradient_exchange: GradientExchange) -> None:
        """Use this exchange from the next backward pass on; all ranks must call it. Residuals are kept and momentum is dropped.

        Raises:
            UserError: an exchange that does not fit the number of ranks.
        """
        self._adopt(gradient_exchange, make_setup(gradient_exchange, self.wire, self.sample))

    def _adopt(self, gradient_exchange: GradientExchange, setup: ExchangeSetup | None) -> None:
        """Use an exchange with its setup, without communication."""
        before = self._setup.feedback if self._setup else None
        self.gradient_exchange, self._setup = gradient_exchange, setup
        self.dense = dict(gradient_exchange.description.dense(self.tensors))
        self._layouts.clear()
        if before is not None:
            self._owe(before.residual.state())

    def _owe(self, residual: Mapping[str, torch.Tensor]) -> None:
        """Add these residuals to the next gradients, in any exchange."""
        if self._setup is not None and self._setup.feedback is not None:
            self._setup.feedback.residual.load(residual)
        else:
            self._owed = dict(residual)

    def __str__(self) -> str:
        kept = "".join(f"\n  {name}: {reason}" for name, reason in self.dense.items())
        described = self.gradient_exchange.description
        return f"{described.title} over {self.gradient_exchange.exchange}; {described.rule or 'every tensor equally'}{kept}"

    def submit(self, bucket: Any) -> Future:
        """Exchange one ``GradBucket`` in the background. The future returns its mean over the workers."""
        self._begin_step(bucket)
        buffer, last = bucket.buffer(), bucket.is_last()
        future = promise(buffer)
        self.meter.bucket_ready()
        if self.noise is not None:
            self.noise.local(buffer)
        end = step_end(last, buffer.device)
        if self._setup is None:
            # Only residuals and tensors that may be unused need names, which take time on the thread of the backward pass.
            parts = self._groups.of(bucket) if self._owed or self._usage is not None else {}
            used = self._take_used(parts)
            run = partial(self._run, parts, used, end, buffer)
            if not self._work.on_stream:  # there no thread waits, so one is enough
                begun: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
                self._starts.submit(lambda: begun.put(self._begin(parts, used, buffer)))
                run = partial(run, begun.get)
            self._work.submit(run, [(buffer, future)], last)
        else:
            for group in self._groups.add(bucket, future):
                used = self._take_used(group.parts)
                run = partial(self._run, group.parts, used, end if group.last else None)
                self._work.submit(run, group.finished, group.last)
        return self._to_ddp(future, last)

    def exchange_now(self, gradient: torch.Tensor) -> None:
        """Replace ``gradient`` (all exchanged elements, flat) by its mean over the workers, to measure an exchange."""
        done = promise(gradient)
        parts = dict(zip((t.name for t in self.tensors), gradient.split([t.elements for t in self.tensors]), strict=True))
        self._work.submit(lambda: self._run(parts, set(parts), None, gradient), [(gradient, done)])
        done.wait()
        self._encoded = False
        if self._setup is not None and self._setup.feedback is not None:
            self._setup.feedback.end_step(False)
        self._work.check()

    def state_dict(self, *, copied: bool = True) -> HookState:
        """Return the state of this rank for resumption: position and seed of the draws, residuals, momentum. Save the states of
        all ranks.

        The keys are the same in every step, so that ``torch.distributed.checkpoint`` can load into the state of a new hook.

        Args:
            copied: False returns the tensors themselves, which the next step changes, for callers that copy them.
        """
        refuse_first_rank_only(self.wire.world_size)
        feedback = self._setup.feedback if self._setup else None
        owed = {name: values.cpu().clone() if copied else values for name, values in self._owed.items()}
        # A candidate on trial may not stay.
        exchange = self.gradient_exchange if self._auto is None else self._auto.exchanges[0]
        kept = feedback.state(copied) if feedback else {"residual": owed, "velocity": {}}
        return {
            "step": self.step,
            "seed": self.seed,
            "nonfinite_steps": self.meter.nonfinite_steps,
            "compression": exchange.compression.name,
            "gradient_exchange": settings(exchange),
            "measuring": self._auto is not None,
            "workers": self.wire.world_size,
            "rank": self.wire.rank,
            "factor": self._factor,
            "feedback": with_every_residual(kept, exchange, self.tensors),
        }

    def load_state_dict(self, state: HookState | Sequence[HookState]) -> None:
        """Continue from a state of ``state_dict``.

        Under ``auto`` the exchange is that of the state; if it was already chosen, nothing is measured again. All ranks must
        load, because nodes may need groups.

        Args:
            state: the state of this rank, or those of all ranks of the earlier run. With the same number of ranks the run
                continues bit for bit. With another number each gets the mean of the residuals, which preserves their effect.
                ``allreduce`` continues like DDP itself: first buckets change the engine's order of addition, and so a rounding.

        Raises:
            UserError: not a state, or the state has another compression, exchange, option, tensor or rank, or lacks ranks.
        """
        states = well_formed(state)
        first, exchange = states[0], self.gradient_exchange
        if self._adopts and not is_low_rank(first["compression"]):
            exchange = exchange_of(first)
        check_same_exchange(first, exchange)
        own = own_state(states, exchange, self.wire.world_size, self.wire.rank)
        check_tensors(own, exchange, self.tensors)
        if settings(exchange) != settings(self.gradient_exchange):
            self.use(exchange)
        if self._auto is not None:
            self._auto = self._chooser(self._auto.exchanges) if own["measuring"] else None
        self._owed, self._paid = {}, {}
        self.step, self.seed, self._factor = own["step"], own["seed"], own["factor"]
        self.meter.nonfinite_steps = own["nonfinite_steps"]
        feedback = self._setup.feedback if self._setup else None
        if feedback is None:
            self._owe(own["feedback"]["residual"])
            return
        feedback.load(own["feedback"])
        if self._setup is not None and self._setup.inner is not None and own["workers"] != self.wire.world_size:
            device = self._setup.device(self.wire.device)
            for members in self._groups.members:
                layout = self._layout(members)
                feedback.keep(layout, *share(self._setup, layout), self._setup.inner.world_size, device)

    def _begin(self, parts: Mapping[str, torch.Tensor], used: set[str], whole: torch.Tensor) -> Callable[[], None]:
        """Start the all-reduce of a bucket. Several are in flight, as in DDP.

        A separate thread starts them, so that scaling or rounding a bucket delays neither the backward pass nor the bucket
        before. All ranks start them in DDP's order, and never during collectives of the exchange thread: those run after
        the last bucket of a step and before its future. The exchange thread handles errors, since it names the lost rank.
        """
        try:
            self._pay(parts, self._unused(parts, used) if self._owed else set())
            return begin_allreduce(whole, self.gradient_exchange.description.format, self.wire)
        except Exception as error:
            return partial(_fail, error)

    def _run(
        self,
        parts: Mapping[str, torch.Tensor],
        used: set[str],
        end: StepEnd | None,
        whole: torch.Tensor | None = None,
        begun: Callable[[], Callable[[], None]] | None = None,
    ) -> None:
        """Exchange flat gradients by name, and end the step.

        Args:
            whole: the buffer that contains them; ``begun``: returns the end of its all-reduce, once that has begun.
        """
        if self._setup is not None:
            self._exchange(self._setup, parts, used, last=end is not None)
        elif whole is not None:
            finish = begun() if begun is not None else self._begin(parts, used, whole)
            finish()
            # A dense run under auto needs no pass over memory for a count, unless residuals or averages are at stake.
            if not self._adopts or self._owed or self._paid or self.noise is not None:
                with self.meter.span("scatter", "codec"):
                    self._nonfinite |= not is_finite(whole)
            if self._auto is not None:
                self._auto.seen(whole)
        if self.noise is not None:
            for part in (whole,) if whole is not None else parts.values():
                self.noise.mean(part)
        if end is not None:
            self._end_step(end)

    def _exchange(self, setup: ExchangeSetup, parts: Mapping[str, torch.Tensor], used: set[str], last: bool) -> None:
        """Exchange gradients. Tensors that no rank has used keep gradients and residuals, because DDP discards their means."""
        setup = setup_at(setup, self.gradient_exchange, self.step)
        if setup.feedback is not None:
            setup.feedback.holds_back = not last or any(part.dtype == torch.float16 for part in parts.values())
        self._follow_scaler()
        unused = self._unused(parts, used) if setup.feedback is not None or self._owed else set()
        self._pay(parts, unused)
        layout = self._layout([t for t in self.tensors if t.name in parts])
        here = next(iter(parts.values())).device
        wanted, device = room(setup, layout), setup.device(here)
        if self._flat.numel() < wanted or self._flat.device != device:
            self._flat = torch.empty(wanted, dtype=torch.float32, device=device)
        discarded = {name: torch.zeros(parts[name].numel(), dtype=torch.float32, device=here) for name in unused}
        gradients = Gradients(
            layout=layout,
            parts={**parts, **discarded},
            workspace=self._flat[:wanted],
            seed=self.seed,
            step=self.step,
        )
        self._nonfinite |= exchange_group(setup, gradients, self._nonfinite)
        self._encoded |= not self._nonfinite and layout.compressed > 0 and self.gradient_exchange.description.lossy
        if setup.feedback is not None:
            self._clipped |= setup.feedback.clipped
            setup.feedback.clipped = False
        if setup.feedback is not None and discarded:
            ranks = setup.workers // setup.outer.world_size  # ranks that share the residual of an element
            sums = {name: mean * ranks for name, mean in discarded.items()}
            setup.feedback.take_back(layout, *share(setup, layout), sums, device)

    def _layout(self, tensors: Sequence[TensorSpec]) -> Layout:
        names = tuple(sorted(t.name for t in tensors))
        if names not in self._layouts:
            self._layouts[names] = Layout(tensors, self.dense, self.gradient_exchange.description.format.block)
        return self._layouts[names]

    def _pay(self, parts: Mapping[str, torch.Tensor], unused: set[str]) -> None:
        if self._owed:
            self._follow_scaler()
        for name in (self._owed.keys() & parts.keys()) - unused:
            self._paid[name] = self._owed.pop(name)
            parts[name].add_(self._paid[name].to(parts[name]))

    def _keep_residuals(self, keep: bool) -> None:
        if self._setup is not None and self._setup.feedback is not None:
            self._setup.feedback.end_step(keep)
        if not keep:
            self._owed |= self._paid
        self._paid = {}

    def _rescale(self, ratio: float) -> None:
        if self._setup is not None and self._setup.feedback is not None:
            self._setup.feedback.residual.scale(ratio)
            self._setup.feedback.velocity.scale(ratio)
        for values in self._owed.values():
            values.mul_(ratio)

    def _end_step(self, end: StepEnd) -> None:
        if self.noise is not None:
            self._follow_scaler()
            self.noise.end_step(not self._nonfinite, self._factor)
        super()._end_step(end)
        decision = self._auto.end_step(end.backward_end) if self._auto is not None else None
        if self._auto is None or decision is None:
            return
        if decision.exchange != self.gradient_exchange:
            self._adopt(decision.exchange, self._auto.setup(decision.exchange, self.sample))
        if decision.reason:
            self._auto = None
            if self.wire.rank == 0:
                _log.warning("auto: %s", decision.reason)


def _fail(error: Exception) -> None:
    raise error


def paceline_hook(state, bucket):  # type: ignore[no-untyped-def]
    """Exchange a bucket when DDP calls. DDP reads the annotations of its signature and rejects strings."""
    return state.submit(bucket)
