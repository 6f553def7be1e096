"""What stands behind an attached model, whatever its compression: where the steps stand and what is watched in each."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.strategy import GradientExchange
from paceline.training.consistency import same_weights
from paceline.training.exchange_thread import Exchanges, Future
from paceline.training.gradient_sample import Sample
from paceline.training.meter import Meter
from paceline.training.process_groups import own_wire
from paceline.training.reducer import Usage, alike_on_all_ranks, unused_by_all
from paceline.training.tensor_layout import TensorSpec


class StepEnd(NamedTuple):
    """What the exchange thread must know of a backward pass that has handed over its last bucket.

    Attributes:
        backward_end_s: when that was, on this process's clock.
        joined: whether this rank has no data of its own, see ``outside_backward``.
    """

    backward_end_s: float
    joined: bool


class HookBase(ABC):
    """A hook's groups and threads are this process's: a copied model shares it and a saved one has none.

    Args:
        tensors: those that are exchanged, in ``named_parameters()`` order, by the ``id`` of the parameter.

    Attributes:
        gradient_exchange: compression and exchange in use.
        step: backward passes exchanged so far; the draws depend on it.
        tensors: every exchanged tensor, in ``named_parameters()`` order.
        dense: names of the tensors sent dense, each with the reason. ``print(hook)`` shows the rule.
        meter: bytes, events and non-finite steps.
        sample: stages of one tensor's gradient, on request.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        gradient_exchange: GradientExchange,
        tensors: Mapping[int, TensorSpec],
        *,
        seed: int,
        check_every: int,
        timeout_s: float,
        scaler: Any = None,
    ) -> None:
        self.gradient_exchange, self.seed, self.step = gradient_exchange, seed, 0
        self._named, self.tensors = tensors, list(tensors.values())
        self.dense = dict(gradient_exchange.description.dense(self.tensors))
        self.meter, self.sample = Meter(dist.get_rank(model.process_group)), Sample()
        ranks = dist.get_process_group_ranks(model.process_group)
        device = next(model.module.parameters()).device
        self.wire = own_wire(model.process_group, ranks, device, self.meter, timeout_s)
        self._weights = alike_on_all_ranks(model)
        self._usage = Usage(model, tensors) if model.find_unused_parameters and not model.static_graph else None
        self._check_every, self._scaler, self._factor = check_every, scaler, 1.0
        self._nonfinite = False  # in this step, on any rank
        self._shadowed: list[Future] = []  # buckets of a step that this rank takes part in without data
        # One thread: groups keep their order, and the backward pass goes on meanwhile.
        self._work = Exchanges(self.wire)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def _to_ddp(self, future: Future, last: bool) -> Future:
        """The future that DDP waits for. At the end of the step, what went wrong is raised with its type."""
        if not outside_backward():
            if last:
                self._work.raise_after_backward()
            return future
        self._shadowed.append(future)
        if last:
            for waiting in self._shadowed:
                waiting.wait()
            self._shadowed.clear()
            self._work.check()
        return future

    @abstractmethod
    def _rescale(self, ratio: float) -> None:
        """Multiply what is kept of earlier gradients."""

    def _follow_scaler(self) -> None:
        """Residuals are of scaled gradients: when the gradient scaler changes its factor they change with it."""
        factor = self._factor if self._scaler is None else float(self._scaler.get_scale())
        if factor != self._factor:
            self._rescale(factor / self._factor)
            self._factor = factor

    def _take_used(self, parts: Mapping[str, torch.Tensor]) -> set[str]:
        """Those that this rank has used in the step, for ``_unused``; on the thread of the backward pass."""
        return set() if self._usage is None else self._usage.take(parts)

    def _unused(self, parts: Mapping[str, torch.Tensor], used: set[str]) -> set[str]:
        """Those that no rank has used: DDP discards what is delivered of them. Exchanges flags where there can be any."""
        return set() if self._usage is None else unused_by_all(self.wire, sorted(parts), used)

    def _end_step(self, end: StepEnd) -> None:
        self.step += 1
        self.meter.count_nonfinite(self._nonfinite, self.step - 1)
        self._nonfinite = False
        if self._check_every and self.step % self._check_every == 0:
            same_weights(self.wire.group, self._weights, self.wire.device, end.joined)


def step_end(last: bool) -> StepEnd | None:
    """Of the bucket that DDP hands over now; None where others of the step follow."""
    return StepEnd(time.perf_counter(), outside_backward()) if last else None


def outside_backward() -> bool:
    """Whether DDP calls the hook for a rank that has run out of data under ``model.join()``: it exchanges zeros."""
    return torch._C._current_graph_task_id() == -1


def finish_queued(buffer: torch.Tensor) -> None:
    """Wait for the kernels that this thread has queued: the backward pass and the exchange have streams of their own."""
    if buffer.is_cuda:
        torch.cuda.current_stream(buffer.device).synchronize()
