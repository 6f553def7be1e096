"""What reading weights adds."""

from __future__ import annotations

import pytest

from paceline.slimming.latency import weight_reading as reading
from paceline.slimming.latency.onnx_nodes import OnnxNode
from paceline.slimming.latency.weight_reading import seconds_per_byte


def test_each_large_operation_is_timed_in_turn_and_small_ones_are_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []

    def measured(node: OnnxNode, threads: int, many: int = 1) -> float:
        if many == 1:
            return 1e-3
        copies.append(many)
        return 2e-3

    monkeypatch.setattr(reading, "seconds", measured)
    large, small = OnnxNode("linear", (1, 500), 500), OnnxNode("linear", (1, 5), 5)
    assert seconds_per_byte([large, large, small], [1e6, 1e6, 100.0]) == pytest.approx((1e-9, 1e-9, 1e-9))
    assert copies == [2]


def test_an_operation_that_has_all_weights_reads_them_alone_as_well() -> None:
    assert seconds_per_byte([OnnxNode("linear", (1, 500), 500)], [1e6]) == (0.0,)
