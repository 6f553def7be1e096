"""LARS and LAMB sharded by FSDP2, HSDP and ZeRO-1 on two to four processes: the weights of an unsharded run."""

from __future__ import annotations

import pytest
from torch import Tensor

from distributed import launch_once
from sharded_optimizers import KINDS, run

DAILY = {2: (*KINDS,), 3: ("LARS", "LAMB nvlamb"), 4: ("LARS joint", "LAMB")}
WAYS = [(2, "fsdp", DAILY[2]), (2, "zero", DAILY[2]), (3, "fsdp", DAILY[3]), (4, "hsdp", DAILY[4])]
WAYS += [pytest.param(*one, marks=pytest.mark.full) for one in ((3, "fsdp", DAILY[4]), (4, "hsdp", DAILY[3]))]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert float((value - other[name]).abs().max()) <= 4e-6, name


@pytest.mark.parametrize(("workers", "way", "kinds"), WAYS)
def test_sharded_is_unsharded(workers: int, way: str, kinds: tuple[str, ...]) -> None:
    """Uneven and empty shards; one step with an infinity, which every rank skips."""
    for result in launch_once(run, workers, kinds=kinds):
        for kind, found in result[way].items():
            weights, skipped = result["plain"][kind]
            assert skipped == found["skipped"] == 1
            same(weights, found["weights"])


@pytest.mark.parametrize(("workers", "way", "kinds"), [WAYS[0], *WAYS[2:]])
def test_one_all_reduce_a_step(workers: int, way: str, kinds: tuple[str, ...]) -> None:
    """Of all norms at once: three numbers a tensor (two for LARS). The global clip needs its own before them."""
    for result in launch_once(run, workers, kinds=kinds):
        for kind, found in result[way].items():
            tensors = len(found["weights"])
            rows = [2] if kind.startswith("LARS") else [1, 3] if "nvlamb" in kind else [3]
            assert found["calls"] == [row * tensors for row in rows], kind


def test_a_rank_that_owns_nothing_joins_in() -> None:
    """Under ZeRO-1 with fewer parameters than ranks."""
    first, second = launch_once(run, 2, kinds=DAILY[2])
    for one in ("zero, one parameter", "zero, one parameter, found out"):
        assert first[one]["skipped"] == second[one]["skipped"] == 1
        same(first[one]["weights"], second[one]["weights"])


def test_the_state_of_zero_goes_on_alone() -> None:
    """Gathered, saved and loaded where nothing is sharded: the same next step."""
    first = launch_once(run, 2, kinds=DAILY[2])[0]["zero"]["LAMB"]
    same(first["alone"], first["together"])
    assert any(not first["alone"][name].equal(before) for name, before in first["weights"].items())


def test_a_state_that_is_sharded_otherwise_is_refused() -> None:
    """Both have the shape of the whole tensor: read as it lies, every rank would take the first rows."""
    for kind, (of_shard, of_whole) in launch_once(run, 2, kinds=DAILY[2])[0]["refused"].items():
        word = "momentum_buffer" if kind == "LARS" else "exp_avg"
        assert of_shard.startswith(f"the {word} of 0.weight is a shard, the parameter whole;")
        assert of_whole.startswith(f"the {word} of 0.weight is whole, the parameter a shard;") and "full_state_dict" in of_whole


def test_the_state_moves_to_another_number_of_workers() -> None:
    """From two to one and back: the weights of a run that stayed."""
    for result in launch_once(run, 2, kinds=DAILY[2]):
        for found in result["moved"].values():
            same(found["plain"], found["after"])
