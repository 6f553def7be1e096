"""Common part of all hooks of an attached model: step counter, statistics and the exchange thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import UserError
from paceline.strategy import GradientExchange
from paceline.training.attach.attach_options import AttachOptions
from paceline.training.attach.buffer_watch import UNSEEN, BufferChecksums, BufferWatch
from paceline.training.attach.consistency import comparable, odd_ranks, of_all_ranks, refuse_unequal
from paceline.training.attach.exchange_thread import Exchanges, Future
from paceline.training.attach.reducer import LeftOut, Usage, alike_on_all_ranks, unused_by_all
from paceline.training.device_stream import ORDER_VARIABLE, Moment, has_streams, in_order_of_launches, settle_copies
from paceline.training.exchanges.gradients.gradient_sample import Sample
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec
from paceline.training.exchanges.wires.meter import Meter
from paceline.training.exchanges.wires.process_groups import own_wire


class StepEnd(NamedTuple):
    """End of a backward pass, for the exchange thread, after the last bucket.

    Attributes:
        backward_end: moment of the end on the stream of the backward pass.
        joined: True if this rank has no data; see ``outside_backward``.
    """

    backward_end: Moment
    joined: bool


class HookBase(ABC):
    """Base class of hooks. Groups and threads belong to this process: a copied model shares its hook, a saved model has none.

    Args:
        tensors: specs of the exchanged tensors, in ``named_parameters()`` order, by the ``id`` of the parameter.

    Attributes:
        gradient_exchange: compression and exchange in use.
        step: number of exchanged backward passes; the random draws depend on it.
        tensors: every exchanged tensor, in ``named_parameters()`` order.
        dense: names of the dense tensors, each with the reason. ``print(hook)`` shows the rule.
        meter: counts bytes, events and non-finite steps.
        sample: stages of one tensor's gradient, on request.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        gradient_exchange: GradientExchange,
        tensors: Mapping[int, TensorSpec],
        options: AttachOptions,
    ) -> None:
        self.gradient_exchange, self.options, self.step = gradient_exchange, options, 0
        self.seed = options.seed  # until a state is loaded
        self._named, self.tensors = tensors, list(tensors.values())
        self.dense = dict(gradient_exchange.description.dense(self.tensors))
        self.meter, self.sample = Meter(dist.get_rank(model.process_group)), Sample()
        ranks = dist.get_process_group_ranks(model.process_group)
        device = next(model.module.parameters()).device
        self.wire = own_wire(model.process_group, ranks, device, self.meter, options.timeout_s)
        self._weights = alike_on_all_ranks(model)
        self._buffers = BufferWatch(model)
        if options.check_every == 1:
            self._buffers.arm()
        self._left_out = LeftOut(model, tensors)
        self._usage = Usage(model, tensors) if model.find_unused_parameters and not model.static_graph else None
        self._factor = 1.0
        # The parameters whose gradients the hook exchanges.
        self._parameters = [p for p in model.module.parameters() if id(p) in tensors]
        self._nonfinite = False  # in this step, on any rank
        self._clipped = False  # a mean was too large for the gradients' type; the rest of it is in the residuals
        self._encoded = False  # whether something of this step has been sent compressed
        self._mixed = False  # the step that has just ended was compressed in part
        self._shadowed: list[Future] = []  # buckets of a step in which this rank has no data
        # One thread keeps the groups in order while the backward pass continues.
        self._work = Exchanges(self.wire, holds=_holds(model, device))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def _begin_step(self, bucket: Any) -> None:
        """Take over a bucket that the backward pass has written.

        Raises:
            UserError: a CUDA graph is being captured, or the model trains a parameter that is not exchanged.
        """
        self._work.receive(bucket.buffer())
        if bucket.index() == 0:
            self._left_out.refuse_trained()

    def _to_ddp(self, future: Future, last: bool) -> Future:
        """Return the future that DDP waits for. At the end of the step, an error is raised with its original type."""
        if not outside_backward():
            if last:
                self._work.after_backward(self._skip_if_mixed)
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
        """Multiply the residuals and momentum of earlier gradients."""

    def _follow_scaler(self) -> None:
        """Rescale the residuals, which belong to scaled gradients, if the gradient scaler changes its factor."""
        factor = self._factor if self.options.grad_scaler is None else float(self.options.grad_scaler.get_scale())
        if factor != self._factor:
            self._rescale(factor / self._factor)
            self._factor = factor

    @abstractmethod
    def _keep_residuals(self, keep: bool) -> None:
        """Keep the residuals written in this step, or restore the earlier ones."""

    def _skip_if_mixed(self) -> None:
        """Make every gradient NaN after a step whose first groups were compressed before a later one had a NaN.

        All ranks learn it from the last group's exchange at the latest and decide equally. Optimizers and scalers that skip a
        step with a NaN then skip the whole step on every rank.
        """
        if self._mixed:
            self._mixed = False
            with torch.no_grad():
                for parameter in self._parameters:
                    if parameter.grad is not None:
                        parameter.grad.fill_(torch.nan)

    def _take_used(self, parts: Mapping[str, torch.Tensor]) -> set[str]:
        """Take the tensors that this rank has used in the step, for ``_unused``. Runs on the thread of the backward pass."""
        return set() if self._usage is None else self._usage.take(parts)

    def _unused(self, parts: Mapping[str, torch.Tensor], used: set[str]) -> set[str]:
        """Return the tensors that no rank has used, whose means DDP discards. Flags are exchanged if there can be any."""
        return set() if self._usage is None else unused_by_all(self.wire, sorted(parts), used)

    def _end_step(self, end: StepEnd) -> None:
        settle_copies(self.wire.device)
        self.step += 1
        # A gradient scaler lowers its factor after a skipped step, and the residuals follow. Without one the step counts.
        self._nonfinite |= self._clipped and self.options.grad_scaler is not None
        self.meter.count_nonfinite(self._nonfinite or self._clipped, self.step - 1)
        self._keep_residuals(not self._nonfinite)
        self._mixed = self._nonfinite and self._encoded and not end.joined
        self._nonfinite = self._encoded = self._clipped = False
        every = self.options.check_every
        if every and self.step % every == 0:
            self._check_replicas(end.joined)
        if every and (self.step + 1) % every == 0:
            self._buffers.arm()

    def _check_replicas(self, left_out: bool) -> None:
        """Compare checksums of weights and buffers over the ranks. ``left_out``: True if those of this rank are outdated."""
        sums = [UNSEEN, *BufferChecksums()] if left_out else [comparable(self._weights), *self._buffers.checksums()]
        weights, broadcast, alike, own = of_all_ranks(self.wire.group, sums, self.wire.device)
        refuse_unequal("weights", weights)
        refuse_unequal("buffers", broadcast)
        refuse_unequal("buffers of SyncBatchNorm", alike)
        if odd_ranks(own)[0] and self.wire.rank == 0:
            self._buffers.tell_of_own()


def step_end(last: bool, device: torch.device) -> StepEnd | None:
    """Return the end of the step if DDP hands over its last bucket, else None."""
    return StepEnd(Moment(device), outside_backward()) if last else None


def outside_backward() -> bool:
    """Return whether DDP calls the hook for a rank without further data under ``model.join()``, which exchanges zeros."""
    return torch._C._current_graph_task_id() == -1


def _holds(model: DistributedDataParallel, device: torch.device) -> bool:
    """Return whether exchanges must be launched after the collectives of the backward pass itself.

    The backward pass of SyncBatchNorm has collectives on another thread than exchanges. NCCL needs the same order of launches
    on all ranks where kernels of two communicators may not fit on a device at the same time.

    Raises:
        UserError: DDP exchanges further flags at an unknown time, while NCCL runs collectives in the order of their launches.
    """
    if not has_streams(device):
        return False
    in_order = in_order_of_launches()
    if in_order and model.find_unused_parameters and not model.static_graph:
        raise UserError(
            f"{ORDER_VARIABLE} is set, and DDP's find_unused_parameters exchanges flags while gradients are exchanged",
            f"unset {ORDER_VARIABLE}, or wrap the model with static_graph=True or without find_unused_parameters",
        )
    return in_order or any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
