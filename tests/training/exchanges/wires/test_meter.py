"""The kernel's own count of what crossed the wire, in a network namespace that nobody else is in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from distributed import can_make_private_network, launch
from paceline.record import Event
from paceline.training.attach.attach import attach
from paceline.training.exchanges.wires.meter import Meter

WORKERS, STEPS, ELEMENTS = 3, 6, 1_000_003
CASES = [
    ["dense", "allreduce"],
    ["dense", "sharded"],
    ["terngrad", "sharded"],
    ["terngrad", "parameter_server"],
    ["int8", "ring"],
    ["inceptionn-scaled", "sharded"],
]


def interface_bytes() -> int:
    """Bytes sent over lo since it is up; whatever one rank sends to another is there once."""
    line = next(row for row in Path("/proc/net/dev").read_text().splitlines() if row.strip().startswith("lo:"))
    return int(line.partition(":")[2].split()[8])


def count(rank: int, workers: int, cases: list[list[str]]) -> dict[str, Any]:
    """Bytes of one step over all ranks, as the interface counts them and as the ranks' meters do."""
    result = {}
    for compression, way in cases:
        model = DDP(nn.Linear(ELEMENTS, 1, bias=False))
        hook = attach(model, compression, exchange=way)
        hook.dense.clear()  # its only layer is the last one
        gradient = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(rank))
        hook.exchange_now(gradient.clone())  # connections are made
        dist.barrier()
        before = interface_bytes()
        dist.barrier()
        hook.meter.begin_step()
        for _ in range(STEPS):
            hook.exchange_now(gradient.clone())
        dist.barrier()
        seen = interface_bytes() - before
        metered: list[int] = [0] * workers
        dist.all_gather_object(metered, hook.meter.sent_bytes)
        result[f"{compression}, {way}"] = seen / sum(metered)
        dist.barrier()
    return result


@pytest.mark.long
@pytest.mark.skipif(not can_make_private_network(), reason="needs the right to make a network namespace (root)")
def test_the_interface_counts_what_the_meters_do():
    measured = launch(count, WORKERS, private_network=True, cases=CASES)[0]
    assert all(0.999 < ratio < 1.04 for ratio in measured.values()), measured


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6))
def test_seconds_of_a_lane_are_those_in_which_anything_ran(spans: list[tuple[int, int]]) -> None:
    meter = Meter(0)
    meter.events.extend(Event(name="push", lane="network", start_s=at, duration_s=long) for at, long in spans)
    meter.events.append(Event(name="encode", lane="codec", start_s=0.0, duration_s=50.0))
    covered = {second for at, long in spans for second in range(at, at + long)}
    assert meter.seconds("network") == len(covered)


def test_a_step_that_counts_later_counts_when_it_is_asked_for_or_when_the_next_one_ends() -> None:
    meter, asked = Meter(1), list[str]()

    def told(name: str, bad: bool) -> Any:
        return lambda: asked.append(name) or bad

    meter.count_later(told("first", True), 0)
    assert asked == []
    meter.count_later(told("second", False), 1)
    assert asked == ["first"]
    assert meter.nonfinite_steps == 1 and asked == ["first", "second"]
    assert meter.nonfinite_steps == 1 and asked == ["first", "second"]
    meter.count_later(told("third", True), 2)
    meter.nonfinite_steps = 7
    assert meter.nonfinite_steps == 7 and asked == ["first", "second"]
