"""Embedding tables as part of a layer table."""

from __future__ import annotations

from dataclasses import replace

from paceline.workload import Workload
from paceline.workload.builders.embedding_tables import EmbeddingTables


def test_a_layer_table_keeps_its_embedding_tables() -> None:
    tables = EmbeddingTables(layer=0, elements=1280, bytes=512.0)
    own = replace(Workload.named("lenet5"), tables=tables)
    assert Workload.from_json(own.to_json()).tables == tables
    assert own.num_parameters == Workload.named("lenet5").num_parameters  # their rows are no parameters
    assert "tables" not in Workload.named("lenet5").to_json()
