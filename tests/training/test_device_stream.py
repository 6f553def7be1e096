"""Streams: what an exchange may do at the same time as a backward pass, checked by a CPU stand-in of a GPU's streams."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import launch_once
from paceline.errors import UserError
from paceline.training import device_stream
from paceline.training.attach import auto, consistency
from paceline.training.attach.attach import attach
from paceline.training.attach.hooks import base
from paceline.training.device_stream import DeviceStream, HostCopies, Moment
from stream_cases import CASES, run
from stream_stand_in import World

CPU = torch.device("cpu")
EVERY_DAY = ["ddp int8", "ddp int8 | plain", "ddp int8 | no_wait_before", "ddp int8 | no_wait_after", "ddp int8 | blocking"]
FAULTS = [
    "fsdp2 int8 | no_wait_before",
    "local topk delayed | no_wait_before",
    "fsdp2 int8 | no_keeping",
    "fsdp2 topk host | no_order_of_copies",
    "ddp topk host | no_end_of_copies",
    "fsdp2 topk host | no_end_of_copies",
]
"""Built-in faults besides those of every day. Units and local steps end with a wait of the exchange's thread, which does what
the event of a future does."""


def test_a_backward_pass_and_its_exchanges_share_memory_in_order_and_no_host_waits() -> None:
    ranks = launch_once(run, 2, names=tuple(EVERY_DAY))
    whole, plain, before, after, blocking = ([rank[name] for rank in ranks] for name in EVERY_DAY)
    for one, same in zip(whole, plain, strict=True):
        assert one["faults"] == one["syncs"] == []
        assert all(torch.equal(a, b) for a, b in zip(one["weights"], same["weights"], strict=True))
    assert all("does not wait for" in rank["faults"][0] for rank in (*before, *after))
    assert all(rank["syncs"] and not rank["faults"] for rank in blocking)


@pytest.mark.long
def test_every_hook_orders_its_streams() -> None:
    for rank in launch_once(run, 2, names=tuple(CASES)):
        for name, found in rank.items():
            assert (name, found["faults"], found["syncs"]) == (name, [], [])


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_a_missing_wait_or_memory_that_is_freed_early_is_found(name: str) -> None:
    assert all(rank[name]["faults"] for rank in launch_once(run, 2, names=tuple(FAULTS)))


@pytest.fixture
def world() -> Any:
    with World().installed() as one:
        yield one


def test_memory_is_used_again_after_all_streams_or_a_stream_that_keeps_it(world: World) -> None:
    exchange = DeviceStream.of(CPU)
    for keeps in (True, False):
        buffer = torch.ones(64)
        event = exchange.hand_over(*([buffer] if keeps else []))
        with exchange.running([event]):
            buffer.sum()
        del buffer, event
        torch.ones(64)
        assert bool(world.faults) != keeps
    assert "used again on default" in world.faults[0]


def test_a_copy_to_the_host_is_read_after_a_wait(world: World) -> None:
    pinned, values = world.pinned_zeros(8, torch.float32, CPU), torch.ones(8)
    HostCopies.of(CPU).put(values, pinned)
    values.add_(1)
    assert len(world.faults) == 1 and "overwrites" in world.faults[0]
    pinned.tolist()
    assert len(world.faults) == 2 and "on the host does not wait" in world.faults[1]
    HostCopies.of(CPU).settle()
    pinned.tolist()
    HostCopies.of(CPU).put(values, pinned)
    HostCopies.of(CPU).order()
    values.add_(1)
    assert len(world.faults) == 2


def test_a_graph_that_is_captured_takes_no_exchange(world: World) -> None:
    device_stream.refuse_capture(CPU)
    world.is_capturing = True
    with pytest.raises(UserError, match="a CUDA graph is being captured"):
        device_stream.refuse_capture(CPU)


def test_moments_measure_the_stream_and_not_the_host(world: World) -> None:
    first, second = Moment(CPU), Moment(CPU)
    first._event.time, second._event.time = 1.0, 3.5
    assert second.since(first) == 2.5


def test_a_cpu_has_no_streams() -> None:
    stream = DeviceStream.of(CPU)
    assert not stream.queues and stream.hand_over(torch.ones(2)) is None and stream.end() is None
    assert DeviceStream.of(CPU) is not stream and Moment(CPU).since(Moment(CPU)) <= 0
    with stream.running([None]), device_stream.allocating_on(CPU):
        device_stream.settle_copies(CPU)
        device_stream.refuse_capture(CPU)


def test_a_checksum_on_the_device_sees_every_byte_and_its_place_without_a_wait(world: World) -> None:
    values = torch.arange(40, dtype=torch.int16).view(5, 8)
    plain, other = consistency.comparable([values, values[:2]]), consistency.comparable([values[:2], values])
    assert isinstance(plain, torch.Tensor) and not world.syncs
    assert plain == consistency.comparable([values.clone(), values[:2].clone()]) and plain != other
    seen = {int(plain)}
    for byte in range(0, 80, 5):
        changed = values.clone()
        changed.view(torch.uint8).view(-1)[byte] += 1
        seen.add(int(consistency.comparable([changed, values[:2]])))
    swapped = values.clone()
    swapped[0, [1, 2]] = values[0, [2, 1]]
    seen.add(int(consistency.comparable([swapped, values[:2]])))
    assert len(seen) == 18 and min(seen) >= 0


def test_exchanges_wait_for_collectives_of_the_backward_pass_itself(world: World, monkeypatch: Any) -> None:
    def model(*modules: nn.Module, **options: bool) -> Any:
        given = {"find_unused_parameters": False, "static_graph": False, **options}
        return SimpleNamespace(modules=lambda: modules, **given)

    monkeypatch.delenv(device_stream.ORDER_VARIABLE, raising=False)
    unused = model(nn.Linear(2, 2), find_unused_parameters=True)
    assert base._holds(model(nn.SyncBatchNorm(2)), CPU) and not base._holds(unused, CPU)
    monkeypatch.setenv(device_stream.ORDER_VARIABLE, "1")
    assert base._holds(model(nn.Linear(2, 2)), CPU)
    with pytest.raises(UserError, match="find_unused_parameters exchanges flags"):
        base._holds(unused, CPU)


def auto_over_nodes(rank: int, workers: int) -> list[str]:
    """Threads that exchange objects while ``auto`` measures and decides."""
    threads: list[str] = []
    plain = dist.all_gather_object

    def gather(*args: Any, **options: Any) -> None:
        threads.append(threading.current_thread().name)
        plain(*args, **options)

    dist.all_gather_object = gather
    model = DDP(nn.Linear(64, 64))
    hook = attach(model, "auto", candidates=["int8:hierarchical"], ranks_per_node=2, min_elements=0)
    at_attach = len(threads)
    for step in range(2 * (auto.WARM + auto.TIMED + 1) + 1):
        model(torch.randn(4, 64, generator=torch.Generator().manual_seed(step))).square().mean().backward()
    assert hook.step > auto.WARM + auto.TIMED + 1 and at_attach > 0
    return threads[at_attach:]


@pytest.mark.long
def test_auto_exchanges_no_objects_while_it_trains() -> None:
    assert launch_once(auto_over_nodes, 4) == [[]] * 4


@pytest.mark.parametrize(("value", "in_order"), [(None, False), ("0", False), ("", False), ("1", True)])
def test_nccl_may_run_collectives_in_the_order_of_launches(value: str | None, in_order: bool, monkeypatch: Any) -> None:
    monkeypatch.delenv(device_stream.ORDER_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(device_stream.ORDER_VARIABLE, value)
    assert device_stream.in_order_of_launches() == in_order
