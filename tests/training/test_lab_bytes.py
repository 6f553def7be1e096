"""Bytes on the socket: the interface counters of emulated hosts against the description that prediction uses."""

from __future__ import annotations

import json
import os
import sys

import pytest
import torch

from distributed import ENVIRONMENT
from paceline import lab
from paceline.strategy import COMPRESSIONS, BucketPlan
from strategy_toys import describe

ELEMENTS = 1_300_003  # more than a chunk, and no round number
FLAT = [
    (c, e)
    for c in ("dense", "bf16", "terngrad", "int8", "int4", "sign", "topk")
    for e in ("sharded", "parameter_server", "ring", "allgather")
]
FLAT += [("dense", "allreduce"), ("bf16", "allreduce")]
BY_VALUE = [("inceptionn", "ring"), ("inceptionn-scaled", "sharded"), ("inceptionn-scaled", "allgather")]
TO_OWNERS = [("float32", "reduce_scatter"), ("bfloat16", "reduce_scatter")]
NODES = [(c, "hierarchical") for c in ("terngrad", "int8", "bf16")]
SCRIPT = """
import json, os, sys
from pathlib import Path

import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from paceline.training.attach.attach import attach
from paceline.training.exchanges.wires.collectives import Wire
from paceline.training.exchanges.wires.meter import Meter

def sent():
    name = os.environ["GLOO_SOCKET_IFNAME"]
    line = next(x for x in Path("/proc/net/dev").read_text().splitlines() if x.strip().startswith(name + ":"))
    counts = line.partition(":")[2].split()
    return int(counts[8]) - 66 * int(counts[9])  # Ethernet, IP and TCP headers of each packet

dist.init_process_group("gloo")
torch.set_num_threads(1)
gradient = torch.randn(int(sys.argv[2]), generator=torch.Generator().manual_seed(dist.get_rank()))
plain = Wire(dist.group.WORLD, torch.device("cpu"), Meter(dist.get_rank()))
found = []
for compression, exchange in json.loads(sys.argv[1]):
    if exchange == "reduce_scatter":
        values = gradient[: gradient.numel() // plain.world_size * plain.world_size].to(getattr(torch, compression))
        total = torch.empty_like(values[: values.numel() // plain.world_size])
        meter, exchange_once = plain.meter, lambda: plain.reduce_scatter(total, values, exchange).wait()
    else:
        hook = attach(DDP(nn.Linear(gradient.numel(), 1, bias=False)), compression, exchange=exchange)
        hook.dense.clear()  # its only layer is the last one
        meter, exchange_once = hook.meter, lambda: hook.exchange_now(gradient.clone())
    exchange_once()  # connections are made
    counts = {True: [], False: []}
    # The least of several: a packet that was sent again is nothing that an exchange describes.
    for attempt in range(10):
        for exchanged in (True, False):
            dist.barrier()
            before = sent()
            if exchanged:
                meter.begin_step()
                exchange_once()
            dist.barrier()
            counts[exchanged].append(sent() - before)
        least = min(counts[True]) - min(counts[False])
        again = torch.tensor([float(least > 1.01 * meter.sent_bytes)])
        dist.all_reduce(again)
        if attempt and not again:
            break
    found.append([least, meter.sent_bytes])
print("FOUND " + json.dumps(found), flush=True)
os._exit(0)
"""

pytestmark = [
    pytest.mark.skipif(bool(lab.missing()), reason=f"needs for an emulated cluster: {'; '.join(lab.missing())}"),
    pytest.mark.usefixtures("warm"),
]


def counted(hosts: int, per_host: int, cases: list[tuple[str, str]]) -> list[list[list[float]]]:
    """For every rank and case: bytes that left its host's interface, headers apart, and what its meter says."""
    with lab.up(hosts, "10Gb/s", name=f"t{os.getpid()}") as cluster:
        command = [sys.executable, "-c", SCRIPT, json.dumps(cases), str(ELEMENTS)]
        results = cluster.run(command, env={**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "pl0"}, timeout=200, per_host=per_host)
    return [json.loads(r.stdout.partition("FOUND ")[2]) for r in results]


def plan(compression: str) -> BucketPlan:
    """The bucket of one tensor, which ends with the zeros of its last block."""
    padding = -ELEMENTS % 1024 if compression in ("int8", "int4", "sign") else 0
    return BucketPlan(ELEMENTS, 1, 0, padding=padding)


@pytest.mark.long
def test_every_exchange_sends_what_is_described() -> None:
    n = 3
    seen = counted(n, 1, FLAT + TO_OWNERS + BY_VALUE)
    for index, (compression, exchange) in enumerate(FLAT):
        phases = describe(plan(compression), COMPRESSIONS[compression], exchange, n).phases
        for rank in range(n):
            described = sum(phase.sent(rank) for phase in phases)
            socket, metered = seen[rank][index]
            assert metered == described, (compression, exchange, rank)
            assert 0.99 < socket / described < 1.02, (compression, exchange, rank, socket, described)

    owned = ELEMENTS // n
    for (dtype, _), (socket, metered) in zip(TO_OWNERS, seen[0][len(FLAT) :], strict=False):
        assert metered == (n - 1) * owned * getattr(torch, dtype).itemsize
        assert 0.99 < socket / metered < 1.02, dtype

    for case, found in zip(BY_VALUE, seen[0][len(FLAT + TO_OWNERS) :], strict=True):  # described as a range; the meter knows
        socket, metered = found
        assert 0.99 < socket / metered < 1.02, case


@pytest.mark.long
def test_between_nodes_only_the_compressed_shares_travel() -> None:
    hosts, local = 2, 2
    seen = counted(hosts, local, NODES)
    for index, (compression, exchange) in enumerate(NODES):
        phases = describe(plan(compression), COMPRESSIONS[compression], exchange, hosts * local, local).phases
        for host in range(hosts):
            ranks = range(host * local, (host + 1) * local)
            described = sum(p.sent(rank) for p in phases if not p.name.startswith("inner") for rank in ranks)
            socket = seen[host * local][index][0]
            # Both ranks of a host talk to each other over its interface's address, which stays inside the host.
            assert 0.99 < socket / described < 1.02, (compression, host, socket, described)
