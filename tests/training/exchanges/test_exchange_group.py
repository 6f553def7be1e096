"""What an attached model exchanges: the numbers bit for bit, the bytes exactly, on 2, 3 and 4 workers."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import oracle
from distributed import launch_once
from paceline.strategy import COMPRESSIONS, OPTIMIZERS, Exchange, Strategy
from paceline.training.attach.attach import attach, wrap
from paceline.training.attach.consistency import ReplicasDiverged
from paceline.training.exchanges.wires.collectives import ALL_GATHER, REDUCE_SCATTER
from paceline.training.runs.data import Dataset
from paceline.training.runs.loop import Trainer, make_optimizer
from strategy_toys import exchanges_of, owned_bounds

PER_NODE = {2: 2, 3: 1, 4: 2}
"""Ranks of a node, for hierarchical: one node, nodes of one rank, and two nodes of two."""
TRAINED = [name for name, optimizer in OPTIMIZERS.items() if optimizer.trained]
"""Optimizers that ``train`` runs."""
WAYS = [(c.name, way) for c in COMPRESSIONS.values() for way in exchanges_of(c)]
ONE, SEVERAL = 1 << 20, 5000
"""Elements of a chunk: all that the network has, and a fifth of it."""
CASES = [(c, way, SEVERAL, oracle.CLIP) for c, way in WAYS]
CASES += [(c, way, ONE, oracle.CLIP) for c, way in WAYS if c == "terngrad"]
CASES += [("terngrad", "sharded", SEVERAL, clip) for clip in (None, 0.75)]
TERNGRAD = [case for case in CASES if case[0] == "terngrad"]
ONE_WAY = {
    "bf16": "allreduce",
    "bf16-coded": "sharded",
    "inceptionn": "ring",
    "inceptionn-scaled": "parameter_server",
    "int8": "sharded",
    "int4": "ring",
    "fp8": "ring",
    "sign": "allgather",
    "topk": "allgather",
    "powersgd": "allreduce",
}
"""An exchange of each further compression; over nodes all of them train (``several_epochs_each``)."""
CASES_OF = {
    "every": CASES,
    "sample": [case for case in CASES if case[0] in ("dense", "terngrad") or case[1] == "hierarchical"],
    "daily": [case for case in CASES if case[0] in ("dense", "terngrad") or case[1] == ONE_WAY[case[0]]],
}
RUNS = pytest.mark.parametrize(
    ("workers", "cases"),
    [(3, "daily"), *(pytest.param(*others, marks=pytest.mark.full) for others in ((4, "sample"), (2, "every"), (3, "every")))],
)
STEPS = 2
SEED = 2**40 + 7


class Odd(nn.Module):
    """Tensors of odd sizes, some below the rule's 1024 elements, one whose gradient is zero; wide means over 1 MiB."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(37, 53)
        self.wide = nn.Linear(53, width)
        self.narrow = nn.Linear(width, 17)
        self.dead = nn.Parameter(torch.zeros(1027))
        self.last = nn.Linear(17, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.wide(torch.tanh(self.first(x))))
        return self.last(torch.tanh(self.narrow(x))) + 0 * self.dead.sum()


def strategy(workers: int, compression: str, way: str, optimizer: str = "momentum") -> Strategy:
    return Strategy.of(world_size=workers, global_batch_size=24, compression=compression, exchange=way, optimizer=optimizer)


def odd_model() -> Odd:
    torch.manual_seed(5)
    return Odd(301)


def odd_batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(100 * step + rank)
    # Ranks differ in scale, so that sharing the largest scaler matters.
    return torch.randn(6, 37, generator=g) * (1 + rank), torch.randint(0, 7, (6,), generator=g)


class Counted:
    """Bytes that this rank hands to other ranks, counted where ``torch.distributed`` is called."""

    def __init__(self) -> None:
        self.bytes = 0
        counted = {"all_reduce": self.all_reduce, "batch_isend_irecv": self.batch_isend_irecv}
        for name, count in {**counted, REDUCE_SCATTER: self.reduce_scatter, ALL_GATHER: self.all_gather}.items():
            setattr(dist, name, self.counting(count, getattr(dist, name)))

    def counting(self, count: Any, call: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.bytes += count(dist.get_world_size(kwargs.get("group")), dist.get_rank(kwargs.get("group")), *args)
            return call(*args, **kwargs)

        return counted

    def all_reduce(self, n: int, rank: int, tensor: torch.Tensor) -> int:
        return -(-2 * (n - 1) * tensor.nbytes // n)  # as a ring

    def batch_isend_irecv(self, n: int, rank: int, operations: list[Any]) -> int:
        return sum(op.tensor.nbytes for op in operations if op.op is dist.isend)

    def reduce_scatter(self, n: int, rank: int, out: torch.Tensor, given: torch.Tensor) -> int:
        return given.nbytes - out.nbytes

    def all_gather(self, n: int, rank: int, out: torch.Tensor, given: torch.Tensor) -> int:
        return out.nbytes - given.nbytes

    def take(self) -> int:
        taken, self.bytes = self.bytes, 0
        return taken


def backward(model: nn.Module, rank: int, step: int) -> dict[str, np.ndarray]:
    x, y = odd_batch(rank, step)
    nn.functional.cross_entropy(model(x), y).backward()
    module = getattr(model, "module", model)
    return {name: p.grad.numpy().copy() for name, p in module.named_parameters() if p.grad is not None}


def one_step_each(rank: int, workers: int, cases: str) -> dict[str, Any]:
    """Gradients before and after every kind of exchange, and the bytes of each."""
    counted = Counted()
    local = [backward(odd_model(), rank, step) for step in range(STEPS)]
    results: dict[Any, Any] = {"stock": backward(DDP(odd_model()), rank, 0)}
    for compression, way, chunk, clip in CASES_OF[cases]:
        Exchange.chunk_elements = chunk
        model = wrap(odd_model(), strategy(workers, compression, way))
        hook = attach(model, compression, exchange=way, seed=SEED, clip=clip, ranks_per_node=nodes(way, workers))
        seen, sent, metered = [], [], []
        for step in range(STEPS):
            model.zero_grad()
            hook.meter.begin_step()
            counted.take()
            seen.append(backward(model, rank, step))
            sent.append(counted.take())
            metered.append(hook.meter.sent_bytes)
        results[compression, way, chunk, clip] = {"seen": seen, "sent": sent, "metered": metered}
    return {"local": local, "cases": results}


def nodes(way: str, workers: int) -> int | None:
    return PER_NODE[workers] if way == "hierarchical" else None


EPOCHS_OF = {"sample": [(c, exchanges_of(COMPRESSIONS[c])[-1]) for c in COMPRESSIONS] + [("terngrad", "sharded")]}
"""In the sample: each compression over nodes, if it can."""
EPOCHS_OF["rest"] = [way for way in WAYS if way not in EPOCHS_OF["sample"]]
EPOCHS = pytest.mark.parametrize(("workers", "ways"), [(3, "sample"), pytest.param(3, "rest", marks=pytest.mark.full)])


def several_epochs_each(rank: int, workers: int, ways: str) -> dict[str, Any]:
    """A digest of the weights after every epoch of every compression and exchange, and of every optimizer.

    An optimizer sees the means alone, the same whatever brought them: under all of them only one exchange.
    """
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(60, 37, generator=g), torch.randint(0, 7, (60,), generator=g)
    data = Dataset("toy", x[:50], y[:50], x[50:], y[50:])  # two steps an epoch
    digests: dict[str, Any] = {}
    Exchange.chunk_elements = 2 * SEVERAL
    for compression, way in EPOCHS_OF[ways]:
        for optimizer in TRAINED if (compression, way) == ("dense", "hierarchical") else ["momentum"]:
            s = strategy(workers, compression, way, optimizer)
            model = wrap(odd_model(), s)
            hook = attach(model, compression, exchange=way, seed=1, ranks_per_node=nodes(way, workers))
            trainer = Trainer(
                model, hook, make_optimizer(optimizer, model.named_parameters(), 0.01), data, s, 1, torch.device("cpu")
            )
            trainer.settle_buckets()
            after = []
            for epoch in range(2):
                trainer.train_epoch(epoch)
                trainer.check_replicas()
                flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
                assert bool(flat.isfinite().all())
                after.append(hashlib.sha256(flat.numpy().tobytes()).hexdigest())
            digests[f"{compression}, {way}, {optimizer}"] = after
    if rank == workers - 1:
        with torch.no_grad():
            list(model.parameters())[-1][3] *= 1 + 2**-23
    try:
        trainer.check_replicas()
    except ReplicasDiverged as error:
        return {"digests": digests, "drift": str(error)}
    return {"digests": digests, "drift": "not noticed"}


PACKED = ("first.weight", "wide.weight", "narrow.weight", "dead")
"""Neither of the last layer nor of fewer than 1024 elements."""


def draws_at() -> dict[str, int]:
    """Where the draws of each compressed tensor begin: one after the other in model order, from the first one's index."""
    where: dict[str, int] = {}
    offset, at = 0, None
    for name, p in odd_model().named_parameters():
        if name in PACKED:
            at = offset if at is None else at
            where[name] = at
            at += p.numel()
        offset += p.numel()
    return where


def is_mean(result: np.ndarray, gradients: list[np.ndarray]) -> bool:
    """Whether it is the mean, added in whatever order."""
    exact = np.mean(gradients, axis=0, dtype=np.float64)
    room = len(gradients) * 2.0**-24 * np.sum(np.abs(gradients), axis=0, dtype=np.float64)
    return bool((np.abs(result - exact) <= room + 1e-38).all())


@RUNS
@pytest.mark.parametrize("case", TERNGRAD, ids=str)
def test_terngrad_leaves_the_plain_formula_bit_for_bit(workers, cases, case):
    ranks = launch_once(one_step_each, workers, cases=cases)
    per_node = PER_NODE[workers] if case[1] == "hierarchical" else 1
    at = draws_at()
    sizes = {name: p.numel() for name, p in odd_model().named_parameters()}
    first, total = min(at.values()), sum(sizes[name] for name in PACKED)
    share = owned_bounds(total, "sharded", per_node)[0][1]
    for step in range(STEPS):
        for name, own in ranks[0]["local"][step].items():
            gradients = [r["local"][step][name].reshape(-1) for r in ranks]
            results = [r["cases"][case]["seen"][step][name].reshape(-1) for r in ranks]
            assert all(np.array_equal(result, results[0]) for result in results), name
            if name not in PACKED or per_node == workers:
                assert is_mean(results[0], gradients), name
                continue
            # With nodes: their sums, cut where the ranks of a node share them.
            nodes = [sum(gradients[k : k + per_node][1:], gradients[k]) for k in range(0, workers, per_node)]
            begin = at[name] - first
            cuts = sorted({begin, begin + own.size, *(c for c in range(0, total, share) if begin < c < begin + own.size)})
            parts = [(start, slice(start - begin, stop - begin)) for start, stop in itertools.pairwise(cuts)]
            scale = max(oracle.bound(g[part], case[3]) for _, part in parts for g in nodes)  # each rank clips its share
            for start, part in parts:
                shares = [g[part] for g in nodes]
                expected = oracle.terngrad_mean(shares, SEED, step, first + start, case[3], workers, scale)
                assert np.array_equal(results[0][part], expected), (name, step)


@RUNS
def test_every_exchange_of_terngrad_gives_the_same_bits(workers, cases):
    for r in launch_once(one_step_each, workers, cases=cases):
        alike = [r["cases"][case]["seen"] for case in TERNGRAD if case[3] == oracle.CLIP and case[1] != "hierarchical"]
        assert len(alike) == 8
        for step in range(STEPS):
            for name in PACKED:
                assert all(np.array_equal(seen[step][name], alike[0][step][name]) for seen in alike), name


@RUNS
def test_every_exchange_of_dense_gives_the_mean_and_bf16_nearly(workers, cases):
    ranks = launch_once(one_step_each, workers, cases=cases)
    for compression, way, chunk, clip in CASES_OF[cases]:
        if compression not in ("dense", "bf16"):
            continue
        for step in range(STEPS):
            for name in ranks[0]["local"][step]:
                own = [r["local"][step][name] for r in ranks]
                results = [r["cases"][compression, way, chunk, clip]["seen"][step][name] for r in ranks]
                assert all(np.array_equal(r, results[0]) for r in results)
                size, exact = np.mean(np.abs(own), axis=0), np.mean(own, axis=0, dtype=np.float64)
                assert compression == "bf16" or is_mean(results[0], own), (way, name)
                assert (np.abs(results[0] - exact) <= size * workers * 2.0**-7 + 1e-30).all(), (compression, way, name)


@RUNS
def test_dense_over_allreduce_has_the_bits_of_stock_ddp(workers, cases):
    for r in launch_once(one_step_each, workers, cases=cases):
        seen = r["cases"]["dense", "allreduce", SEVERAL, oracle.CLIP]["seen"][0]
        assert all(np.array_equal(seen[name], r["cases"]["stock"][name]) for name in seen)


@RUNS
def test_every_compression_and_exchange_leaves_the_same_bits_on_every_rank(workers, cases):
    ranks = launch_once(one_step_each, workers, cases=cases)
    for case in CASES_OF[cases]:
        for step in range(STEPS):
            for name, mine in ranks[0]["cases"][case]["seen"][step].items():
                assert np.isfinite(mine).all()
                assert all(np.array_equal(r["cases"][case]["seen"][step][name], mine) for r in ranks), (case, name)
        assert any(mine.any() for mine in ranks[0]["cases"][case]["seen"][0].values()), case


@RUNS
def test_the_meter_counts_the_bytes_at_the_collectives(workers, cases):
    for r in launch_once(one_step_each, workers, cases=cases):
        for case in CASES_OF[cases]:
            if case[0] != "powersgd":  # PyTorch's own hook sends
                assert r["cases"][case]["metered"] == r["cases"][case]["sent"], case
                assert min(r["cases"][case]["sent"]) > 0, case


@RUNS
def test_bytes_of_terngrad_over_shards_by_hand(workers, cases):
    # Chunks of 5000 elements in shards of whole 64; 2 bits out, bits(2N) back, 4 bytes an element where dense, 32 a message.
    def body(count: int, bits: int) -> int:
        return 4 * count if bits == 32 else -(-count // 8) * bits

    sizes = {name: p.numel() for name, p in odd_model().named_parameters()}
    packed, dense = sum(sizes[name] for name in PACKED), sum(n for name, n in sizes.items() if name not in PACKED)
    sent = [-(-2 * (workers - 1) * 4 * (len(PACKED) + 1) // workers)] * workers  # a flag and the scalers
    for total, push_bits, pull_bits in ((packed, 2, (2 * workers).bit_length()), (dense, 32, 32)):
        for start in range(0, total, SEVERAL):
            count = min(SEVERAL, total - start)
            shard = -(-count // (64 * workers)) * 64
            owned = [max(0, min(shard, count - rank * shard)) for rank in range(workers)]
            push, pull = ([32 + body(n, bits) if n else 0 for n in owned] for bits in (push_bits, pull_bits))
            for rank in range(workers):
                sent[rank] += sum(push) - push[rank] + (workers - 1) * pull[rank]
    for rank, r in enumerate(launch_once(one_step_each, workers, cases=cases)):
        assert r["cases"]["terngrad", "sharded", SEVERAL, oracle.CLIP]["sent"] == [sent[rank]] * STEPS


@EPOCHS
def test_replicas_are_bitwise_equal_after_every_epoch(workers, ways):
    ranks = launch_once(several_epochs_each, workers, ways=ways)
    assert len(ranks[0]["digests"]) == len(EPOCHS_OF[ways]) + (
        len(TRAINED) - 1 if ways == "sample" else 0
    )  # dense under all of them
    for r in ranks[1:]:
        assert r["digests"] == ranks[0]["digests"]
    assert all(first != second for first, second in ranks[0]["digests"].values())


@EPOCHS
def test_a_replica_that_drifts_by_one_bit_is_named_on_every_rank(workers, ways):
    for r in launch_once(several_epochs_each, workers, ways=ways):
        assert f"rank {workers - 1} differ from those of rank 0" in r["drift"]
