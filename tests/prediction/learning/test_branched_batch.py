"""Critical batch of branched runs, its file, and the stages that it allows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.prediction.learning.branched_batch import BranchedBatch, BranchedRun, read_rows, stages_within, write_row


def found(*losses: float, tolerance: float = 0.01) -> BranchedBatch:
    return BranchedBatch(100, tuple(BranchedRun(8 << n, loss) for n, loss in enumerate(losses)), tolerance)


@pytest.mark.parametrize(
    ("losses", "critical", "bounded"),
    [
        ((1.0,), 8, False),
        ((1.0, 0.99, 1.005, 1.2), 32, True),
        ((1.0, 1.2, 1.0), 8, True),  # a larger batch that loses nothing does not mend a smaller one that does
        ((1.0, 1.0, math.nan), 16, True),
        ((1.0, 1.009, 1.0), 32, False),
    ],
)
def test_the_largest_batch_that_loses_nothing(losses: tuple[float, ...], critical: int, bounded: bool) -> None:
    result = found(*losses)
    assert (result.critical_batch, result.bounded) == (critical, bounded)
    assert result.to_json()["critical_batch"] == critical


def test_rows_are_kept_in_order_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "critical_batch.csv"
    for samples, losses in ((100, (1.0, 1.0)), (100, (1.0, 2.0))):
        write_row(path, BranchedBatch(samples, tuple(BranchedRun(8 << n, loss) for n, loss in enumerate(losses))))
    write_row(path, BranchedBatch(0, (BranchedRun(4, 1.0),)))
    assert read_rows(path) == [(0, 4), (100, 8)]
    path.write_text("samples,critical_batch\n5,many\n")
    with pytest.raises(UserError, match="row 1"):
        read_rows(path)


def test_the_batch_doubles_when_the_critical_batch_allows_it() -> None:
    rows = [(0, 16), (100, 32), (300, 160)]
    assert stages_within(rows, 16, 1024) == [(0, 16), (100, 32), (150, 64), (250, 128)]
    assert stages_within(rows, 16, 64) == [(0, 16), (100, 32), (150, 64)]
    assert stages_within([(50, 64)], 16, 64) == [(0, 16), (50, 64)]
    assert stages_within([(0, 64)], 16, 1024) == [(0, 64)] and stages_within([(0, 8)], 16, 1024) == [(0, 16)]
