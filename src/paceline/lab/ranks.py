"""Host, environment (as of torchrun) and command words of one rank."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """Host on which a command runs; ``enter`` is the command prefix."""

    number: int
    address: str
    interface: str
    enter: tuple[str, ...] = ()


def environment(hosts: Sequence[Host], rank: int, per_host: int, port: int) -> dict[str, str]:
    """Return the environment that torchrun would set for one rank, with the interface for gloo and NCCL."""
    host, world = hosts[rank // per_host], len(hosts) * per_host
    node, local = str(rank // per_host), str(rank % per_host)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // world)),
        "RANK": str(rank),
        "ROLE_RANK": str(rank),
        "LOCAL_RANK": local,
        "WORLD_SIZE": str(world),
        "ROLE_WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(per_host),
        "NODE_RANK": node,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": str(len(hosts)),
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 serves the store; no agent does
        "GLOO_SOCKET_IFNAME": host.interface,
        "NCCL_SOCKET_IFNAME": host.interface,
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL") or "ERROR",  # it warns that addresses have no name here
    }


def fill(command: Sequence[str], rank: int, hosts: int, address: str) -> list[str]:
    """Return the command of one rank with its placeholders filled; other words in braces are unchanged."""
    words = {"{rank}": str(rank), "{hosts}": str(hosts), "{address}": address}
    words_of_rank = []
    for word in command:
        for name, value in words.items():
            word = word.replace(name, value)
        words_of_rank.append(word)
    return words_of_rank
