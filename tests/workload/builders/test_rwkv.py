"""RWKV-4: parameters by its published formula."""

from __future__ import annotations

import pytest

from paceline.workload import Workload
from paceline.workload.builders.shapes import SHAPES


@pytest.mark.parametrize("name", ["rwkv-4-3b", "rwkv-4-14b"])
def test_parameters_follow_the_published_formula(name: str) -> None:
    shape = SHAPES[name].shape
    d, layers, v = shape.hidden, shape.layers, shape.vocabulary
    assert Workload.named(name).num_parameters == 2 * v * d + 13 * d * d * layers + d * (11 * layers + 4)
    # Peng et al. 2023, arXiv:2305.13048, section 4


def test_the_scan_needs_memory_alone_and_grows_with_the_sequence() -> None:
    short, long = (Workload.from_shape(SHAPES["rwkv-4-3b"].shape, s) for s in (64, 128))
    scans = [[o for layer in table.layers if layer.name.endswith("scan") for o in layer.operations] for table in (short, long)]
    assert {o.kind for o in scans[0]} == {"memory"}
    assert sum(o.bytes for o in scans[1]) == pytest.approx(2 * sum(o.bytes for o in scans[0]))
    assert not short.attends
