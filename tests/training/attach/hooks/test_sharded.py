"""The hook of an FSDP2 model, on two to four processes: the gradients of PyTorch's own exchange, with everything that goes
with it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import sharded_cases
import sharded_models
from distributed import launch_once
from paceline.strategy import Strategy
from paceline.training.attach.exchange_thread import Background, promise
from paceline.training.attach.hooks.sharded import MOST_QUEUED, ShardedHook
from sharded_models import BETWEEN_COPIES, CODECS, STEPS, exchanged, usual

Grads = dict[str, torch.Tensor]


def error(found: Grads, wanted: Grads) -> float:
    """Largest difference over the largest magnitude of its tensor."""
    assert found.keys() == wanted.keys()
    return max(float((found[n] - wanted[n]).abs().max() / wanted[n].abs().max()) for n in wanted)


EVERYDAY = {
    2: ("torch", "dense", "bf16", *CODECS),
    3: ("torch", "dense", "int8 sharded", "inceptionn-scaled ring", "topk ring"),
    4: ("torch", "int8 sharded", "nodes", *BETWEEN_COPIES),
}
"""Exchanges of each number of ranks that run every day."""


def ranks(workers: int, name: str) -> list[Any]:
    """Return what each rank has found. Exchanges of every day share a launch, and the others."""
    everyday = EVERYDAY[workers]
    others = tuple(one for one in ("torch", "dense", "bf16", *CODECS) if one not in everyday)
    names = everyday if name in everyday else others
    return [result[name] for result in launch_once(exchanged, workers, names=names)]


def with_torch(workers: int, name: str, torch_name: str = "torch") -> Iterable[tuple[Any, Any]]:
    """Return what each rank has found, next to what PyTorch gives it."""
    return zip(ranks(workers, name), ranks(workers, torch_name), strict=True)


def triples(exchanges: Iterable[str], compressions: Iterable[str]) -> list[Any]:
    """Return exchanges and compressions on two to four ranks."""
    return [
        pytest.param(
            compression,
            exchange,
            workers,
            marks=[] if f"{compression} {exchange}" in EVERYDAY[workers] else [pytest.mark.full],
        )
        for compression in compressions
        for exchange in exchanges
        for workers in (2, 3, 4)
    ]


@pytest.mark.everyday("2", "3")
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_dense_is_pytorchs_sum(workers: int) -> None:
    """Of two numbers bit for bit; gloo adds more of them in another order."""
    for dense, alone in with_torch(workers, "dense"):
        for found, wanted in zip(dense["gradients"], alone["gradients"], strict=True):
            assert error(found, wanted) <= (0 if workers == 2 else workers * 2.0**-24)


LARGEST = {"int8": 2 / 127, "inceptionn-scaled": 2.0**-6, "bf16": 2.0**-8}
"""Error of one encoding over the largest magnitude of its block: QSGD's step is 1/127, at most one up or down; INCEPTIONN's
bound is 2^-6."""


@pytest.mark.parametrize(
    ("compression", "exchange", "workers"),
    [*triples(["sharded", "ring"], ["int8", "inceptionn-scaled"]), ("bf16", "", 2)],
)
def test_codecs_with_a_bound_keep_it(compression: str, exchange: str, workers: int) -> None:
    """The mean of N gradients, each with an error of at most the bound of its own largest magnitude. That is at most N times
    the largest of the mean here, since samples of different ranks partly cancel; a ring adds an encoding a hop."""
    for found, wanted in with_torch(workers, f"{compression} {exchange}".strip()):
        first = error(found["gradients"][0], wanted["gradients"][0])
        assert 0 < first < LARGEST[compression] * 2 * workers


@pytest.mark.parametrize(("compression", "exchange", "workers"), triples(["sharded", "ring"], ["terngrad", "sign", "topk"]))
def test_dense_tensors_are_exact_and_ranks_agree(compression: str, exchange: str, workers: int) -> None:
    results = ranks(workers, f"{compression} {exchange}")
    found, wanted = results[0]["gradients"], ranks(workers, "torch")[0]["gradients"]
    dense = results[0]["dense"]
    assert dense if compression == "terngrad" else "4.bias" in dense
    for step in range(STEPS):
        for name in dense:
            torch.testing.assert_close(found[step][name], wanted[step][name], rtol=1e-5, atol=1e-7)
        assert error(found[step], wanted[step]) > 0.05  # the others are coarse
        for other in results[1:]:
            assert all(torch.equal(found[step][n], v) for n, v in other["gradients"][step].items())


def test_where_nobody_names_an_exchange_it_is_the_one_of_a_strategy() -> None:
    meshes = {"over all": {"sharding": "zero3"}, "between copies": {"sharding": "zero3", "shard_devices": 2}}
    for result in launch_once(usual, 4):
        assert result == {
            (mesh, name): Strategy.of(
                world_size=4, global_batch_size=4, compression=name, **choices
            ).gradient_exchange.exchange.name
            for mesh, choices in meshes.items()
            for name in ("dense", "topk", "int8")
        }


def test_between_nodes_and_between_replicas() -> None:
    """Dense inside, compressed between: of an FSDP2 mesh in nodes of two, and of HSDP's two replicas of two shards."""
    for found, wanted in with_torch(4, "nodes"):
        assert error(found["gradients"][0], wanted["gradients"][0]) < 8 * LARGEST["int8"]
    for found, wanted in with_torch(4, "hsdp dense", "hsdp torch"):
        assert all(error(one, other) < 1e-6 for one, other in zip(found["gradients"], wanted["gradients"], strict=True))
    for exchange in ("sharded", "ring", "allgather"):
        for found, wanted in with_torch(4, f"hsdp int8 {exchange}", "hsdp torch"):
            assert 0 < error(found["gradients"][0], wanted["gradients"][0]) < 0.07
    for nodes, over_all in zip(ranks(4, "nodes"), ranks(4, "int8 sharded"), strict=True):
        assert nodes["sent"][0] > over_all["sent"][0]  # its first leg is dense


@pytest.mark.long
@pytest.mark.everyday("2")
@pytest.mark.parametrize("workers", [2, 3])
def test_it_lives_with_whatever_else_an_fsdp2_script_does(workers: int) -> None:
    """Accumulation, clipping, mixed precision, offload, checkpoints of activations, compiled, tied, frozen, ZeRO-2, scaler,
    LARS, LAMB, unused layers: as without a hook."""
    for result in launch_once(sharded_cases.composed, workers):
        assert len(result) == 15
        for name, (alone, attached) in result.items():
            assert error(attached, alone) < (1e-2 if name == "reduced_in_bf16" else 1e-6), name


@pytest.mark.long
def test_tensor_parallel_ranks_exchange_on_the_data_dimension_alone() -> None:
    results = launch_once(sharded_models.tensor_parallel, 4)
    assert [result["ranks"] for result in results] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    for rank, result in enumerate(results):
        assert error(result["dense"], result["torch"]) < 1e-6
        assert 0 < error(result["int8"], result["torch"]) < 0.04
        assert f"2.0.weight@{rank % 2}" in result["labels"] and "0.weight" in result["labels"]


def expected_bytes(compressed: int, dense: int, tensors: int, workers: int) -> int:
    """Of int8's push, by hand: a header of 32 bytes, a scale of 4 a block of 1024, a byte an element; fp32 with its header;
    the flag's all-reduce, if anything is in int8."""
    message = lambda n: min(32 + 4 * -(-n // 1024) + n, 32 + 4 * n) if n else 0  # noqa: E731
    fp32 = 32 + 4 * dense if dense else 0
    flag = -(-2 * (workers - 1) * 4 // workers) if compressed else 0
    return (workers - 1) * (message(compressed) + fp32) + flag


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_bytes_are_those_of_the_wire_format(workers: int) -> None:
    """Units of (61 x 31, 61), (43 x 61, 43, 47 x 43, 47) and (7 x 47, 7): rows padded to whole shards; weights gathered
    forward and, but for the root, backward. A shard begins with a block and ends with one; below a quarter of a block it is
    dense, as all biases are."""
    shard = lambda rows, columns: -(-rows // workers) * columns  # noqa: E731
    units = [[(61, 31), (61, 1)], [(43, 61), (43, 1), (47, 43), (47, 1)], [(7, 47), (7, 1)]]
    scattered = gathered = 0
    for unit in units:
        shards = [shard(*t) for t in unit]
        dense = sum(n for n in shards if 4 * n < 1024)
        compressed = sum(1024 * -(-n // 1024) for n in shards if 4 * n >= 1024)
        scattered += expected_bytes(compressed, dense, 0, workers)
        gathered += (1 if unit is units[-1] else 2) * (workers - 1) * 4 * sum(shards)
    assert [result["sent"] for result in ranks(workers, "int8 sharded")] == [[scattered + gathered] * STEPS] * workers
    if workers < 4:
        dense = gathered + (workers - 1) * gathered_once(units, shard)
        assert [result["sent"] for result in ranks(workers, "dense")] == [[dense] * STEPS] * workers


def gathered_once(units: Any, shard: Any) -> int:
    """Bytes of the fp32 shards of all units."""
    return sum(4 * shard(*t) for unit in units for t in unit)


@pytest.mark.long
@pytest.mark.everyday("2")
@pytest.mark.parametrize("workers", [2, 4])
def test_a_model_on_the_meta_device_may_be_attached_before_it_gets_its_weights(workers: int) -> None:
    """FSDP2's usual start for large models: to the bit what attaching behind ``to_empty`` gives."""
    for result in launch_once(sharded_models.from_meta, workers):
        for name, (alone, from_meta) in result.items():
            assert alone.keys() == from_meta.keys()
            assert all(torch.equal(alone[label], from_meta[label]) for label in alone), name


@pytest.mark.long
def test_replicas_that_diverged_are_named_on_every_rank() -> None:
    """Ranks 0 and 2 hold one shard, 1 and 3 the other; those that hold equal ones are told too."""
    results = launch_once(sharded_models.diverged, 4)
    one = "weights of rank 2 differ from those of rank 0"
    both = f"{one}; weights of rank 3 differ from those of rank 1"
    assert results == [{"one": ["alike", one, one], "two": ["alike", both, both]}] * 4


@pytest.mark.long
def test_replicas_are_added_up_only_when_fsdp2_asks() -> None:
    """``set_requires_all_reduce``: PyTorch's gradients, and one exchange between the replicas for all four passes."""
    for result in launch_once(sharded_models.collected, 4):
        assert error(result["dense"], result["torch"]) < 1e-6
        assert 0 < error(result["int8"], result["torch"]) < 0.07
        for name in ("dense", "int8"):
            assert result[f"{name} steps"] == [0, 0, 0, 1]
            first, second, third, last = result[f"{name} sent"]
            assert first == second == third < last
        assert "2.0.weight and others of its unit: some got no gradient" in result["unused"]


def test_a_slow_exchange_holds_the_gradients_of_two_units_at_most() -> None:
    """The backward pass waits with the next unit until the exchange before it has ended."""
    hook, rows, alive, most = ShardedHook.__new__(ShardedHook), 64, set[int](), []
    hook._queued = deque()
    work: Any = SimpleNamespace(check=lambda: None)

    def submit(task: Any, waiting: Any) -> None:
        def run() -> None:
            time.sleep(0.002)
            task()
            waiting[0][1].set_result(waiting[0][0])

        background.submit(run)

    background, work.submit = Background(hook, "slow"), submit
    hook._work = work
    for unit in range(12):
        alive.add(unit)
        most.append(len(alive))
        hook._wait_for_room()
        future = promise(output := torch.zeros(rows))
        work.submit(partial(alive.discard, unit), [(output, future)])
        hook._queued.append(future)
    assert max(most) <= MOST_QUEUED + 1 == 2
