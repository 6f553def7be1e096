"""What an attached model exchanges: the numbers bit for bit, the bytes exactly, on 2, 3 and 4 workers."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import oracle
from distributed import launch_once
from paceline import hardware
from paceline.prediction import predict
from paceline.strategy import COMPRESSIONS, OPTIMIZERS, Strategy
from paceline.training.attach import CLIP, attach, wrap
from paceline.training.data import Dataset
from paceline.training.guards import ReplicasDiverged
from paceline.training.loop import Trainer, make_optimizer
from paceline.workload import Workload, trace

WORKERS = (2, 3, 4)
WAYS = [(c.name, way) for c in COMPRESSIONS.values() for way in c.exchanges]
CAPS = {"two small buckets": 16_384, "one bucket": 25 << 20, "one per tensor": 64, "as DDP": 0}
SMALL = [cap for cap in CAPS if cap != "as DDP"]
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


def strategy(workers: int, compression: str, way: str, cap: int = 0, optimizer: str = "momentum") -> Strategy:
    caps = {"first_bucket_bytes": cap, "bucket_bytes": cap} if cap else {}
    return Strategy(
        world_size=workers, global_batch_size=24, compression=compression, exchange=way, optimizer=optimizer, **caps
    )


def width(cap: str) -> int:
    """DDP's own buckets need more than 1 MiB before there are two."""
    return 5003 if cap == "as DDP" else 301


def odd_model(width: int) -> Odd:
    torch.manual_seed(5)
    return Odd(width)


def odd_batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(100 * step + rank)
    # Ranks differ in scale, so that sharing the largest scaler matters.
    return torch.randn(6, 37, generator=g) * (1 + rank), torch.randint(0, 7, (6,), generator=g)


def odd_workload(cap: str) -> Workload:
    return trace(odd_model(width(cap)), odd_batch(0, 0)[0], loss="cross_entropy")


class Counted:
    """Bytes that this rank hands to other ranks, counted where ``torch.distributed`` is called."""

    def __init__(self) -> None:
        self.bytes = 0
        reduce, exchange = dist.all_reduce, dist.all_to_all_single

        def all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            n = dist.get_world_size(kwargs.get("group"))
            self.bytes += -(-2 * (n - 1) * tensor.numel() * tensor.element_size() // n)
            return reduce(tensor, *args, **kwargs)

        def all_to_all_single(out: torch.Tensor, given: torch.Tensor, outs: Any, ins: list[int], group: Any = None) -> Any:
            assert given.dtype == torch.uint8 and sum(ins) == given.numel() and sum(outs) == out.numel()
            self.bytes += sum(size for rank, size in enumerate(ins) if rank != dist.get_rank(group))
            return exchange(out, given, outs, ins, group=group)

        dist.all_reduce, dist.all_to_all_single = all_reduce, all_to_all_single

    def take(self) -> int:
        taken, self.bytes = self.bytes, 0
        return taken


def backward(model: nn.Module, rank: int, step: int) -> dict[str, np.ndarray]:
    x, y = odd_batch(rank, step)
    nn.functional.cross_entropy(model(x), y).backward()
    module = getattr(model, "module", model)
    return {name: p.grad.numpy().copy() for name, p in module.named_parameters() if p.grad is not None}


def one_step_each(rank: int, workers: int) -> dict[str, Any]:
    """Gradients before and after every kind of exchange, and the bytes of each."""
    counted = Counted()
    local = {
        cap: [backward(odd_model(width(cap)), rank, step) for step in range(STEPS)] for cap in ("as DDP", "two small buckets")
    }
    cases = [(c, way, cap, CLIP) for c, way in WAYS for cap in ("as DDP", "two small buckets")]
    cases += [("terngrad", "sharded", cap, clip) for cap in SMALL for clip in (None, 0.75)]
    results = {}
    for compression, way, cap, clip in cases:
        model = wrap(odd_model(width(cap)), strategy(workers, compression, way, CAPS[cap]))
        hook = attach(model, compression, exchange=way, seed=SEED, clip=clip)
        backward(model, rank, 0)  # after the first step DDP fixes its buckets
        hook.step = 0
        seen, sent, metered = [], [], []
        for step in range(STEPS):
            model.zero_grad()
            hook.meter.begin_step()
            counted.take()
            seen.append(backward(model, rank, step))
            sent.append(counted.take())
            metered.append(hook.meter.sent_bytes)
        results[compression, way, cap, clip] = {"seen": seen, "sent": sent, "metered": metered}
    return {"local": local, "cases": results}


def several_epochs_each(rank: int, workers: int) -> dict[str, Any]:
    """A digest of the weights after every epoch of every compression, exchange and optimizer."""
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(140, 37, generator=g), torch.randint(0, 7, (140,), generator=g)
    data = Dataset("toy", x[:100], y[:100], x[100:], y[100:])
    digests: dict[str, Any] = {}
    for compression, way in WAYS:
        for optimizer in OPTIMIZERS if compression == "terngrad" else ["momentum"]:
            s = strategy(workers, compression, way, 16_384, optimizer)
            model = wrap(odd_model(101), s)
            hook = attach(model, compression, exchange=way, seed=1)
            trainer = Trainer(model, hook, make_optimizer(optimizer, model.parameters(), 0.01), data, s, 1, torch.device("cpu"))
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


def offsets(cap: str) -> dict[str, int]:
    start, found = 0, {}
    for name, p in odd_model(width(cap)).named_parameters():
        found[name] = start
        start += p.numel()
    return found


def local(ranks: list[Any], cap: str, step: int, name: str) -> list[np.ndarray]:
    """The gradient of every rank before the exchange."""
    return [r["local"]["as DDP" if cap == "as DDP" else "two small buckets"][step][name] for r in ranks]


def packed_names(cap: str) -> list[str]:
    """Neither of the last layer nor of fewer than 1024 elements."""
    return ["first.weight", "wide.weight", "narrow.weight", "dead", *(["wide.bias"] if cap == "as DDP" else [])]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("way", "cap", "clip"), [
    *[(way, cap, CLIP) for way in COMPRESSIONS["terngrad"].exchanges for cap in ("as DDP", "two small buckets")],
    *[("sharded", cap, clip) for cap in SMALL for clip in (None, 0.75)],
])  # fmt: skip
def test_terngrad_leaves_the_plain_formula_bit_for_bit(workers, way, cap, clip):
    ranks = launch_once(one_step_each, workers)
    for step in range(STEPS):
        for name, start in offsets(cap).items():
            gradients = local(ranks, cap, step, name)
            if name in packed_names(cap):
                flat = [g.reshape(-1) for g in gradients]
                expected = oracle.terngrad_mean(flat, SEED, step, start, clip).reshape(gradients[0].shape)
            else:  # dense by rule: the sum in rank order
                total = gradients[0]
                for g in gradients[1:]:
                    total = total + g
                expected = total / np.float32(workers)
            for r in ranks:
                seen = r["cases"]["terngrad", way, cap, clip]["seen"][step][name]
                assert np.array_equal(seen, expected), (name, step)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("cap", ["as DDP", "two small buckets"])
def test_dense_is_the_mean_and_bf16_nearly(workers, cap):
    ranks = launch_once(one_step_each, workers)
    for (compression, way, case_cap, clip), _ in ranks[0]["cases"].items():
        if compression == "terngrad" or case_cap != cap:
            continue
        for step in range(STEPS):
            for name in offsets(cap):
                own = local(ranks, cap, step, name)
                exact, size = np.mean(own, axis=0, dtype=np.float64), np.mean(np.abs(own), axis=0)
                results = [r["cases"][compression, way, case_cap, clip]["seen"][step][name] for r in ranks]
                assert all(np.array_equal(r, results[0]) for r in results)
                allowed = size * (workers * 2.0**-23 if compression == "dense" else workers * 2.0**-7)
                assert (np.abs(results[0] - exact) <= allowed + 1e-30).all(), (compression, way, name)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("cap", ["as DDP", "two small buckets"])
@pytest.mark.parametrize(("compression", "way"), WAYS)
def test_bytes_at_the_collectives_are_those_predicted(workers, cap, compression, way):
    ranks = launch_once(one_step_each, workers)
    workload = odd_workload(cap)
    s = strategy(workers, compression, way, CAPS[cap])
    described = s.wire_bytes_per_device(workload.parameters, sorted(workload.parameters, key=lambda p: p.ready))
    predicted = predict(workload, hardware.cluster("v100", workers, 1), s).wire_bytes_per_device
    for step in range(STEPS):
        counted = [r["cases"][compression, way, cap, CLIP]["sent"][step] for r in ranks]
        assert max(counted) == described == predicted
        assert [r["cases"][compression, way, cap, CLIP]["metered"][step] for r in ranks] == counted


@pytest.mark.parametrize("cap", ["as DDP", "two small buckets"])
def test_the_network_of_these_tests_is_as_odd_as_it_should_be(cap):
    workload = odd_workload(cap)
    dense = COMPRESSIONS["terngrad"].dense(workload.parameters)
    assert {p.name for p in workload.parameters} - set(dense) == set(packed_names(cap))
    s = strategy(3, "terngrad", "sharded", CAPS[cap])
    assert len(s.exchange_phases(workload.parameters, sorted(workload.parameters, key=lambda p: p.ready))) > 1


@pytest.mark.parametrize("workers", WORKERS)
def test_replicas_are_bitwise_equal_after_every_epoch(workers):
    ranks = launch_once(several_epochs_each, workers)
    assert len(ranks[0]["digests"]) == len(WAYS) + 2 * (len(OPTIMIZERS) - 1)  # TernGrad, two ways, also under the others
    for r in ranks[1:]:
        assert r["digests"] == ranks[0]["digests"]
    assert all(first != second for first, second in ranks[0]["digests"].values())


@pytest.mark.parametrize("workers", WORKERS)
def test_a_replica_that_drifts_by_one_bit_is_named_on_every_rank(workers):
    for r in launch_once(several_epochs_each, workers):
        assert f"rank {workers - 1} differ from those of rank 0" in r["drift"]
