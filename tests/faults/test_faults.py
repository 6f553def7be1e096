"""Injected faults: none hangs, every rank ends or goes on in 30 s with a line that names rank and cause, nothing saved is lost.

``make test-faults`` runs each twenty times.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fault_driver
from distributed import TESTS
from paceline.training.runs.launcher import GRACE_S, RESTARTS, SUSPENDED_S

RUNS = int(os.environ.get("FAULT_RUNS", "1"))

COVERED = {"SIGTERM", "SIGTERM on one rank", "Ctrl-C", "Ctrl-C twice", "two runs with one --out"}
"""Faults whose end tests/training/runs/test_launcher.py tests too."""
RUN_ON = {"SIGTERM, sharded", "SIGTERM, local steps", "one slow rank"}
"""Faults of other ways to train."""


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Return when a fault is tested: by default every day."""
    if name in fault_driver.LONG | COVERED:
        return [pytest.mark.full]
    return [pytest.mark.long] if name in RUN_ON else []


CASES = [
    pytest.param(name, number, marks=marks(name), id=f"{name}-{number}".replace(" ", "-"))
    for name in fault_driver.FAULTS
    for number in range(RUNS)
]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_fault_ends_in_order(name: str, number: int, tmp_path: Path) -> None:
    if lacking := fault_driver.missing(name):
        pytest.skip(lacking)
    outcome = fault_driver.run(name, tmp_path / "job")
    assert outcome.problems == [] and not outcome.hung
    assert outcome.seconds < fault_driver.LIMIT_S
    assert outcome.line and "\n" not in outcome.line


def test_the_page_has_the_launchers_limits() -> None:
    page = " ".join((TESTS.parent / "docs" / "faults.md").read_text().split())  # lines may break anywhere
    assert f"`paceline train` gives its workers {GRACE_S:g} s." in page and RESTARTS == 3
    assert "`paceline train --elastic` starts its workers again three times at most, and only" in page
    assert 1 <= SUSPENDED_S <= 5  # the 30 s of a fault have room for it
