"""Placements that a job can have on an executor's nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from live_jobs import training
from paceline.errors import UserError
from paceline.scheduling.executors.executor import check_fits

HERE = Path("/data")


def test_a_placement_names_nodes_and_devices_that_there_are() -> None:
    nodes = (("h0", 2), ("h1", 2))
    check_fits(training(HERE), {"h0": 2, "h1": 2}, nodes)
    for placement, reason in (
        ({"h9": 1}, "unknown node 'h9'"),
        ({"h0": 3}, "3 devices of node h0; it has 2"),
        ({"h0": 2, "h1": 1}, "on 3 devices; it runs on 1, 2, 4"),
        ({}, "on 0 devices"),
    ):
        with pytest.raises(UserError, match=reason):
            check_fits(training(HERE), placement, nodes)
