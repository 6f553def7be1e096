"""Training of small models over the stand-in of streams, with single faults built in: every hook, FSDP2 and local steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

import paceline
from paceline.strategy import DenseRule
from paceline.training import device_stream
from paceline.training.attach import exchange_thread
from paceline.training.device_stream import DeviceStream
from stream_stand_in import World


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.BatchNorm1d(40), nn.Tanh(), nn.Linear(40, 48), nn.Tanh(), nn.Linear(48, 8))


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(6, 24, generator=torch.Generator().manual_seed(10 * step + rank))


def every_tensor(compression: str) -> dict[str, int]:
    """Options with which small tensors are compressed too."""
    return {} if compression in ("dense", "bf16", "powersgd") else {"min_elements": 0}


def train_ddp(rank: int, compression: str, steps: int = 3, saves: bool = False, **options: Any) -> list[torch.Tensor]:
    """Steps of a model in DDP, with the optimizer, and its weights."""
    model = DDP(net(), bucket_cap_mb=0.005)
    hook = paceline.attach(model, compression, check_every=2, **every_tensor(compression), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        with backward_pass():
            model(inputs(rank, step)).square().mean().backward()
        optimizer.step()
        if saves:
            hook.state_dict()
    return [p.detach().clone() for p in model.parameters()]


def train_one_bit(rank: int) -> list[torch.Tensor]:
    model = DDP(net(), bucket_cap_mb=0.005)
    optimizer = paceline.OneBitAdam(model.parameters(), lr=1e-2, model=model, freeze_step=2)
    for step in range(4):
        optimizer.zero_grad()
        with backward_pass():
            model(inputs(rank, step)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def train_sharded(rank: int, compression: str, **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(4)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    hook = paceline.attach(model, compression, **every_tensor(compression), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        with backward_pass():
            model(inputs(rank, step)).square().mean().backward()
        optimizer.step()
        hook.own_state()
    return [p.to_local().detach().clone() for p in model.parameters()]


def train_local(rank: int, compression: str, options: dict[str, Any] | None = None, **rule: Any) -> list[torch.Tensor]:
    model = net()
    exchange = paceline.GradientExchange(compression, options=options or {}, dense_rule=DenseRule(min_elements=0))
    local = paceline.attach_local(model, exchange, check_every=1, **rule)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(7):
        optimizer.zero_grad()
        model(inputs(rank, step)).square().mean().backward()
        optimizer.step()
        local.step()
    local.finish()
    return [p.detach().clone() for p in model.parameters()]


CASES: dict[str, Callable[[int], list[torch.Tensor]]] = {
    "ddp int8": lambda rank: train_ddp(rank, "int8"),
    "ddp terngrad": lambda rank: train_ddp(rank, "terngrad"),
    "ddp topk": lambda rank: train_ddp(rank, "topk", density=0.1, saves=True),
    "ddp topk ring": lambda rank: train_ddp(rank, "topk", density=0.1, exchange="ring"),
    "ddp topk host": lambda rank: train_ddp(rank, "topk", density=0.1, residuals_at="host", saves=True),
    "ddp topk host bf16": lambda rank: train_ddp(rank, "topk", density=0.1, residuals_at="host", residual_bits=16, saves=True),
    "ddp dense": lambda rank: train_ddp(rank, "dense", noise_scale=True),
    "ddp bf16": lambda rank: train_ddp(rank, "bf16"),
    "ddp auto": lambda rank: train_ddp(rank, "auto", candidates=["int8"], steps=12),
    "ddp powersgd": lambda rank: train_ddp(rank, "powersgd", start_iter=2, steps=5),
    "one-bit": train_one_bit,
    "fsdp2 int8": lambda rank: train_sharded(rank, "int8"),
    "fsdp2 topk": lambda rank: train_sharded(rank, "topk", density=0.1),
    "fsdp2 topk host": lambda rank: train_sharded(rank, "topk", density=0.1, residuals_at="host"),
    "fsdp2 dense": lambda rank: train_sharded(rank, "dense"),
    "local int8": lambda rank: train_local(rank, "int8", sync_every=2),
    "local topk delayed": lambda rank: train_local(rank, "topk", {"density": 0.1}, sync_every=3, sync_delay=1),
}


@contextmanager
def no_wait_before() -> Iterator[None]:
    """The exchange's stream does not wait for the stream of the backward pass."""
    plain = DeviceStream.running
    with patch.object(DeviceStream, "running", lambda self, after=(): plain(self)):
        yield


@contextmanager
def no_wait_after() -> Iterator[None]:
    """Futures are set outside of the exchange's stream, so that their readers wait for another one."""
    plain = exchange_thread.Exchanges._set

    def elsewhere(self: Any, waiting: Any) -> None:
        engine = device_stream.engine
        with engine.running(engine.stream()):
            plain(self, waiting)

    with patch.object(exchange_thread.Exchanges, "_set", elsewhere):
        yield


@contextmanager
def no_keeping() -> Iterator[None]:
    """Memory that is handed over is not kept from new use."""
    with patch.object(World, "keep", lambda self, tensor, stream: None):
        yield


@contextmanager
def no_order_of_copies() -> Iterator[None]:
    """Working copies of residuals are filled before the last copy to the host has ended."""
    with patch.object(device_stream.HostCopies, "order", lambda self: None):
        yield


@contextmanager
def no_end_of_copies() -> Iterator[None]:
    """The host reads residuals without a wait for their copies."""
    with patch.object(device_stream.HostCopies, "settle", lambda self: None):
        yield


@contextmanager
def blocking() -> Iterator[None]:
    """The thread of the backward pass waits for its kernels at each bucket."""
    plain = exchange_thread.Exchanges.receive

    def receive(self: Any, *buffers: torch.Tensor) -> None:
        device_stream.engine.current().synchronize()
        plain(self, *buffers)

    with patch.object(exchange_thread.Exchanges, "receive", receive):
        yield


MUTATIONS = {f.__name__: f for f in (no_wait_before, no_wait_after, no_keeping, no_order_of_copies, no_end_of_copies, blocking)}
_running: World | None = None


@contextmanager
def backward_pass() -> Iterator[None]:
    """Keep the host's waits of this thread in the block, and drop those before."""
    if _running is None:
        yield
        return
    before = len(_running.syncs)
    yield
    me = threading.current_thread().name
    _waits.extend(what for thread, what in _running.syncs[before:] if thread == me)


_waits: list[str] = []


def run(rank: int, workers: int, names: list[str]) -> dict[str, Any]:
    """Faults and waits of the host within backward passes, by case; ``case | mutation`` has a fault built in."""
    global _running
    found: dict[str, Any] = {}
    for name in names:
        case, _, mutation = name.partition(" | ")
        _waits.clear()
        start = time.perf_counter()
        with ExitStack() as stack:
            if mutation != "plain":
                _running = stack.enter_context(World().installed())
            if mutation in MUTATIONS:
                stack.enter_context(MUTATIONS[mutation]())
            weights = CASES[case](rank)
        faults = _running.faults if _running else []
        found[name] = {"faults": faults, "syncs": list(_waits), "weights": weights, "s": time.perf_counter() - start}
        _running = None
    return found
