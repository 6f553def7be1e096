"""Sums and copies inside a node: fp32 as the engine has them, or bfloat16 at half the bytes and the same bits on every rank."""

from __future__ import annotations

from typing import Any

import torch

from distributed import launch_once
from paceline.training.exchanges.node_sums import all_gather, reduce_scatter
from paceline.training.exchanges.wires.collectives import Wire
from paceline.training.exchanges.wires.meter import Meter

ELEMENTS = 6 * 35


def both(rank: int, workers: int) -> dict[str, Any]:
    wire = Wire(torch.distributed.group.WORLD, torch.device("cpu"), Meter(rank))  # type: ignore[arg-type]
    found: dict[str, Any] = {"own": torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(rank))}
    for narrow in (False, True):
        wire.meter.sent_bytes = 0
        part = reduce_scatter(wire, torch.empty(ELEMENTS // workers), found["own"].clone(), narrow)
        assert part.dtype == torch.float32
        scattered, wire.meter.sent_bytes = wire.meter.sent_bytes, 0
        whole = torch.empty(ELEMENTS)
        all_gather(wire, whole, part, narrow)
        found[str(narrow)] = whole, scattered, wire.meter.sent_bytes
    half = reduce_scatter(wire, torch.empty(ELEMENTS // workers).bfloat16(), found["own"].bfloat16(), True)
    found["half"] = half.dtype
    return found


def test_sums_have_the_bound_of_bfloat16_and_half_the_bytes() -> None:
    ranks = launch_once(both, 3)
    exact = torch.stack([r["own"] for r in ranks]).double().sum(0)
    first, second, third = (r["own"] for r in ranks)
    narrow = [r["own"].bfloat16().float() for r in ranks]
    size = torch.stack([r["own"] for r in ranks]).double().abs().sum(0)
    for r in ranks:
        whole, scattered, gathered = r["True"]
        assert torch.equal(whole, ranks[0]["True"][0])
        # Half a unit of the last of eight places for each number and for the sum.
        assert ((whole.double() - exact).abs() <= 2.01 * 2.0**-8 * size).all()
        # In rank order, whoever owns it; bfloat16 is rounded once more, from the fp32 sum.
        assert torch.equal(r["False"][0], first + second + third)
        assert torch.equal(whole, (narrow[0] + narrow[1] + narrow[2]).bfloat16().float())
        assert (scattered, gathered) == (2 * ELEMENTS * 2 // 3,) * 2
        assert r["False"][1:] == (4 * ELEMENTS * 2 // 3,) * 2
        assert r["half"] == torch.bfloat16
