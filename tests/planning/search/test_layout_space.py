"""What a search of layouts combines: pipelines with balanced ends, shares within nodes, micro batches by number."""

from __future__ import annotations

import pytest

from paceline import Cluster, Workload
from paceline.planning.search.layout_space import LayoutSpace, logits_blocks, powers
from paceline.prediction.layouts.layout_slices import Shares
from paceline.prediction.layouts.pipeline_bounds import PipelineShape
from paceline.strategy.pass_order import SCHEDULES
from paceline.strategy.sharding import SHARDINGS

NODES = Cluster.named("2x8 A100", network="8x InfiniBand HDR")


def test_logits_are_counted_in_blocks() -> None:
    """Llama 3 8B: 2 x 4096 x 128256 for the logits; a block has 436 million operations a token, and those of its attention."""
    net = Workload.named("llama-3-8b", 2048)
    block = 2 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert 0.85 * 2 * 4096 * 128256 / block < logits_blocks(net) < 2 * 4096 * 128256 / block
    assert logits_blocks(Workload.named("resnet-50")) < 0.2


def test_a_last_stage_with_logits_has_fewer_blocks() -> None:
    space = LayoutSpace(batches=(8,), pipelines=(4,), virtual_stages=(1, 2))
    shapes = set(space.shapes(NODES, 32, 2.4))
    assert PipelineShape(4, 1, SCHEDULES["1f1b"], (0, 6)) in shapes and PipelineShape(4, 2, SCHEDULES["1f1b"], (0, 6)) in shapes
    assert {shape.ends for shape in space.shapes(NODES, 32)} == {(0, 0)}
    assert {shape.ends for shape in LayoutSpace(batches=(8,), balanced=False).shapes(NODES, 32, 2.4)} == {(0, 0)}


def test_shares_lie_within_nodes_where_there_are_several() -> None:
    space = LayoutSpace(batches=(8,), shardings=("ddp", "zero1"))
    assert space.shared(NODES) == (Shares(SHARDINGS["ddp"]), Shares(SHARDINGS["zero1"]), Shares(SHARDINGS["zero1"], True))
    assert space.shared(Cluster.named("8 A100")) == (Shares(SHARDINGS["ddp"]), Shares(SHARDINGS["zero1"]))


@pytest.mark.parametrize(("most", "expected"), [(1, [1]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8])])
def test_powers_of_two(most: int, expected: list[int]) -> None:
    assert list(powers(most)) == expected
