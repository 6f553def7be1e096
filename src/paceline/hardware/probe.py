"""Measurement of this machine's matmul rate, memory bandwidth and link, while all ranks work at once.

Ranks that share cores or a network card slow each other down. A measurement of all ranks together includes that.
Needs torch and a process group. ``torchrun -m paceline.hardware.probe FILE`` writes the result as JSON.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device, Fact, Link
from paceline.hardware.precision import PRECISIONS

if TYPE_CHECKING:
    import torch

MATMUL = 384  # rows and columns: fits the second-level cache of a core, as tiles of a real layer do
COPY_BYTES = 32 << 20
LINK_BYTES = 4 << 20
SECONDS = 0.4


def on_gpus(local_ranks: int) -> bool:
    """Return whether each of this machine's ranks gets a separate GPU; otherwise all of them compute on the CPU."""
    import torch

    return 0 < local_ranks <= torch.cuda.device_count()


def join_group(timeout: timedelta | None = None) -> torch.device:
    """Join the process group that torchrun's environment describes, on this rank's device, with NCCL on GPUs or gloo on
    CPUs."""
    import torch
    import torch.distributed as dist

    if not on_gpus(int(os.environ["LOCAL_WORLD_SIZE"])):
        dist.init_process_group("gloo", timeout=timeout)
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=timeout, device_id=device)
    return device


def probe_cluster(device: torch.device) -> Cluster:
    """Measure with all ranks of the default process group; every rank gets the same result.

    The device is one rank's share of the machine: with four ranks on two cores, half a core. The link is measured over the
    whole group and used for both levels.
    """
    import torch
    import torch.distributed as dist

    def mean(value: float) -> float:
        shared = torch.tensor([value], dtype=torch.float64, device=device)
        dist.all_reduce(shared)
        return float(shared) / dist.get_world_size()

    def seconds(work: Callable[[], Any]) -> float:
        work()
        dist.barrier()
        times: list[float] = []
        start = time.perf_counter()
        while time.perf_counter() - start < SECONDS or len(times) < 3:
            begin = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - begin)
        return mean(statistics.median(times))

    def exchanged(size: int, repeats: int) -> float:
        buffer = torch.zeros(size // 4, device=device)
        times: list[float] = []
        for _ in range(repeats):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(buffer)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - begin)
        return mean(statistics.median(times[1:]))

    ranks = dist.get_world_size()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    a = torch.randn(MATMUL, MATMUL, device=device)
    b, c = torch.randn_like(a), torch.empty_like(a)
    matmul = 2 * MATMUL**3 / seconds(lambda: torch.mm(a, b, out=c))
    source = torch.zeros(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * COPY_BYTES / seconds(lambda: target.copy_(source))
    steps = 2 * (ranks - 1)  # of a ring
    small, large = exchanged(64, 20), exchanged(LINK_BYTES, 10)
    latency = small / max(steps, 1)
    moved = steps / ranks * LINK_BYTES
    # Ranks of one machine swap through its memory: on a busy one the difference may be noise, even below zero.
    rate = min(moved / max(large - small, 1e-9), bandwidth) if ranks > 1 else bandwidth

    text = f"measured here with {local} ranks at once on a machine of {os.cpu_count()} cores"
    date = datetime.now(UTC).date().isoformat()

    def fact(value: float) -> Fact:
        return Fact(value, text, date)

    link = Link(name="measured link", kind="loopback", bandwidth=fact(rate), latency=fact(latency))
    cuda = device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if cuda else memory_bytes() / local
    probed = Device(
        name=torch.cuda.get_device_name(device) if cuda else f"this machine ({cpu_name()}, {local} ranks)",
        kind="gpu" if cuda else "cpu",
        peak_flops={"fp32": fact(matmul)},
        matmul_flops={"fp32": fact(matmul)},
        memory=fact(memory),
        memory_bandwidth=fact(bandwidth),
        link=link.name,
    )
    return Cluster.of_nodes(probed, local, ranks // local, link, link)


def in_precision(cluster: Cluster, precision: str, device: torch.device) -> Cluster:
    """Return a measured cluster with the rate of matrix products in another precision than fp32.

    Every rank calls it and measures at the same time.
    """
    import torch
    import torch.distributed as dist

    if precision in cluster.device.peak_flops:
        return cluster
    name = PRECISIONS[precision].dtype
    a = torch.randn(MATMUL, MATMUL, dtype=torch.float32, device=device).to(getattr(torch, name) if name else torch.float32)
    b, c = torch.randn_like(a), torch.empty_like(a)
    times: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < SECONDS or len(times) < 3:
        begin = time.perf_counter()
        torch.mm(a, b, out=c)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    shared = torch.tensor([statistics.median(times[1:])], dtype=torch.float64, device=device)
    dist.all_reduce(shared)
    probed = cluster.device
    rate = Fact(2 * MATMUL**3 * dist.get_world_size() / float(shared), probed.memory.source, probed.memory.date)
    peak, reached = ({**rates, precision: rate} for rates in (probed.peak_flops, probed.matmul_flops))
    return replace(cluster, device=replace(probed, peak_flops=peak, matmul_flops=reached))


def memory_bytes() -> float:
    """Return the memory of this machine in bytes."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def cpu_name() -> str:
    """Return the processor's name as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "cpu"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "cpu")


def main(path: str) -> None:
    """Run one rank of a probe. Rank 0 writes the cluster as JSON to ``path``."""
    import torch.distributed as dist

    device = join_group()
    cluster = probe_cluster(device)
    if dist.get_rank() == 0:
        Path(path).write_text(json.dumps(asdict(cluster)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
