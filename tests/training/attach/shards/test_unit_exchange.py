"""Reduce-scatters of units, many ranks in one process: sums, padding, nothing lost with feedback, what is unfit."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import codecs
from paceline.codecs import key
from paceline.strategy import EXCHANGES, GradientExchange
from paceline.strategy.buckets import plan_unit
from paceline.strategy.sharded_exchange import describe_unit
from paceline.training.attach.shards.unit_exchange import Owed, OwnerSetup, UnitGradients, UnitLayout, reduce_unit, sharded
from paceline.training.exchanges import to_owner
from paceline.training.exchanges.exchange_setup import dense_codec
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup

NAMES = sorted(map(str, to_owner.TO_OWNER))
SHAPES = st.lists(st.sampled_from([(1,), (3,), (7, 5), (4, 2, 3), (64,), (130, 9)]), min_size=1, max_size=4)


def specs(shapes: list[tuple[int, ...]]) -> list[TensorSpec]:
    return [TensorSpec(f"t{index}", shape, 0) for index, shape in enumerate(shapes)]


def matrices(tensors: Any, workers: int, seed: int) -> list[torch.Tensor]:
    """Every rank's gradients in rows, made from whole tensors."""
    rng = np.random.default_rng(seed)
    ranks = []
    for _ in range(workers):
        wholes = [torch.from_numpy(rng.standard_normal(t.whole.shape).astype(np.float32)) for t in tensors]
        ranks.append(torch.cat([t.rows_of(w, workers) for t, w in zip(tensors, wholes, strict=True)], dim=1))
    return ranks


def reduce_all(
    codec: Any,
    exchange: str,
    layout: UnitLayout,
    rows: list[torch.Tensor],
    owed: Any = None,
    step: int = 0,
    momentum: float = 0.0,
) -> list[tuple[torch.Tensor, bool]]:
    def rank(wire: Any) -> tuple[torch.Tensor, bool]:
        setup = OwnerSetup(codec=codec, exchange=EXCHANGES[exchange], world=wire, outer=wire, momentum=momentum)
        mine = None if owed is None else owed[wire.rank]
        gradients = UnitGradients(rows[wire.rank].clone(), mine, mine, key(3, step, wire.rank), 0)
        return reduce_unit(setup, layout, gradients, torch.empty)

    return LocalGroup(len(rows)).run(rank)


@given(SHAPES, st.integers(2, 6), st.sampled_from(NAMES), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_fp32_gives_every_owner_the_sum(shapes: list[tuple[int, ...]], workers: int, exchange: str, seed: int) -> None:
    tensors = sharded(specs(shapes), [0] * len(shapes), workers)
    rows = matrices(tensors, workers, seed)
    layout = UnitLayout(tensors, {"t0"})
    wanted = torch.stack(rows).double().sum(0)
    for rank, (row, fit) in enumerate(reduce_all(codecs.get("fp32"), exchange, layout, rows)):
        assert fit
        torch.testing.assert_close(row.double(), wanted[rank], rtol=1e-5, atol=1e-5)


@pytest.mark.long
@given(SHAPES, st.integers(2, 5), st.sampled_from(NAMES), st.sampled_from(["sign", "topk", "int4"]))
@settings(deadline=None, max_examples=40)
def test_delivered_and_owed_are_all_that_there_was(
    shapes: list[tuple[int, ...]], workers: int, exchange: str, name: str
) -> None:
    """Over three steps: what was sent and what is left add up to the gradients (Karimireddy et al. 2019, section 4)."""
    tensors = sharded(specs(shapes), [0] * len(shapes), workers)
    layout = UnitLayout(tensors, ())
    owed = [Owed(torch.zeros(workers, layout.compressed)) for _ in range(workers)]
    total = torch.zeros(workers, layout.columns, dtype=torch.float64)
    delivered = torch.zeros_like(total)
    for step in range(3):
        rows = matrices(tensors, workers, step)
        total += torch.stack(rows).double().sum(0)
        for rank, (row, fit) in enumerate(reduce_all(codecs.get(name), exchange, layout, rows, owed, step)):
            assert fit
            delivered[rank] += row.double()
    left = torch.stack([one.residual for one in owed]).double().sum(0)
    torch.testing.assert_close(delivered + left, total, rtol=1e-4, atol=1e-4)
    assert all(not one.residual[rank].any() for rank, one in enumerate(owed))  # nothing is owed to oneself


@given(SHAPES, st.integers(2, 4), st.sampled_from([0.0, 0.5, 0.9]))
@settings(deadline=None, max_examples=20)
def test_momentum_is_that_of_the_published_algorithm(shapes: list[tuple[int, ...]], workers: int, momentum: float) -> None:
    """Lin et al. 2018, algorithm 1 with momentum correction and factor masking, over three steps. A rank
    sends nothing of its own row, and all of it is in the sum."""
    tensors = sharded(specs(shapes), [0] * len(shapes), workers)
    layout = UnitLayout(tensors, ())
    owed = [Owed(*(torch.zeros(workers, layout.compressed) for _ in range(2))) for _ in range(workers)]
    residual, velocity = (torch.zeros(workers, workers, layout.columns) for _ in range(2))
    for step in range(3):
        rows = matrices(tensors, workers, step)
        wanted = torch.zeros(workers, layout.columns)
        for sender, owner in np.ndindex(workers, workers):
            velocity[sender, owner] = momentum * velocity[sender, owner] + rows[sender][owner]
            residual[sender, owner] += velocity[sender, owner]
            whole = sender == owner or layout.columns < 3  # fp32 is shorter than a word of marks and a value
            kept = layout.columns if whole else ceil(0.2 * layout.columns)
            sent = residual[sender, owner].abs().argsort(descending=True, stable=True)[:kept]
            wanted[owner, sent] += residual[sender, owner, sent]
            residual[sender, owner, sent] = 0
            velocity[sender, owner, sent] = 0
        codec = codecs.get("topk", density=0.2)
        for rank, (row, fit) in enumerate(reduce_all(codec, "sharded", layout, rows, owed, step, momentum)):
            assert fit
            torch.testing.assert_close(row, wanted[rank], rtol=1e-5, atol=1e-5)
        for rank, one in enumerate(owed):
            torch.testing.assert_close(one.residual, residual[rank], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(one.velocity, velocity[rank], rtol=1e-5, atol=1e-5)


@pytest.mark.everyday("ring")
@pytest.mark.parametrize("exchange", NAMES)
def test_ternary_is_unbiased_and_takes_its_three_values(exchange: str) -> None:
    """TernGrad (Wen et al. 2017, equations 2 to 4), without clipping: s times -1, 0 or 1, on average the gradient."""
    workers, steps = 3, 100
    tensors = sharded(specs([(7, 5)]), [0], workers)
    layout, rows = UnitLayout(tensors, ()), matrices(tensors, workers, 1)
    largest = float(torch.stack(rows).abs().max())
    mean = torch.zeros(workers, layout.columns)
    for step in range(steps):
        for rank, (row, _) in enumerate(reduce_all(codecs.get("ternary", clip=None), exchange, layout, rows, step=step)):
            levels = row / largest
            torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-5)
            assert float(levels.abs().max()) <= workers + 1e-5
            mean[rank] += row / steps
    wanted = torch.stack(rows).sum(0)
    assert float((mean - wanted).abs().max()) < 5 * largest * (workers / steps) ** 0.5


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e37])
def test_what_is_unfit_on_one_rank_goes_dense_on_all(bad: float) -> None:
    workers = 3
    tensors = sharded(specs([(7, 5), (4,)]), [0, 0], workers)
    layout, rows = UnitLayout(tensors, ()), matrices(tensors, workers, 1)
    rows[1][2, 0] = bad
    owed = [Owed(torch.ones(workers, layout.compressed)) for _ in range(workers)]
    wanted = torch.stack(rows).sum(0)
    for rank, (row, fit) in enumerate(reduce_all(codecs.get("sign"), "sharded", layout, rows, owed)):
        assert not fit
        torch.testing.assert_close(row, wanted[rank], equal_nan=True)
    assert all(bool((one.residual == 1).all()) for one in owed)


@given(SHAPES, st.integers(1, 7))
def test_rows_are_pytorchs_chunks(shapes: list[tuple[int, ...]], owners: int) -> None:
    for tensor in sharded(specs(shapes), [0] * len(shapes), owners):
        whole = torch.randn(tensor.whole.shape)
        rows = tensor.rows_of(whole, owners)
        chunks = whole.chunk(owners)
        for row, chunk in zip(rows, chunks, strict=False):
            assert torch.equal(row[: chunk.numel()], chunk.reshape(-1)) and not row[chunk.numel() :].any()
        assert not rows[len(chunks) :].any()
        assert torch.equal(tensor.whole_of(rows), whole)


def test_rows_by_another_dimension() -> None:
    (tensor,) = sharded(specs([(3, 8)]), [1], 4)
    whole = torch.arange(24.0).view(3, 8)
    rows = tensor.rows_of(whole, 4)
    assert rows[1].tolist() == [2, 3, 10, 11, 18, 19] and torch.equal(tensor.whole_of(rows), whole)


@pytest.mark.parametrize("bits", [32, 16])
@pytest.mark.parametrize("exchange", NAMES)
@pytest.mark.parametrize("workers", [2, 3])
def test_bytes_sent_are_bytes_described(workers: int, exchange: str, bits: int) -> None:
    """Two tensors are compressed, one is too small for a block, one is dense. bfloat16 is half a last place off."""
    shapes, dense = specs([(7, 5), (130, 9), (33, 2), (300, 9)]), {"t2"}
    x = GradientExchange("int8", exchange, dense_bits=bits)
    tensors = sharded(shapes, [0] * 4, workers)
    layout, rows = UnitLayout(tensors, dense, x.description.format.block), matrices(tensors, workers, 1)

    def rank(wire: Any) -> tuple[int, torch.Tensor]:
        setup = OwnerSetup(codec=codecs.get("int8"), exchange=EXCHANGES[exchange], world=wire, outer=wire, dense=dense_codec(x))
        gradients = UnitGradients(rows[wire.rank].clone(), None, None, key(3, 0, wire.rank), 0)
        row, _ = reduce_unit(setup, layout, gradients, torch.empty)
        return wire.meter.sent_bytes, row

    traffic = describe_unit(plan_unit(shapes, x.description, dense), x, x.description, "fp32", workers)
    wanted, size = torch.stack(rows).double().sum(0), torch.stack(rows).double().abs().sum(0)
    here = slice(tensors[2].start, tensors[2].start + tensors[2].shard)
    for number, (sent, row) in enumerate(LocalGroup(workers).run(rank)):
        assert sent == sum(phase.sent(number) for phase in traffic.phases)
        error = (row.double() - wanted[number]).abs()[here]
        assert (error <= (workers * 2.0**-8 if bits == 16 else 1e-6) * size[number, here]).all()
