"""Blocks of a network: their sums are the network's."""

from __future__ import annotations

import pytest

from paceline import Workload
from paceline.prediction.mesh.stages import segments_of, stages
from paceline.prediction.passes.blocks import block_begins
from paceline.workload import TransformerShape


@pytest.mark.parametrize("name", ["llama-2-7b", "bert-large"])
def test_the_blocks_add_up_to_the_network(name: str) -> None:
    workload = Workload.named(name)
    blocks = len(block_begins(workload))
    segments = segments_of(workload, blocks)
    assert len(segments.workloads) == blocks == len(segments.starts)
    assert segments.elements.sum() - segments.tied == workload.num_parameters
    assert segments.tensors.sum() - (segments.tied > 0) == len(workload.parameters)
    assert [len(own.layers) for own in segments.workloads[:-1]] == (segments.starts[1:] - segments.starts[:-1]).tolist()
    assert segments.boundary[:-1].min() > 0


def test_a_table_that_both_ends_have_is_counted_twice_and_said_so() -> None:
    tied = Workload.from_shape(TransformerShape(layers=4, hidden=256, heads=4, vocabulary=1000, tied=True), 128)
    assert segments_of(tied, 4).tied == stages(tied, 4, 1)[0].tied > 0


def test_a_network_of_one_block_or_none_is_one_segment() -> None:
    lenet = Workload.named("lenet5")
    segments = segments_of(lenet, 1)
    assert segments.workloads == (lenet,) and segments.elements.tolist() == [lenet.num_parameters]
