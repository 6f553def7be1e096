"""Hook of 1-bit Adam and 1-bit LAMB, which first averages gradients, then exchanges the momentum as signs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from paceline.strategy.compression.formats import FP32
from paceline.training.attach.exchange_thread import Future, promise
from paceline.training.attach.hooks.base import StepEnd, step_end
from paceline.training.attach.hooks.ddp import Hook
from paceline.training.device_stream import Moment
from paceline.training.exchanges import begin_allreduce
from paceline.training.exchanges.gradients.gradient_statistics import is_finite
from paceline.training.exchanges.wires.collectives import WireError


class MomentumHook(Hook):
    """Hook that averages gradients dense until ``frozen``, then leaves them to each rank and exchanges tensors given to
    ``exchange``.

    Its gradient exchange is that of the momentum: signs over ``sharded``, so that every rank keeps the error of the values that
        it sends to the owners (the worker's error) and of the mean that it returns (the server's).

    Attributes:
        frozen: whether DDP's gradients stay where they are; the same on every rank.
    """

    frozen = False

    def submit(self, bucket: Any) -> Future:
        """Return the mean of the bucket over the workers, or the bucket unchanged."""
        self._begin_step(bucket)
        buffer, last = bucket.buffer(), bucket.is_last()
        future = promise(buffer)
        if self.frozen:
            future.set_result(buffer)
            return future
        self.meter.bucket_ready()
        end = step_end(last, buffer.device)
        begun = None if self._work.on_stream else self._begin_mean(buffer)  # a stream's collectives are launched by one thread
        self._work.submit(partial(self._end_mean, begun, buffer, end), [(buffer, future)], last)
        return self._to_ddp(future, last)

    def _begin_mean(self, buffer: torch.Tensor) -> Callable[[], None]:
        try:
            return begin_allreduce(buffer, FP32, self.wire)
        except WireError as error:
            raised = error  # the exchange thread handles it, since it names the lost rank

            def fail() -> None:
                raise raised

            return fail

    def _end_mean(self, begun: Callable[[], None] | None, buffer: torch.Tensor, end: StepEnd | None) -> None:
        (begun or self._begin_mean(buffer))()
        self._nonfinite |= not is_finite(buffer)
        if end is not None:
            self._end_step(end)

    def exchange(self, parts: Mapping[str, torch.Tensor]) -> bool:
        """Replace flat fp32 tensors, one for each exchanged gradient, by their means over the workers, as signs.

        Returns:
            True if all were finite on every rank; if not, they are now NaN or infinite, and residuals are unchanged.

        Raises:
            LostRank, ReplicasDiverged, PayloadError: as a backward pass of an attached model.
        """
        first = next(iter(parts.values()))
        done, finite = promise(first), [True]

        def run() -> None:
            assert self._setup is not None
            self._exchange(self._setup, parts, set(parts), last=True)
            finite[0] = not self._nonfinite
            self._end_step(StepEnd(Moment(first.device), False))

        self._work.submit(run, [(first, done)])
        done.wait()
        self._work.check()
        return finite[0]
