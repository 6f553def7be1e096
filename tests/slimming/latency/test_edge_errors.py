"""Ranges of predictions for a processor come from other processors' errors."""

from __future__ import annotations

import math

from paceline.hardware.edge import edge_device
from paceline.slimming.latency.edge_errors import EdgeError, edge_errors, range_from


def rows(device: str, threads: int, *ratios: float, source: str = "a") -> list[EdgeError]:
    return [EdgeError(device, threads, "n", source, each) for each in ratios]


def test_a_range_leaves_out_the_processor_and_weighs_others_equally() -> None:
    many = [*rows("A", 1, *[1.0] * 99, 9.0), *rows("B", 1, 2.0), *rows("C", 1, 0.5), *rows("D", 1, 100.0)]
    assert range_from(many, "D", 1) == (0.5, 2.0), "one row in a hundred of A is no more than 5 %"
    assert range_from(many, "A", 1) == (0.5, 100.0)
    assert range_from([*many, *rows("B", 4, 7.0)], "A", 4) == (0.5, 100.0), "too few processors with several cores"
    several = [row for number in range(3) for row in rows(f"M{number}", 4, 3.0 + number)]
    assert range_from([*many, *several], "A", 2) == (3.0, 5.0)


def test_every_error_is_of_a_known_processor() -> None:
    assert all(edge_device(each.device).name == each.device for each in edge_errors())
    assert all(each.ratio > 0 and math.isfinite(each.ratio) and each.threads >= 1 for each in edge_errors())
