"""Muon under DDP, FSDP2, HSDP and tensor parallelism on two to four processes: the weights of one process."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from distributed import launch_once
from muon_ranks import run
from paceline.training.exchanges.wires.collectives import ALL_GATHER

BOTH = "bf16 fp32"
RUNS = [(2, "bf16"), *(pytest.param(n, BOTH, marks=pytest.mark.long) for n in (2, 3, 4))]


def furthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((value - other[name]).abs().max()) for name, value in one.items())


def ways(found: dict[str, Any]) -> dict[str, Any]:
    return {way: value for way, value in found.items() if way not in ("alone", "next")}


@pytest.mark.parametrize(("workers", "precisions"), RUNS)
def test_shared_out_is_one_process(workers: int, precisions: str) -> None:
    """Uneven and empty shards, several rounds; the next step of one process that takes the state over, too."""
    for result in launch_once(run, workers, precisions=precisions):
        for precision, found in result.items():
            for way, value in ways(found).items():
                label = f"{precision} {way}"
                assert furthest(found["alone"], value["weights"]) == 0, label
                assert furthest(found["next"], value["moved"]) == 0, label
                assert value["skipped"], label


@pytest.mark.parametrize(("workers", "precisions"), RUNS)
def test_work_is_shared_out(workers: int, precisions: str) -> None:
    """Twelve matrices of similar sizes: each rank's FLOPs, and all ranks' together."""
    results = launch_once(run, workers, precisions=precisions)
    for precision in precisions.split():
        for way in ways(results[0][precision]):
            flops = [result[precision][way]["flops"] for result in results]
            assert sum(flops) == results[0][precision][way]["of_one"]
            assert max(flops) <= 1.15 * sum(flops) / workers, (way, flops)


@pytest.mark.parametrize(("workers", "precisions"), RUNS)
def test_calls_grow_with_bytes_alone(workers: int, precisions: str) -> None:
    """A round of many matrices has at most three; a step has one more for each kind of group, of whether all is finite."""
    for way, value in ways(launch_once(run, workers, precisions=precisions)[0]["bf16"]).items():
        gathers, exchanges = int(way in ("ddp", "hsdp")), 0 if way == "ddp" else 2
        assert value["calls"].count("all_to_all_single") == exchanges * value["rounds"]
        assert value["calls"].count(ALL_GATHER) == gathers * value["rounds"]
        assert value["calls"].count("all_reduce") == 1 + (way == "hsdp")
        assert 1 < value["rounds"] < 8
