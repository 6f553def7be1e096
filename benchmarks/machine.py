"""What one device says about an emulated cluster on this machine, whose processors do the work of every host.

Three things are measured without links: an exchange of ranks that take turns in one process, a byte through a socket, and the
paced step alone. Each runs on all processors at once, as in the cluster: those that share a core are slower then.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import lab_cases
import numpy as np
import torch
from replica import Replica
from speedup_lab import COMPUTE_S
from torch import nn

from paceline import lab
from paceline.strategy import GradientExchange
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup, LocalWire
from paceline.workload import Workload

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Machine:
    """CPU seconds of a processor while all of them are as busy.

    Attributes:
        processors: how many there are.
        carry_s: of a byte from one socket to another.
        add_s: of adding a byte of fp32 to another.
    """

    processors: int
    carry_s: float
    add_s: float

    def bandwidth(self, hosts: int) -> float:
        """Bytes/s that each of ``hosts`` hosts can send and receive when all do; of what a ring sends, half is added."""
        return self.share(hosts) / (self.carry_s + self.add_s / 2)

    def share(self, hosts: int) -> float:
        """Of a processor, what a host has when all are busy."""
        return min(1.0, self.processors / hosts)

    def work(self, case: Mapping[str, Any], hosts: int, elements: int, sent: float) -> float:
        """Seconds in which this machine exchanges so many elements of all hosts, of which each sends so many bytes."""
        summed = sent / 2 * self.add_s if case["compression"].startswith("torch:") else 0.0
        each = elements * exchange_s(case["compression"], case.get("exchange", ""), hosts) + summed + sent * self.carry_s
        return hosts * each / self.processors


@cache
def measure() -> Machine:
    """This machine, in some ten seconds. CPU time, of which what else runs on it takes little."""
    carry_s, add_s = zip(*_everywhere(_bytes), strict=True)
    return Machine(os.cpu_count() or 1, statistics.fmean(carry_s), statistics.fmean(add_s))


@cache
def alone_s(net: str) -> float:
    """Seconds of the network's paced step on one device, beside another on every other processor."""
    spec = {**lab_cases.overlapped(Workload.named(net), COMPUTE_S[net], 1, 5), "gradient": {}}
    run = partial(lab_cases.run, lab.loopback(1), spec, [{"compression": "torch:dense"}])
    with ThreadPoolExecutor() as pool:
        started = [pool.submit(run) for _ in range(os.cpu_count() or 1)]
        return statistics.fmean(future.result()[0]["step_s"] for future in started)


@cache
def exchange_s(compression: str, exchange: str, hosts: int) -> float:
    """CPU seconds of an element on each of ``hosts`` ranks, sockets aside: heavy-tailed noise, four tensors of 8 MB."""
    if compression == "torch:dense":
        return 0.0
    work = partial(_cast, hosts) if compression == "torch:bf16" else partial(_exchange, compression, exchange, hosts)
    return statistics.fmean(_everywhere(work))


def _everywhere(work: Callable[[], Any]) -> list[Any]:
    """What ``work`` returns on every processor, all at once."""
    processors = os.cpu_count() or 1
    barrier = multiprocessing.get_context("spawn").Barrier(processors)
    with multiprocessing.get_context("spawn").Pool(processors, _begin, (barrier,)) as pool:
        return pool.map(_together, [work] * processors, chunksize=1)


def _begin(barrier: Any) -> None:
    global _barrier
    _barrier = barrier
    torch.set_num_threads(1)


def _together(work: Callable[[], Any]) -> Any:
    _barrier.wait()
    return work()


def _bytes() -> tuple[float, float]:
    gradient, total = torch.ones(4 * MEBIBYTE), torch.ones(4 * MEBIBYTE)
    return _carry(512 * MEBIBYTE), _cpu(lambda: total.add_(gradient)) / gradient.nbytes


def _cast(hosts: int) -> float:
    """As ``paced.py`` does it; the sum of a ring is over about every element once."""
    full, half = torch.ones(4 * MEBIBYTE), torch.ones(4 * MEBIBYTE, dtype=torch.bfloat16)
    cast = _cpu(lambda: full.copy_(full.to(torch.bfloat16).div_(hosts)))
    return (cast + _cpu(lambda: half.add_(half))) / full.numel()


def _exchange(compression: str, exchange: str, hosts: int) -> float:
    shapes = [(1024, 2048)] * 4

    def work(wire: LocalWire) -> float:
        network = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        rank = Replica(network, GradientExchange(compression, exchange), wire, 0)
        values = np.random.default_rng(wire.rank).standard_t(4, rank.bucket.numel()) * 1e-3
        gradient, times = torch.from_numpy(values.astype(np.float32)), []
        for _ in range(5):
            rank.bucket.copy_(gradient)
            begin = time.process_time()
            rank.exchange()
            times.append(time.process_time() - begin)
        return statistics.median(times) / gradient.numel()

    return statistics.median(LocalGroup(hosts).run(work)) / hosts


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


__all__ = ["Machine", "alone_s", "exchange_s", "measure"]
