"""Outages as a user writes them, and failures that are drawn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.scheduling.fleet import Outage
from paceline.scheduling.simulate.failures import drawn_outages, parse_outages


def test_outages_in_words() -> None:
    assert parse_outages(["3:2h-5h", "0: 0 - 90min"], planned=True) == [Outage(3, 7200, 18000, True), Outage(0, 0, 5400, True)]


@pytest.mark.parametrize("text", ["3", "3:2h", "x:1h-2h", "3:2h-soon", ""])
def test_what_is_no_outage(text: str) -> None:
    with pytest.raises(UserError):
        parse_outages([text], planned=False)


def test_failures_come_as_often_as_asked() -> None:
    outages = drawn_outages(200, 1000.0, 50.0, 100_000.0, seed=1)
    assert len(outages) == pytest.approx(200 * 100_000 / 1050, rel=0.02)
    assert all(outage.end_s == pytest.approx(outage.start_s + 50) and not outage.planned for outage in outages)
    first = [outage for outage in outages if outage.node == 0]
    gaps = [after.start_s - before.end_s for before, after in pairwise(first)]
    assert min(gaps) > 0 and np.mean(gaps) == pytest.approx(1000, rel=0.3)
    assert drawn_outages(200, 1000.0, 50.0, 100_000.0, seed=1) == outages != drawn_outages(200, 1000.0, 50.0, 100_000.0, seed=2)


@pytest.mark.parametrize(("between", "repair"), [(0.0, 5.0), (5.0, 0.0), (1e-3, 1e-3)])
def test_impossible_failures(between: float, repair: float) -> None:
    with pytest.raises(UserError):
        drawn_outages(4, between, repair, 1e6, 0)
