"""The hook of an FSDP2 model with a codec, error feedback and momentum, against an oracle that has the gradients of all ranks;
what FSDP2 is told to divide by, to read early and to keep in parts; and which draws differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import sharded_cases
import sharded_oracle
from distributed import launch_once

Grads = dict[str, torch.Tensor]


DIVISIONS = [(workers, factor, dtype) for workers in (2, 4) for factor in (0, 2, 3) for dtype in ("float32", "float16")]
DAILY_DIVISIONS = [(2, 0, "float32"), (2, 3, "float32"), (4, 2, "float16")]
DAILY_CASES = ("accumulation", "mixed_precision", "offload", "activation_checkpoints", "tied", "scaler", "unused")


def division(factor: int, dtype: str) -> str:
    return f"divided {dtype} {factor}"


def daily(workers: int) -> list[str]:
    """Return the parts that run every day."""
    of_two = [*(f"case {name}" for name in DAILY_CASES), "scaler_restored", "early", "rounded"]
    of_four = ["momentum_between_replicas", "streams", "secondary", "refused"]
    divisions = [division(factor, dtype) for ranks, factor, dtype in DAILY_DIVISIONS if ranks == workers]
    return ["whole_sum", *divisions, *(of_two if workers == 2 else of_four)]


def ranks(workers: int, part: str) -> list[Any]:
    """Return what each rank has found. Parts of every day share a launch, and the others."""
    everyday = daily(workers)
    others = [f"case {name}" for name in sharded_cases.cases()] if workers == 2 else []
    others += [division(factor, dtype) for _, factor, dtype in DIVISIONS]
    parts = everyday if part in everyday else sorted({*others} - {*everyday})
    return [result[part] for result in launch_once(sharded_oracle.run, workers, parts=tuple(parts))]


def same(found: Grads, wanted: Grads, share: float = 1e-6) -> None:
    """Up to a share of the largest magnitude of each tensor."""
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert float((found[name] - values).abs().max()) <= share * float(values.abs().max()), name


@pytest.mark.everyday(*DAILY_CASES)
@pytest.mark.parametrize("name", sharded_cases.cases())
def test_a_codec_lives_with_whatever_else_an_fsdp2_script_does(name: str) -> None:
    """Top-k with local momentum (Lin et al. 2018, algorithm 1): what comes of two steps, and what every rank still owes."""
    for outcomes in ranks(2, f"case {name}"):
        found, wanted = outcomes["found"], outcomes["wanted"]
        assert any(name.startswith("residual") and values.any() for name, values in wanted.items())
        same(found, wanted, 1e-5 if name in ("lars", "lamb") else 1e-6)


@pytest.mark.parametrize("way", ["state_dict", "own_state"])
def test_residuals_of_a_state_follow_the_scaler_of_the_run_that_loads_it(way: str) -> None:
    for result in ranks(2, "scaler_restored"):
        found, wanted = result[way]
        assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    ("workers", "factor", "dtype"),
    [pytest.param(*one, marks=[] if one in DAILY_DIVISIONS else [pytest.mark.full]) for one in DIVISIONS],
)
def test_the_sum_of_all_ranks_is_divided_as_fsdp2_is_told(workers: int, factor: int, dtype: str) -> None:
    """By the ranks, or by the script's own divisor; on four ranks with replicas."""
    for found, mean in zip(ranks(workers, division(factor, dtype)), ranks(workers, "whole_sum"), strict=True):
        wanted = {name: values * workers / (factor or workers) for name, values in mean.items()}
        same(found["dense"], wanted, 1e-6 if dtype == "float32" else 4e-3)
        # QSGD's steps of 1/127, one a rank and one of the pull; ranks partly cancel.
        same(found["int8"], wanted, 2 * (workers + 1) / 127)


def test_gradients_that_fsdp2_reads_at_once_are_there() -> None:
    for result in ranks(2, "early"):
        assert len(result["late"]) == 6 and [name for name, late in result["late"].items() if late] == ["plain"]
        assert result["seen"].keys() == result["wanted"].keys()
        assert all(torch.equal(result["seen"][name], values) for name, values in result["wanted"].items())


def test_rounded_weights_draw_by_seed_step_and_rank_and_alike_in_both_passes() -> None:
    one, other = ranks(2, "rounded")
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    first = one["seed 0, step 0, forward"]
    for seed in (0, 1):
        for step in (0, 1):
            seen = one[f"seed {seed}, step {step}, forward"]
            assert torch.equal(seen, one[f"seed {seed}, step {step}, backward"])
            assert not torch.equal(seen[:4], seen[4:])  # the shards are alike, the ranks' draws are not
            assert torch.equal(seen, first) == (seed == step == 0)


def test_momentum_between_replicas_is_that_of_the_published_algorithm() -> None:
    for result in ranks(4, "momentum_between_replicas"):
        for found, wanted in zip(result["found"], result["wanted"], strict=True):
            same(found, wanted)


@pytest.mark.parametrize("exchange", ["sharded", "ring", "allgather"])
def test_each_shard_of_a_replica_has_draws_of_its_own(exchange: str) -> None:
    """Rows are alike, so equal draws would give equal shards."""
    for result in ranks(4, "streams"):
        assert not torch.equal(result[exchange][:4], result[exchange][4:])


def test_weights_may_be_kept_in_parts_after_the_forward_pass() -> None:
    """ZeRO++'s hpZ (Wang et al. 2023, section 3.2): gradients are PyTorch's, and both passes see the same weights, which are
    rounded once."""
    for result in ranks(4, "secondary"):
        wanted = result["torch"]
        same(result["int8"], wanted, 2 * 5 / 127)
        for bits in ("0", "8", "16"):
            forward, backward = result[bits]["seen"]
            assert torch.equal(forward, backward)
        same(result["0"]["gradients"], wanted)


def test_bytes_of_weights_that_are_kept_in_parts() -> None:
    """Rows of (16 x 31, 16), (11 x 61, 11, 12 x 43, 12) and (2 x 47, 2) on four ranks: gathered in the forward pass from all;
    in the backward pass half of them from the other rank of a pair, as fp32."""
    units = [(16 * 31, 16), (11 * 61, 11, 12 * 43, 12), (2 * 47, 2)]
    shards = [sum(tensors) for tensors in units]
    scattered = 3 * 4 * sum(shards)

    def in_blocks(tensors: Sequence[int]) -> int:
        """Header, then each tensor in whole blocks with a scale; fewer than 256 weights follow as fp32."""
        blocks = sum(-(-n // 1024) for n in tensors if n >= 256)
        return (32 if blocks else 0) + (4 + 1024) * blocks + 4 * sum(n for n in tensors if n < 256)

    gathered = {"0": 4 * sum(shards), "16": 2 * sum(shards), "8": sum(map(in_blocks, units))}
    for result in ranks(4, "secondary"):
        for bits, size in gathered.items():
            assert result[bits]["sent"] == scattered + 3 * size + 2 * 4 * sum(shards)


def test_replicas_that_differ_are_named_at_attach() -> None:
    for result in ranks(4, "refused"):
        assert "the ranks disagree on seed (rank 0: 0; rank 1: 1)" in result["seed"]
        assert "the ranks disagree on timeout_s" in result["step"]
