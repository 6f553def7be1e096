"""``attach``: a compression on a stock DistributedDataParallel model, as its communication hook."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError, unknown
from paceline.strategy import BUCKET_BYTES, COMPRESSIONS, EXCHANGES, FIRST_BUCKET_BYTES, Compression, Strategy
from paceline.training.exchanges import allreduce, push_pull
from paceline.training.meter import Meter
from paceline.training.streams import F32, Bf16Stream
from paceline.training.terngrad import Routed, Tensor, TernGrad, dense_stream
from paceline.training.wire import Wire

_log = logging.getLogger("paceline")

CLIP = 2.5  # standard deviations; the TernGrad paper's value for every network, data set and optimizer


class Hook:
    """The state behind an attached model: what is sent, what stays dense and why, and where the draws stand.

    Attributes:
        step: backward passes exchanged so far; the draws depend on it.
        tensors: every trained tensor, in ``named_parameters()`` order.
        dense: names of the tensors sent dense, each with the reason. ``print(hook)`` shows the rule.
        meter: bytes, events and non-finite steps.
    """

    def __init__(
        self, model: DistributedDataParallel, compression: Compression, exchange: str, seed: int, clip: float | None
    ) -> None:
        self.compression, self.exchange, self.seed = compression, exchange, seed
        self.step = 0
        self._tensors: dict[int, Tensor] = {}
        offset = 0
        for name, p in model.module.named_parameters():
            if p.requires_grad:
                self._tensors[id(p)] = Tensor(name, tuple(p.shape), offset)
                offset += p.numel()
        self.tensors = list(self._tensors.values())
        self.dense = dict(compression.dense(self.tensors))
        self.terngrad = TernGrad(clip, self.dense) if compression.shares_scale else None
        self.meter = Meter(dist.get_rank(model.process_group))
        # A group of its own: the script, DDP or a second model may use theirs while buckets are exchanged, in no fixed order.
        ranks = dist.get_process_group_ranks(model.process_group)
        group = dist.new_group(ranks, use_local_synchronization=True)
        self._wire = Wire(group, next(model.module.parameters()).device, self.meter)
        self._nonfinite = False  # in this step, on any rank
        # One thread: buckets keep their order, which every rank shares, and the backward pass goes on meanwhile.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paceline-exchange")

    def __str__(self) -> str:
        kept = "".join(f"\n  {name}: {reason}" for name, reason in self.dense.items())
        return f"{self.compression.title} over {self.exchange}; {self.compression.rule or 'every tensor alike'}{kept}"

    def submit(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Exchange one ``GradBucket`` in the background; the future holds its mean over the workers."""
        buffer, last = bucket.buffer(), bucket.is_last()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
        _finish_queued(buffer)
        tensors = [self._tensors[id(p)] for p in bucket.parameters()]
        self.meter.bucket_ready()

        def work() -> None:
            try:
                self._exchange(buffer, tensors)
                _finish_queued(buffer)
                if last:
                    self._end_step()
                future.set_result(buffer)
            except Exception as error:  # DDP re-raises it where the backward pass waits, but loses its text
                _log.error("rank %d: the exchange failed: %s: %s", self.meter.rank, type(error).__name__, error)
                future.set_exception(error)  # type: ignore[arg-type]

        self._thread.submit(work)
        return future

    def state_dict(self) -> dict[str, int]:
        """What resuming needs: the draws' seed and position, and the count of non-finite steps."""
        return {"step": self.step, "seed": self.seed, "nonfinite_steps": self.meter.nonfinite_steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.step, self.seed = state["step"], state["seed"]
        self.meter.nonfinite_steps = state["nonfinite_steps"]

    def _end_step(self) -> None:
        self.step += 1
        if self._nonfinite and self.meter.nonfinite_steps == 0 and self.meter.rank == 0:
            _log.warning("step %d: a gradient is NaN or infinite; it goes dense, as will others like it", self.step - 1)
        self.meter.nonfinite_steps += self._nonfinite
        self._nonfinite = False

    def exchange_now(self, gradient: torch.Tensor) -> None:
        """Replace ``gradient`` (all trained elements, flat) by its mean over the workers; for measuring."""
        self._thread.submit(self._exchange, gradient, self.tensors).result()

    def _exchange(self, buffer: torch.Tensor, tensors: Sequence[Tensor]) -> None:
        # The codec works on host memory; for a CPU model in fp32 this is the gradient itself, without a copy.
        values: F32 = buffer.detach().to("cpu", torch.float32).numpy()
        routed: list[Routed] = []
        if self.exchange == "allreduce":
            allreduce(values, self.compression.format, self._wire)
        else:
            routed = self._route(values, tensors)
            push_pull([r.stream for r in routed], self.exchange, self._wire)
        with self.meter.span("scatter", "codec"):
            for r in routed:
                r.scatter()
            if self.terngrad is not None:
                self.terngrad.after_mean()
            # After the mean every rank holds the same bits, so every rank counts alike.
            self._nonfinite |= not np.isfinite(values).all()
            if buffer.data_ptr() != values.ctypes.data:
                buffer.copy_(torch.from_numpy(values))

    def _route(self, values: F32, tensors: Sequence[Tensor]) -> list[Routed]:
        if self.terngrad is None:
            narrow = self.compression.format.element_bits == 16
            return [Routed(Bf16Stream(values), (values,)) if narrow else dense_stream((values,))]
        routed = None
        if not self._nonfinite:
            cuts = np.cumsum([int(np.prod(t.shape)) for t in tensors])[:-1]
            parts = dict(zip(tensors, np.split(values, cuts), strict=True))
            routed = self.terngrad.streams(parts, self._wire, self.seed, self.step)
        if routed is None:
            self._nonfinite = True
            return [dense_stream((values,))]
        return routed


def _finish_queued(buffer: torch.Tensor) -> None:
    """Wait for the kernels that this thread has queued: the backward pass and the exchange have streams of their own."""
    if buffer.is_cuda:
        torch.cuda.current_stream(buffer.device).synchronize()


def attach(
    model: DistributedDataParallel,
    compression: str = "terngrad",
    *,
    exchange: str = "",
    seed: int = 0,
    clip: float | None = CLIP,
    min_elements: int | None = None,
    dense: Sequence[str] = (),
) -> Hook:
    """Compress the gradients of a stock DDP model from its next backward pass on. Nothing else in the script changes.

    A bucket with a NaN or an infinity on any rank goes dense, and so do the later buckets of that step; earlier ones have
    left by then. The codec computes in fp32.

    Args:
        compression: ``dense``, ``bf16`` or ``terngrad``.
        exchange: ``allreduce``, ``sharded`` or ``parameter_server``; empty takes the compression's default.
        seed: of the stochastic rounding; the same on every rank.
        clip: clip each tensor at this many standard deviations before it is ternarised; None does not clip.
        min_elements: smaller tensors stay dense (default 1024).
        dense: patterns of further tensor names to keep dense, such as ``*.embedding.*``.

    Returns:
        The hook: ``print`` it to see what stays dense; keep its ``state_dict()`` in your checkpoints.

    Raises:
        UserError: an unknown name, an exchange that cannot carry the compression, a model that is not wrapped in DDP, has
            a hook already or sparse gradients.
    """
    if not isinstance(model, DistributedDataParallel):
        raise UserError(
            f"attach takes a DistributedDataParallel model, got {type(model).__name__}",
            "wrap it first: model = DistributedDataParallel(model)",
        )
    if getattr(model, "_comm_hooks", None):
        raise UserError("this model has a communication hook already", "attach once, right after wrapping it")
    sparse = [name for name, module in model.module.named_modules() if getattr(module, "sparse", False)]
    if sparse:
        raise UserError(f"{', '.join(sparse)}: sparse gradients cannot be exchanged here", "build the layer with sparse=False")
    if compression not in COMPRESSIONS:
        raise unknown("compression", compression, COMPRESSIONS)
    description = COMPRESSIONS[compression]
    exchange = exchange or description.exchanges[0]
    if exchange not in EXCHANGES:
        raise unknown("exchange", exchange, EXCHANGES)
    if exchange not in description.exchanges:
        raise UserError(f"exchange {exchange!r} cannot carry {compression}", f"legal: {', '.join(description.exchanges)}")
    if description.rule is not None:
        changes: dict[str, Any] = {"names": tuple(dense)} | ({} if min_elements is None else {"min_elements": min_elements})
        description = replace(description, rule=replace(description.rule, **changes))
    hook = Hook(model, description, exchange, seed, clip)
    if description.rule is not None and len(hook.dense) == len(hook.tensors):
        _log.warning("%s compresses nothing here; %s", compression, description.rule)
    model.register_comm_hook(hook, paceline_hook)
    return hook


def wrap(model: nn.Module, strategy: Strategy) -> DistributedDataParallel:
    """A stock DDP model with the strategy's buckets."""
    first, rest = strategy.first_bucket_bytes, strategy.bucket_bytes
    if (first, rest) == (FIRST_BUCKET_BYTES, BUCKET_BYTES):
        return DistributedDataParallel(model)
    if first != rest:
        raise UserError(f"buckets of {first} and then {rest} bytes", "DDP takes its own two sizes or one size for all buckets")
    return DistributedDataParallel(model, bucket_cap_mb=rest / 2**20)


def paceline_hook(state, bucket):  # type: ignore[no-untyped-def]
    """What DDP calls; it reads annotations of the signature and accepts none that are strings."""
    return state.submit(bucket)
