"""DLRM against its published dimensions."""

from __future__ import annotations

from itertools import pairwise

import pytest

from paceline.errors import UserError
from paceline.workload import Workload, names
from paceline.workload.builders.recommendation import RECOMMENDERS, RecommenderShape, recommender
from traced_layers import work


def dense(*widths: int) -> int:
    """Parameters of linear layers of these widths, with their biases."""
    return sum((a + 1) * b for a, b in pairwise(widths))


def test_dlrm_has_the_dimensions_of_mlperf() -> None:
    table = Workload.named("dlrm")
    # 13-512-256-128, and 479-1024-1024-512-256-1: 351 pairs of 27 vectors, and the dense one.
    assert table.num_parameters == dense(13, 512, 256, 128) + dense(479, 1024, 1024, 512, 256, 1) == 2_368_897
    products = 13 * 512 + 512 * 256 + 256 * 128 + 27 * 27 * 128 + 479 * 1024 + 1024**2 + 1024 * 512 + 512 * 256 + 256
    assert table.flops_forward == 2 * products
    assert table.tables is not None and table.tables.elements == pytest.approx(24e9, rel=0.01)  # 96 GB at fp32
    assert table.tables.bytes == 26 * 128 * 4
    assert not any(p.name.startswith("tables") for p in table.parameters)


def test_the_second_dlrm_reads_several_rows_and_has_cross_layers() -> None:
    table, shape = Workload.named("dlrm-dcnv2"), RECOMMENDERS["dlrm-dcnv2"][0]
    cross = 3 * (2 * 3456 * 512 + 3456)  # 27 vectors of 128, rank 512
    assert table.num_parameters == dense(13, 512, 256, 128) + cross + dense(3456, 1024, 1024, 512, 256, 1)
    assert len(shape.rows) == len(shape.looked_up) == 26 and sum(shape.looked_up) == 214
    lookups = next(layer for layer in table.layers if layer.name == "tables")
    assert work(lookups, "bytes_forward") == 214 * 8 + 214 * 512 + 26 * 512
    assert table.tables is not None and table.layers[table.tables.layer] is lookups


@pytest.mark.parametrize("name", RECOMMENDERS)
def test_recommenders_are_workloads_as_others(name: str) -> None:
    table = Workload.named(name.upper())
    assert name in names() and Workload.from_json(table.to_json()) == table
    with pytest.raises(UserError, match="has no sequence length to choose"):
        Workload.named(name, 128)


def test_a_recommender_of_few_tables() -> None:
    shape = RecommenderShape(rows=(10, 20), looked_up=(1, 3), width=4, dense=2, bottom=(4,), top=(8, 1))
    table = recommender(shape)
    assert table.tables is not None and table.tables.elements == 30 * 4
    assert table.num_parameters == dense(2, 4) + dense(3 + 4, 8, 1)
    assert table.input_bytes == 2 * 4 + 4 * 8
