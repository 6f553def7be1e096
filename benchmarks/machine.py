"""What one process of a machine says about an emulated cluster on it: its cores do the work of every host.

Measured without a lab and its links, so that a prediction of the lab rests on one device and nominal rates. What exchanges
cost the processor is measured with ranks that are threads of this process (``LocalWire``).
"""

from __future__ import annotations

import resource
import socket
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import lab_cases
import numpy as np
import torch
from replica import Replica
from torch import nn

from paceline.training.local_wire import LocalGroup, LocalWire
from paceline.training.ways import choose

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Machine:
    """CPU seconds of this machine, of one core.

    Attributes:
        cores: what its processors are worth together.
        carry_s: of a byte from one socket to another.
        add_s: of adding a byte of fp32 to another.
        keep_s: of a byte of gradient from the backward pass to where it is exchanged.
    """

    cores: float
    carry_s: float
    add_s: float
    keep_s: float

    def bandwidth(self, hosts: int) -> float:
        """Bytes/s that each of ``hosts`` hosts can send and receive when all do; of what a ring sends, half is added."""
        return self.cores / hosts / (self.carry_s + self.add_s / 2)

    def work(self, case: Mapping[str, Any], hosts: int, elements: int, sent: float) -> float:
        """Seconds of this machine in a step of all hosts together that each send so many bytes of so many elements."""
        each = elements * (exchange_s(case["compression"], case.get("exchange", ""), hosts) + 4 * self.keep_s)
        summed = sent / 2 * self.add_s if case["compression"].startswith("torch:") else 0.0
        return hosts * (each + summed + sent * self.carry_s) / self.cores

    def keep(self, hosts: int, size: float) -> float:
        """Seconds in which all hosts at once take ``size`` bytes of gradient from the backward pass."""
        return self.keep_s * size * max(1.0, hosts / self.cores)


@cache
def measure() -> Machine:
    """This machine, in about three seconds. CPU time, of which what else runs on it takes little."""
    torch.set_num_threads(1)
    gradient, total = torch.ones(4 * MEBIBYTE), torch.ones(4 * MEBIBYTE)
    size = 4 * gradient.numel()

    def backward() -> None:
        weight = torch.nn.Parameter(torch.zeros(4 * MEBIBYTE))
        weight.grad = total
        _Handed.apply(torch.zeros(1, requires_grad=True), weight, gradient).backward(torch.ones(1))

    return Machine(
        lab_cases.cores_worth(),
        _carry(256 * MEBIBYTE),
        _cpu(lambda: total.add_(gradient)) / size,
        _cpu(backward) / size,
    )


@cache
def exchange_s(compression: str, exchange: str, hosts: int) -> float:
    """CPU seconds of an element on each of ``hosts`` ranks, sockets aside: heavy-tailed noise, four tensors of 8 MB."""
    if compression == "torch:dense":
        return 0.0
    if compression == "torch:bf16":  # as paced.py does it; the sum of a ring is over about every element once
        full, half = torch.ones(4 * MEBIBYTE), torch.ones(4 * MEBIBYTE, dtype=torch.bfloat16)
        cast = _cpu(lambda: full.copy_(full.to(torch.bfloat16).div_(hosts)))
        return (cast + _cpu(lambda: half.add_(half))) / full.numel()
    shapes = [(1024, 2048)] * 4
    clip = 2.5 if compression == "terngrad" else None

    def work(wire: LocalWire) -> float:
        way = choose(compression, exchange, {}, clip, wire.world_size, {})
        rank = Replica(nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes]), way, wire, 0)
        values = np.random.default_rng(wire.rank).standard_t(4, rank.bucket.numel()) * 1e-3
        gradient, times = torch.from_numpy(values.astype(np.float32)), []
        for _ in range(5):
            rank.bucket.copy_(gradient)
            begin = time.process_time()
            rank.exchange()
            times.append(time.process_time() - begin)
        return statistics.median(times) / gradient.numel()

    return statistics.median(LocalGroup(hosts).run(work)) / hosts


class _Handed(torch.autograd.Function):
    """As in ``paced.py``: the backward pass hands over a gradient made beforehand."""

    @staticmethod
    def forward(ctx, x, weight, gradient):  # type: ignore[no-untyped-def]
        ctx.gradient = gradient
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        return grad, ctx.gradient, None


def _cpu(do: Callable[[], object], repeats: int = 15) -> float:
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        do()
        times.append(time.process_time() - begin)
    return statistics.median(times)


def _carry(size: int) -> float:
    """CPU seconds of a byte through TCP on loopback, user and system, of both ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as out:
        into, _ = listening.accept()

        def take() -> None:
            room, left = bytearray(MEBIBYTE), size
            while left > 0:
                left -= into.recv_into(room)

        thread = threading.Thread(target=take)
        begin = resource.getrusage(resource.RUSAGE_SELF)
        thread.start()
        piece = bytes(MEBIBYTE)
        for _ in range(size // MEBIBYTE):
            out.sendall(piece)
        thread.join()
        end = resource.getrusage(resource.RUSAGE_SELF)
        into.close()
    return (end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime) / size


__all__ = ["Machine", "exchange_s", "measure"]
