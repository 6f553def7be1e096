"""What stands behind an attached model, whatever its compression: where the steps stand and what is watched in each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.training.collectives import Wire, own_group
from paceline.training.consistency import same_weights
from paceline.training.exchange_thread import Exchanges
from paceline.training.gradient_sample import Sample
from paceline.training.meter import Meter
from paceline.training.tensor_layout import trained
from paceline.training.ways import Way


class Attached(ABC):
    """A hook's groups and threads are this process's: a copied model shares it and a saved one has none.

    Attributes:
        way: compression and exchange in use.
        step: backward passes exchanged so far; the draws depend on it.
        tensors: every trained tensor, in ``named_parameters()`` order.
        dense: names of the tensors sent dense, each with the reason. ``print(hook)`` shows the rule.
        meter: bytes, events and non-finite steps.
        sample: stages of one tensor's gradient, on request.
    """

    def __init__(
        self, model: DistributedDataParallel, way: Way, *, seed: int, check_every: int, timeout_s: float, scaler: Any = None
    ) -> None:
        self.way, self.seed, self.step = way, seed, 0
        self._named = trained(model.module)
        self.tensors = list(self._named.values())
        self.dense = dict(way.compression.dense(self.tensors))
        self.meter, self.sample = Meter(dist.get_rank(model.process_group)), Sample()
        # A group of its own: the script, DDP or a second model may use theirs while buckets are exchanged, in no fixed order.
        group = own_group(model.process_group, dist.get_process_group_ranks(model.process_group), timeout_s)
        self.wire = Wire(group, next(model.module.parameters()).device, self.meter, timeout_s)
        self._weights = [p for p in model.module.parameters() if p.requires_grad]
        self._check_every, self._scaler, self._factor = check_every, scaler, 1.0
        self._nonfinite = False  # in this step, on any rank
        # One thread: groups keep their order, and the backward pass goes on meanwhile.
        self._work = Exchanges(group)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    @abstractmethod
    def _rescale(self, ratio: float) -> None:
        """Multiply what is kept of earlier gradients."""

    def _follow_scaler(self) -> None:
        """Residuals are of scaled gradients: when the gradient scaler changes its factor they change with it."""
        factor = self._factor if self._scaler is None else float(self._scaler.get_scale())
        if factor != self._factor:
            self._rescale(factor / self._factor)
            self._factor = factor

    def _end_step(self) -> None:
        self.step += 1
        self.meter.count_nonfinite(self._nonfinite, self.step - 1)
        self._nonfinite = False
        if self._check_every and self.step % self._check_every == 0:
            same_weights(self.wire.group, self._weights, self.wire.device)


def finish_queued(buffer: torch.Tensor) -> None:
    """Wait for the kernels that this thread has queued: the backward pass and the exchange have streams of their own."""
    if buffer.is_cuda:
        torch.cuda.current_stream(buffer.device).synchronize()
