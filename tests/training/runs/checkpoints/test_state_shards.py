"""Rows of shared-out tensors: any rows of any shards are the whole's, gaps are named, one replica's shards are enough."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from distributed import launch_once
from paceline.training.runs.checkpoints.state_shards import SharedTensor, as_sharded, joined, rows_of, whole, without_shards

SHAPES = ((7, 3), (1,), (2, 5), (4,), (6, 0), (0, 3))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_any_rows_are_those_of_the_whole(sizes: list[int], data: st.DataObject) -> None:
    total = torch.randn(sum(sizes), 2)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    pieces = [(total[a : a + n], a, (sum(sizes), 2)) for a, n in zip(starts, sizes, strict=True)]
    shared = SharedTensor(data.draw(st.permutations(pieces)))
    first = data.draw(st.integers(0, sum(sizes)))
    end = data.draw(st.integers(first, sum(sizes)))
    assert torch.equal(shared.rows(first, end), total[first:end]) and torch.equal(shared.whole(), total)
    if len(total):
        assert shared.whole().data_ptr() != total.data_ptr()


@pytest.mark.parametrize(
    "pieces",
    [
        [(torch.zeros(2, 3), 0, (5, 3)), (torch.zeros(2, 3), 3, (5, 3))],
        [(torch.zeros(2, 3), 0, (5, 3)), (torch.zeros(2, 3), 2, (5, 3))],
        [(torch.zeros(3, 3), 0, (5, 3)), (torch.zeros(3, 3), 2, (5, 3))],
        [(torch.zeros(2, 3), 0, (4, 3)), (torch.zeros(2, 4), 2, (4, 3))],
        [(torch.zeros(2, 3), 0, (4, 3)), (torch.zeros(2, 3), 2, (5, 3))],
        [(torch.zeros(2, 3), 0, (4, 3)), (torch.zeros(2, 3, dtype=torch.float64), 2, (4, 3))],
        [(torch.zeros(2, 4), 0, (2, 3))],
        [(torch.zeros(0, 3), 0, (2, 3))],
    ],
    ids=["a gap", "an end that lacks", "rows twice", "other columns", "two wholes", "two types", "another shape", "empty"],
)
def test_rows_that_are_no_tensor_are_named(pieces: list[Any]) -> None:
    with pytest.raises(ValueError, match=rf"rows .* are no tensor of the shape {re.escape(str(pieces[0][2]))}"):
        SharedTensor(pieces)


def states(rank: int, workers: int) -> dict[str, Any]:
    """One state in shards of all ranks, in two copies of two shards, and back in each from the other."""
    torch.manual_seed(5)
    wholes = {str(shape): torch.randn(shape) for shape in SHAPES}
    found: dict[str, Any] = {}
    meshes = {
        "all": (init_device_mesh("cpu", (workers,)), [Shard(0)]),
        "copies": (init_device_mesh("cpu", (2, workers // 2), mesh_dim_names=("replicate", "shard")), [Replicate(), Shard(0)]),
    }
    placed: dict[str, dict[str, DTensor]] = {}
    for name, (mesh, placements) in meshes.items():
        placed[name] = {key: distribute_tensor(value, mesh, placements) for key, value in wholes.items()}
        alike = distribute_tensor(torch.ones(3), mesh, [Replicate()] * mesh.ndim)
        state = {"model": placed[name], "optimizer": {"state": {0: {"a": placed[name]["(7, 3)"], "step": 4}}, "groups": [1]}}
        state["model"] = {**placed[name], "buffer": torch.ones(2), "alike": alike}
        found[name] = without_shards(state), rows_of(state)
    everyone: list[Any] = [None] * workers
    torch.distributed.all_gather_object(everyone, found)
    result: dict[str, Any] = {"found": found, "wholes": wholes, "moved": []}
    for source, target, ranks in (("all", "copies", workers), ("copies", "all", workers // 2), ("all", "all", workers)):
        parts = [every[source][1] for every in everyone[:ranks]]
        again = joined(found[source][0], parts)
        result["whole"] = whole(again)
        for key, like in placed[target].items():
            local = as_sharded(again["model"][key], like)
            same = torch.equal(local.to_local(), like.to_local()) and local.placements == like.placements
            result["moved"].append(same and (local.shape, local.stride()) == (like.shape, like.stride()))
            of_whole = as_sharded(wholes[key], like)
            result["moved"].append(torch.equal(of_whole.to_local(), like.to_local()))
    result["as it is"] = as_sharded(torch.tensor(3.0), placed["all"]["(7, 3)"]), as_sharded(2, placed["all"]["(7, 3)"])
    return result


def test_a_state_in_shards_is_whole_again_and_moves_to_other_meshes() -> None:
    for rank, result in enumerate(launch_once(states, 4)):
        assert all(result["moved"]) and len(result["moved"]) == 3 * 2 * len(SHAPES)
        for key, value in result["wholes"].items():
            assert torch.equal(result["whole"]["model"][key], value), (rank, key)
        assert result["whole"]["optimizer"]["state"][0]["step"] == 4 and result["whole"]["optimizer"]["groups"] == [1]
        assert result["as it is"] == (torch.tensor(3.0), 2)


def test_what_is_alike_and_what_is_shared_out_are_apart() -> None:
    """Two rows of seven each, but one for the last rank; a tensor of one row is the first rank's."""
    for rank, result in enumerate(launch_once(states, 4)):
        alike, rows = result["found"]["all"]
        assert alike == {
            "model": {"buffer": alike["model"]["buffer"], "alike": alike["model"]["alike"]},
            "optimizer": {"state": {0: {"step": 4}}, "groups": [1]},
        }
        assert type(alike["model"]["alike"]) is torch.Tensor
        own, first, shape = rows["model"]["(7, 3)"]
        assert (len(own), first, shape) == ((2, 2, 2, 1)[rank], 2 * rank, (7, 3))
        assert [len(rows["model"]["(1,)"][0]), rows["model"]["(1,)"][1]] == [int(rank == 0), min(rank, 1)]
        assert list(rows["optimizer"]) == ["state"] and list(rows["optimizer"]["state"][0]) == ["a"]
