"""A GPU's kernels played by the reference on tensors of the CPU, and a count of what would wait for a GPU.

Tensors of the CPU stand for the GPU's, so everything above the kernels is the code that a GPU runs. The kernels keep their
contract: they write states, and nothing behind a closed gate. Their own work is not counted.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from paceline.codecs import PayloadError, arrays, backends, container, deferred, reference
from paceline.codecs import moments as order
from paceline.codecs.codec import Codec
from paceline.codecs.container import HEADER_BYTES, Header
from paceline.codecs.counter import Key
from paceline.training.exchanges.gradients import agreement, gradient_statistics
from paceline.training.exchanges.streams import encoded_streams, parts_stream
from paceline.training.exchanges.wires.in_process_collectives import LocalWire

ASKING = ("tolist", "item", "cpu", "__bool__", "__float__", "__int__", "__index__", "nonzero")
"""Methods of a tensor that give the host a number, or wait for how many there are."""
_inside = threading.local()


class Waits(Counter[str]):
    """Waits of the host, by method."""

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Count nothing that happens in the block: it would run on the GPU."""
        before = getattr(_inside, "kernel", False)
        _inside.kernel = True
        try:
            yield
        finally:
            _inside.kernel = before

    def counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """``method``, counted under ``name``; a method that uses another counts once."""

        def call(*arguments: Any, **options: Any) -> Any:
            if getattr(_inside, "kernel", False):
                return method(*arguments, **options)
            self[name] += 1
            with self.elsewhere():
                return method(*arguments, **options)

        return call


class Played:
    """The reference as a ``DeviceBackend`` whose states are written and not read."""

    name = "triton"

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def serves(self, codec: Codec) -> bool:
        return True

    def queue_write(self, codec: Codec, x: Any, out: Any, key: Key, start: int, state: Any, findings: Any = None) -> int | None:
        with self._waits.elsewhere():
            payload = out.numpy()
            body = payload[HEADER_BYTES:]
            try:
                written = reference.encode(codec, x.numpy(), body, key, start)
            except ValueError:
                state[1], written = 1, body.size
            state[2] = written
            head = container.header_bytes(Header(codec.code, x.shape[0], codec.parameters()))
            first, second = container.checksum(head, body[:written])
            bad = findings is not None and bool(findings[:, :2].any())
            container.write_header(payload, head, ((first + bad) & 0xFFFFFFFF, second))
            least, most = codec.body_range(x.shape[0])
            return written if least == most else None

    def queue_read(self, codec: Codec, payload: Any, out: Any, mode: int, state: Any) -> None:
        with self._waits.elsewhere():
            data = payload.numpy()
            head = container.header_bytes(Header(codec.code, out.shape[0], codec.parameters()))
            sums = tuple(int(word) for word in data[24:HEADER_BYTES].copy().view("<u4"))
            if data[:24].tobytes() != head or container.checksum(head, data[HEADER_BYTES:]) != sums:
                state[0] = 1
                return
            try:
                reference.decode(codec, data[HEADER_BYTES:], out.numpy(), mode)
            except PayloadError:
                state[1] = 1

    def queue_moments(self, parts: Sequence[Any]) -> Any:
        with self._waits.elsewhere():
            found = [order.moments(part.numpy(), reference) for part in parts]
            return torch.from_numpy(np.array(found, np.float32).reshape(-1, 2))


def play(monkeypatch: pytest.MonkeyPatch, kernels: Callable[[Waits], Any] = Played) -> Waits:
    """Let tensors of the CPU stand for a GPU's, encoded by ``kernels``. Returns the waits from now on."""
    waits = Waits()
    played = kernels(waits)
    monkeypatch.setattr(backends, "triton", lambda: played)
    for module in (arrays, agreement, gradient_statistics, encoded_streams, parts_stream):
        monkeypatch.setattr(module, "on_host", lambda tensor: False)
    for name in ASKING:
        monkeypatch.setattr(torch.Tensor, name, waits.counted(name, getattr(torch.Tensor, name)))
    monkeypatch.setattr(LocalWire, "joins", True)
    assert deferred.backends is backends
    return waits
