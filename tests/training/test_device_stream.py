"""Streams: what an exchange may do at the same time as a backward pass, checked by a CPU stand-in of a GPU's streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from distributed import launch_once
from paceline.errors import UserError
from paceline.training import device_stream
from paceline.training.device_stream import DeviceStream, HostCopies, Moment
from stream_cases import CASES, run
from stream_stand_in import World

CPU = torch.device("cpu")
EVERY_DAY = ["ddp int8", "ddp int8 | plain", "ddp int8 | no_wait_before", "ddp int8 | no_wait_after", "ddp int8 | blocking"]
FAULTS = [
    *(f"{case} | {fault}" for case in ("fsdp2 int8", "local topk delayed") for fault in ("no_wait_before", "no_wait_after")),
    "fsdp2 int8 | no_keeping",
    "fsdp2 topk host | no_order_of_copies",
    "ddp topk host | no_end_of_copies",
    "fsdp2 topk host | no_end_of_copies",
]


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


@pytest.mark.parametrize(("value", "in_order"), [(None, False), ("0", False), ("", False), ("1", True)])
def test_nccl_may_run_collectives_in_the_order_of_launches(value: str | None, in_order: bool, monkeypatch: Any) -> None:
    monkeypatch.delenv(device_stream.ORDER_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(device_stream.ORDER_VARIABLE, value)
    assert device_stream.in_order_of_launches() == in_order
