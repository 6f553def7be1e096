"""Switches that add: found by any spelling, with what they add and what their packets cost."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster, aggregation, aggregations, cluster


def test_every_switch_has_a_source_and_is_found() -> None:
    for switch in aggregations():
        assert switch.source and switch.sums and switch.kinds
        assert all(aggregation(name.upper()) is switch for name in (switch.name, *switch.aliases))
        assert (switch.payload is None) == (switch.headers is None)
    assert aggregation("SHARP").sums == ("fp32",) and aggregation("atp").sums == ("int32",)


def test_packets_of_their_own_take_more_of_the_line() -> None:
    assert aggregation("ATP").on_line(1448, 66) == pytest.approx((308 / 248) / (1514 / 1448))
    assert aggregation("SHARP").on_line(1448, 66) == 1


def test_an_unknown_one_names_those_that_are_known() -> None:
    with pytest.raises(UserError, match=r"unknown switch that adds 'SwitchLM'.*SwitchML"):
        aggregation("SwitchLM")


def test_a_cluster_keeps_it_through_json() -> None:
    four = cluster("A100", 1, 4, "10Gb/s").changed(aggregation=aggregation("SwitchML"))
    assert four.changed(num_nodes=2).aggregation == four.aggregation and Cluster.from_json(asdict(four)) == four
