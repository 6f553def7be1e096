"""States of sharded workers: continued bit for bit, on other numbers of workers, and in workers of another shape."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import local_oracle as oracle
import paceline
from distributed import launch
from paceline.errors import UserError
from paceline.training.attach.local.worker_ranks import ShardPart, WorkerPlace
from paceline.training.attach.local.worker_state import of_place, written_place
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec

LOCAL: dict[str, Any] = {"sync_every": 4, "fragments": 2, "sync_delay": 1, "residual_decay": 0.9}


def attached(rank: int, workers: int, rows: int, columns: int) -> Any:
    """Workers of ``rows`` copies and ``columns`` shards, with a seed for each."""
    devices = rows * columns
    mesh = init_device_mesh("cpu", (workers // devices, rows, columns), mesh_dim_names=("worker", "copy", "shard"))
    model = oracle.network(rank // devices)
    if devices > 1:
        fully_shard(model, mesh=mesh["copy", "shard"] if rows > 1 else mesh["shard"])
    sync = paceline.attach_local(model, "topk", **LOCAL)
    return model, oracle.optimizer("sgd", model), sync


def flat(model: Any) -> np.ndarray:
    values = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([v.detach().reshape(-1) for v in values]).numpy()


def train(rank: int, workers: int, folder: str, rows: int, columns: int) -> list[np.ndarray]:
    """Save after 6 of 10 steps, in files and with torch.distributed.checkpoint, while a mean waits to be applied."""
    model, optimizer, sync = attached(rank, workers, rows, columns)
    for number, x in enumerate(oracle.samples(rank, 10), start=1):
        oracle.local_step(model, optimizer, x)
        sync.step()
        if number == 6:
            torch.save(sync.state_dict(), Path(folder) / f"{rank}.pt")
            with pytest.raises(UserError, match="under one name"):
                dcp.save({"local": sync}, checkpoint_id=Path(folder) / "first rank only")
            packed = io.BytesIO()
            torch.save(sync.state_dict(), packed)
            dcp.save({f"local {rank}": packed.getvalue()}, checkpoint_id=Path(folder) / "dcp")
            with sync.shared_weights():
                shared = flat(model)
    own = flat(model)
    sync.finish()
    return [shared, own, flat(model)]


def go_on(rank: int, workers: int, folder: str, rows: int, columns: int, by: str) -> list[np.ndarray]:
    model, optimizer, sync = attached(rank, workers, rows, columns)
    if by == "dcp":
        state = {f"local {rank}": b""}
        dcp.load(state, checkpoint_id=Path(folder) / "dcp")
        sync.load_state_dict(torch.load(io.BytesIO(state[f"local {rank}"]), weights_only=False))
    else:
        files = [Path(folder) / f"{rank}.pt"] if by == "own" else sorted(Path(folder).glob("*.pt"))
        sync.load_state_dict([torch.load(file, weights_only=False) for file in files])
    with sync.shared_weights():
        shared = flat(model)
    for x in oracle.samples(rank, 10)[6:]:
        oracle.local_step(model, optimizer, x)
        sync.step()
    own = flat(model)
    sync.finish()
    return [shared, own, flat(model)]


@pytest.mark.long
@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (2, 1), (1, 3), (2, 2)])
def test_a_run_continues_bit_for_bit(tmp_path: Path, rows: int, columns: int) -> None:
    ranks = 2 * rows * columns
    before = launch(train, ranks, folder=str(tmp_path), rows=rows, columns=columns)
    for by in ("own", "all") if (rows, columns) != (1, 2) else ("own", "all", "dcp"):
        after = launch(go_on, ranks, folder=str(tmp_path), rows=rows, columns=columns, by=by)
        for old, new in zip(before, after, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(old, new, strict=True)), by


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "rows", "columns"), [(2, 1, 1), (6, 1, 3), (8, 2, 2), (4, 2, 1)])
def test_workers_of_another_shape_continue(tmp_path: Path, ranks: int, rows: int, columns: int) -> None:
    """Two workers of 1x2 ranks become two of another shape, with the same weights of each worker."""
    before = launch(train, 4, folder=str(tmp_path), rows=1, columns=2)
    after = launch(go_on, ranks, folder=str(tmp_path), rows=rows, columns=columns, by="all")
    for shared, _, ended in after:
        np.testing.assert_array_equal(shared, before[0][0])
        np.testing.assert_array_equal(ended, after[0][2])


@pytest.mark.long
def test_another_number_of_workers_begins_with_the_mean(tmp_path: Path) -> None:
    launch(train, 4, folder=str(tmp_path), rows=1, columns=2)
    after = launch(go_on, 6, folder=str(tmp_path), rows=1, columns=2, by="all")
    assert all(np.array_equal(after[0][2], ended) for _, _, ended in after)


def test_states_of_another_shape_are_joined_and_divided() -> None:
    """Two shards of rows become one, then two copies."""
    spec, values = TensorSpec("w", (5, 2), 0), torch.arange(10.0)
    shards = [ShardPart(spec, (3, 2), (0, 0), 0, 6), ShardPart(spec, (2, 2), (3, 0), 0, 4)]
    states = [
        {
            "rank": 0,
            "workers": 1,
            "place": written_place(WorkerPlace(shard=k, shards=2), [part]),
            **{kind: {"w": values[6 * k : 6 * k + 6].clone()} for kind in ("anchor", "outer_momentum", "weights")},
            "feedback": {"residual": {"w": values[6 * k : 6 * k + 6].clone()}, "velocity": {}},
            "pending": {"fragment": 0, "mean": values[6 * k : 6 * k + 6].clone()},
            "fragment_tensors": [["w"]],
        }
        for k, part in enumerate(shards)
    ]
    whole = ShardPart(spec, (5, 2), (0, 0), 5, 10)
    (joined,) = of_place(states, WorkerPlace(copy=1, copies=2), {"w": whole})
    assert all(joined[kind]["w"].tolist() == values.tolist() for kind in ("anchor", "weights"))
    assert joined["feedback"]["residual"]["w"].tolist() == [5, 6, 7, 8, 9]
    assert joined["pending"]["mean"].tolist() == values.tolist()
    with pytest.raises(UserError, match="give load_state_dict the states of all 2 ranks"):
        of_place(states[:1], WorkerPlace(copy=1, copies=2), {"w": whole})
    with pytest.raises(UserError, match="the state is of shard 0, copy 0; this rank has 1, 0"):
        of_place(states[:1], WorkerPlace(shard=1, shards=2), {"w": shards[1]})
