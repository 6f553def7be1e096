"""Local steps of workers that are groups of ranks: the weights of a simulation of whole workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import local_oracle as oracle
import paceline
from distributed import launch_once
from paceline.strategy import GradientExchange, Strategy
from paceline.training.exchanges.gradients.tensor_layout import numbered

STEPS, WORKERS = 9, 2
PARTS = {1: [[0, 1, 2, 3, 4]], 2: [[0, 1], [2, 3, 4]]}
CASES: dict[str, dict[str, Any]] = {
    "diloco": {"sync_every": 4},
    "streaming": {"sync_every": 4, "fragments": 2, "sync_delay": 1, "mixing": 0.25},
    "every step": {"sync_every": 1, "outer_lr": 1.0, "outer_momentum": 0.0, "inner": "sgd"},
}
MESHES: dict[str, tuple[int, int]] = {"sharded": (1, 2), "copies": (2, 1), "uneven": (1, 3), "hybrid": (2, 2)}
"""Copies and shards of a worker."""


def worker_model(mesh: str, seed: int, model: nn.Module | None = None) -> nn.Module:
    """A network on the ranks of its worker."""
    copies, shards = MESHES[mesh]
    names = ("worker", "replicate", "shard")
    rows = init_device_mesh("cpu", (WORKERS, copies, shards), mesh_dim_names=names)
    model = model or oracle.network(seed)
    if shards == 1:
        return DistributedDataParallel(model, process_group=rows["replicate"].get_group())
    inside = rows["replicate", "shard"] if copies > 1 else rows["shard"]
    for layer in [m for m in model if isinstance(m, nn.Linear)][1:] if isinstance(model, nn.Sequential) else []:
        fully_shard(layer, mesh=inside)
    return fully_shard(model, mesh=inside)


def whole(model: nn.Module) -> np.ndarray:
    values = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([v.detach().reshape(-1) for v in values]).numpy()


def train_every_case(rank: int, workers: int, mesh: str, names: list[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        case = dict(CASES[name])
        inner = case.pop("inner", "adamw")
        model = worker_model(mesh, rank * WORKERS // workers)  # as FSDP2 wants it: equal in a worker
        sync = paceline.attach_local(model, **case)
        optimizer = oracle.optimizer(inner, model)
        for x in oracle.samples(rank, STEPS):
            oracle.local_step(model, optimizer, x)
            sync.step()
        found[name] = whole(model)
        sync.check_replicas()
    return found


@pytest.mark.everyday("sharded")
@pytest.mark.parametrize("mesh", MESHES)
def test_the_weights_are_those_of_whole_workers(mesh: str) -> None:
    copies, shards = MESHES[mesh]
    devices = copies * shards
    found = launch_once(train_every_case, WORKERS * devices, mesh=mesh, names=tuple(CASES))
    for name, case in CASES.items():
        fragments, every, delay = case.get("fragments", 1), case["sync_every"], case.get("sync_delay", 0)
        expected = oracle.simulated(
            WORKERS,
            STEPS,
            every=every,
            inner=case.get("inner", "adamw"),
            lr=case.get("outer_lr", 0.7),
            momentum=case.get("outer_momentum", 0.9),
            parts=PARTS[fragments],
            at=[(f + 1) * every // fragments % every for f in range(fragments)],
            delay=delay,
            share=case.get("mixing", 0.0),
            devices=devices,
        )
        for rank in range(WORKERS * devices):
            weights = np.concatenate([w.reshape(-1) for w in expected[rank // devices]])
            np.testing.assert_allclose(found[rank][name], weights, rtol=1e-4, atol=2e-6)


COMPRESSED = [("dense", ""), ("int8", "sharded"), ("int8", "ring"), ("terngrad", ""), ("sign", ""), ("topk", "")]


def compress(rank: int, workers: int, mesh: str) -> list[Any]:
    """Per compression: bytes, whether all ranks have the same shared weights, and whether a NaN of one shard returns all."""
    found = []
    for compression, exchange in COMPRESSED:
        model = worker_model(mesh, rank * WORKERS // workers)
        sync = paceline.attach_local(model, GradientExchange(compression, exchange), sync_every=2, fragments=2, check_every=1)
        optimizer = oracle.optimizer("sgd", model)
        sent, gone = [], 0
        for number, x in enumerate(oracle.samples(rank, 8), start=1):
            oracle.local_step(model, optimizer, x)
            if number == 5:
                owed = sync.state_dict()["feedback"]["residual"]
                if rank == 1:
                    sync.fragments[0].weights[0].view(-1)[0] = float("nan")
            if sync.step() and number < 5:
                sent.append(sync.meter.sent_bytes)
            if number == 5:
                after = sync.state_dict()["feedback"]["residual"]
                gone = sync.returned * all(torch.equal(owed[name], after[name]) for name in owed)
        with sync.shared_weights():
            weights = whole(model)
        found.append([sent, gone, sync.returned, weights])
    return found


@pytest.mark.long
@pytest.mark.parametrize("index", range(len(COMPRESSED)))
@pytest.mark.parametrize("mesh", MESHES)
def test_bytes_are_as_described_and_a_nan_of_one_shard_returns_all(mesh: str, index: int) -> None:
    copies, shards = MESHES[mesh]
    devices = copies * shards
    ranks = [found[index] for found in launch_once(compress, WORKERS * devices, mesh=mesh)]
    compression, exchange = COMPRESSED[index]
    level = {"sharding": "zero3", "shard_devices": shards} if shards > 1 else {}
    strategy = Strategy.of(
        world_size=WORKERS * devices,
        global_batch_size=WORKERS * devices,
        compression=compression,
        exchange=exchange,
        sync_every=2,
        fragments=2,
        worker_devices=devices,
        **level,
    )
    specs: list[Any] = list(numbered(oracle.network().named_parameters()).values())
    described = [group.traffic.phases for group in strategy.groups(specs, specs)]
    for sent, gone, returned, weights in ranks:
        assert gone == returned == 1 and np.isfinite(weights).all()
        np.testing.assert_array_equal(weights, ranks[0][3])
        assert sent[:2] == sent[2:]
    for fragment, phases in enumerate(described):
        assert ranks[0][0][fragment] == max(sum(p.sent(rank) for p in phases) for rank in range(WORKERS * devices))
