"""Exchange stream of a device, and its order with the streams of the script. Only this module touches streams and events.

A backward pass queues its kernels on the stream of its thread. Exchanges run on one further stream of each device, so that
both run at the same time. Work that is handed over to this stream waits there for an event of the stream that prepared it. The
future of a buffer makes its reader's stream wait for the exchange. No host waits. On a CPU everything has happened when a call
returns, so nothing needs an order.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar

import torch

from paceline.errors import UserError

Future = torch.futures.Future[torch.Tensor]

ORDER_VARIABLE = "NCCL_LAUNCH_ORDER_IMPLICIT"
"""Setting of NCCL 2.26 and later that runs the collectives of a device in the order of their launches, over all communicators
(NCCL user guide, "Using multiple NCCL communicators concurrently")."""


class Cuda:
    """Functions of ``torch.cuda`` that order work on a device. Tests put a stand-in in place of ``engine``."""

    def has_streams(self, device: torch.device) -> bool:
        """Return whether work on a device is queued, so that streams matter."""
        return device.type == "cuda"

    def stream(self, device: torch.device) -> Any:
        """Return a new stream, which does not wait for the default stream."""
        return torch.cuda.Stream(device)

    def current(self, device: torch.device) -> Any:
        """Return the stream on which this thread queues work."""
        return torch.cuda.current_stream(device)

    def event(self) -> Any:
        """Return a new event that records the time."""
        return torch.cuda.Event(enable_timing=True)

    @contextmanager
    def running(self, stream: Any, device: torch.device) -> Iterator[None]:
        """Queue the work of the block on a stream of a device."""
        with torch.cuda.device(device), torch.cuda.stream(stream):
            yield

    def on(self, device: torch.device) -> AbstractContextManager[Any]:
        """Make a device this thread's own in the block."""
        return torch.cuda.device(device)

    def pinned_zeros(self, shape: int | Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return zeros in memory of the host that a device can copy from and to."""
        with torch.cuda.device(device):  # else device 0 would be the one, and hold a context of every process
            return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keep a tensor's memory from new use until a stream has done what is queued on it when the tensor is freed."""
        tensor.record_stream(stream)

    def capturing(self) -> bool:
        """Return whether a CUDA graph is being captured from this thread's stream."""
        return torch.cuda.is_current_stream_capturing()

    def future(self, device: torch.device) -> Future:
        """Return a future whose readers' streams wait for the stream of ``set_result``."""
        return torch.futures.Future(devices=[device])


engine: Any = Cuda()


def has_streams(device: torch.device) -> bool:
    """Return whether work on a device is queued, so that its order needs events."""
    return bool(engine.has_streams(device))


def promise(buffer: torch.Tensor) -> Future:
    """Return a future for a buffer. On a GPU the streams of those who wait for it wait for the stream that sets it."""
    future: Future = engine.future(buffer.device) if has_streams(buffer.device) else torch.futures.Future()
    return future


def allocating_on(device: torch.device) -> AbstractContextManager[Any]:
    """Allocate on a device in the block. The host's pinned memory is then also that of this device's context."""
    return engine.on(device) if has_streams(device) else nullcontext()


def refuse_capture(device: torch.device) -> None:
    """Raise UserError while a CUDA graph is captured: an exchange waits for other ranks and has another length in each step."""
    if has_streams(device) and engine.capturing():
        raise UserError(
            "a CUDA graph is being captured, and an exchange of gradients cannot be part of one",
            "capture the forward pass alone, or run backward() outside of the graph (torch.cuda.graph, make_graphed_callables, "
            "mode='reduce-overhead')",
        )


def in_order_of_launches() -> bool:
    """Return whether NCCL runs all collectives of a device in the order of their launches; see ``ORDER_VARIABLE``."""
    return os.environ.get(ORDER_VARIABLE, "0") not in ("", "0")


class Moment:
    """Point of a stream, to measure the time between two of them. On a CPU: time of its creation."""

    def __init__(self, device: torch.device) -> None:
        self.host_s = time.perf_counter()
        self._event: Any = None
        if has_streams(device):
            self._event = engine.event()
            self._event.record(engine.current(device))

    def since(self, earlier: Moment) -> float:
        """Return the seconds of the device from an earlier moment to this one, after a wait for this one."""
        if self._event is None:
            return self.host_s - earlier.host_s
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1000


class HostCopies:
    """Copies from a device to pinned memory of the host, on one more stream, so that no later work of an exchange waits."""

    _made: ClassVar[dict[torch.device, HostCopies]] = {}

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, engine.stream(device)
        self._last: Any = None

    @classmethod
    def of(cls, device: torch.device) -> HostCopies:
        """Return the copies of a device with streams."""
        if device not in cls._made:
            cls._made[device] = cls(device)
        return cls._made[device]

    def put(self, values: torch.Tensor, into: torch.Tensor) -> None:
        """Copy ``values`` into pinned memory after the work queued by the caller."""
        ready = engine.event()
        ready.record(engine.current(self._device))
        self._stream.wait_event(ready)
        engine.keep(values, self._stream)
        with engine.running(self._stream, self._device):
            into.copy_(values, non_blocking=True)
            self._last = engine.event()
            self._last.record(self._stream)

    def order(self) -> None:
        """Make the caller's stream wait for the copies: it may then overwrite what was copied, and read the pinned memory."""
        if self._last is not None:
            engine.current(self._device).wait_event(self._last)

    def settle(self) -> None:
        """Wait for the copies: the host may then read the pinned memory."""
        if self._last is not None:
            self._last.synchronize()
            self._last = None


def settle_copies(device: torch.device) -> None:
    """Wait for all copies from a device to the host. Nothing happens on a CPU."""
    if has_streams(device):
        HostCopies.of(device).settle()


class DeviceStream:
    """Stream of all exchanges of a device; ``of`` returns it."""

    _made: ClassVar[weakref.WeakValueDictionary[torch.device, DeviceStream]] = weakref.WeakValueDictionary()

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = engine.stream(device) if has_streams(device) else None

    @classmethod
    def of(cls, device: torch.device) -> DeviceStream:
        """Return the stream of a device, the same for all hooks: their exchanges then run in the order of one queue."""
        if not has_streams(device):
            return cls(device)
        stream = cls._made.get(device)
        if stream is None:
            stream = cls._made[device] = cls(device)
        return stream

    @property
    def queues(self) -> bool:
        """True if work is queued here and not done at once."""
        return self._stream is not None

    def hand_over(self, *tensors: torch.Tensor) -> Any:
        """Return an event of the caller's stream after which this stream may use tensors; None on a CPU.

        Their memory stays theirs until this stream has used them, though the caller may free them earlier.
        """
        if self._stream is None:
            return None
        for tensor in tensors:
            engine.keep(tensor, self._stream)
        event = engine.event()
        event.record(engine.current(self.device))
        return event

    def take_back(self, *tensors: torch.Tensor) -> None:
        """Let the caller's stream use tensors that were allocated here. It must already wait for their future."""
        if self._stream is not None:
            for tensor in tensors:
                engine.keep(tensor, engine.current(self.device))

    @contextmanager
    def running(self, after: Sequence[Any] = ()) -> Iterator[None]:
        """Queue the work of the block here, after events of ``hand_over``."""
        with ExitStack() as stack:
            if self._stream is not None:
                stack.enter_context(engine.running(self._stream, self.device))
                for event in after:
                    if event is not None:
                        self._stream.wait_event(event)
            yield

    def end(self) -> Any:
        """Return an event of the work queued here so far; None on a CPU."""
        if self._stream is None:
            return None
        event = engine.event()
        event.record(self._stream)
        return event
