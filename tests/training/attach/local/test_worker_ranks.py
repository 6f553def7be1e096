"""Workers that are groups of ranks: their seats, this rank's part of a tensor, and what is refused on every rank."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import local_oracle as oracle
import paceline
from distributed import launch_once
from paceline.errors import UserError
from paceline.training.attach.local.worker_ranks import ShardPart, WorkerPlace, parts_of, seat_of
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec, numbered


def test_copies_divide_a_tensor_by_elements() -> None:
    tensor = {"w": nn.Parameter(torch.zeros(5, 3))}
    spec = TensorSpec("w", (5, 3), 100)
    spans = [parts_of(tensor, [spec], WorkerPlace(copy=copy, copies=4))[0] for copy in range(4)]
    assert [(p.start, p.stop) for p in spans] == [(0, 4), (4, 8), (8, 12), (12, 15)]
    assert [p.exchanged.offset for p in spans] == [100, 104, 108, 112]


def test_a_part_knows_its_first_element_in_the_whole_network() -> None:
    part = ShardPart(TensorSpec("w", (6, 4, 2), 10), (2, 4, 2), (4, 0, 0), 3, 9)
    assert part.shard == TensorSpec("w", (2, 4, 2), 10 + 32) and part.exchanged == TensorSpec("w", (6,), 10 + 35)


def seats(rank: int, workers: int) -> list[Any]:
    """The seat in three meshes, and what is refused, by word."""
    found: list[Any] = []
    rows = init_device_mesh("cpu", (2, 2), mesh_dim_names=("worker", "shard"))
    for mesh in (rows["shard"], rows):
        model = oracle.network()
        fully_shard(model, mesh=mesh)
        named = list(model.named_parameters())
        parts = parts_of(dict(named), list(numbered(named).values()), seat_of(model, named).place)
        found.append([seat_of(model, named), sum(part.stop - part.start for part in parts)])
    said = []
    half = oracle.network()
    fully_shard(half[0], mesh=rows["shard"])
    whole = oracle.network()
    fully_shard(whole)
    sharded = oracle.network()
    fully_shard(sharded, mesh=rows["shard"])
    cases: list[tuple[nn.Module, dict[str, Any]]] = [
        (half, {}),
        (whole, {}),
        (sharded, {"worker_devices": 4}),
        (sharded, {"compression": paceline.GradientExchange("int8", "hierarchical", ranks_per_node=2)}),
        (sharded, {"process_group": dist.new_subgroups(2)[0]}),
        (DistributedDataParallel(oracle.network()), {}),
    ]
    for model, arguments in cases:
        try:
            paceline.attach_local(model, sync_every=2, **arguments)
            said.append("taken")
        except UserError as error:
            said.append(str(error))
    return [*found, said]


@pytest.mark.long
def test_seats_follow_from_the_mesh_and_partly_sharded_models_are_refused() -> None:
    ranks = launch_once(seats, 4)
    for rank, (sharded, hybrid, said) in enumerate(ranks):
        row = rank // 2
        assert sharded[0].place == WorkerPlace(shard=rank % 2, shards=2) and sharded[0].members == (2 * row, 2 * row + 1)
        assert hybrid[0].place == WorkerPlace(rank % 2, 2, row, 2) and hybrid[0].replicas == (rank % 2, rank % 2 + 2)
        words = ["sharded: a worker's ranks", "they are one worker", "worker_devices 4", "exchange hierarchical", "one worker"]
        assert all(word in text for word, text in zip(words, said, strict=False)), said
        assert "ranks of one worker" in said[5]
    elements = sum(prod(p.shape) for p in oracle.network().parameters())
    assert sum(hybrid[1] for _, hybrid, _ in ranks) == elements and sum(s[1] for s, _, _ in ranks) == 2 * elements
