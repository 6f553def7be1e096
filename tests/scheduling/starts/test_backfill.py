"""Slurm's rule on one moment: what starts, and what must wait for a reservation."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.scheduling.starts.backfill import Shape, ShapeOnNodes, backfill_starts

H = 3600.0


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        # 4 of 8 devices are free; the others come free in an hour. The first job needs 8.
        ([(8, 5 * H), (2, 0.5 * H)], [1]),  # ends before the reservation
        ([(8, 5 * H), (2, 2 * H)], []),  # would delay the first
        ([(6, 5 * H), (2, 2 * H)], [1]),  # two devices are not reserved
        ([(6, 5 * H), (2, 2 * H), (2, 2 * H)], [1]),  # but only two
        ([(4, H), (4, H)], [0]),
        ([(9, H), (4, 9 * H)], [1]),  # a job that never fits reserves nothing
    ],
)
def test_a_later_job_starts_where_it_delays_no_reservation(waiting: list[tuple[int, float]], expected: list[int]) -> None:
    shapes = [ShapeOnNodes(Shape((0,), devices)) for devices, _ in waiting]
    free = np.array([4])
    fitting = {at for at, shape in enumerate(shapes) if shape.fits(free)}
    started = backfill_starts(
        0.0, free, [(H, ((0, 4),))], range(len(waiting)), shapes, range(len(waiting)), [s for _, s in waiting], 10, fitting
    )
    assert [job for job, _ in started] == expected


def test_nodes_hold_a_job_in_equal_parts_and_the_fullest_that_suffices_is_taken() -> None:
    free = np.array([8, 3, 8, 5])
    assert ShapeOnNodes(Shape((0, 1, 2, 3), 16, 2)).place(free) == ((0, 8), (2, 8))
    assert not ShapeOnNodes(Shape((0, 1, 3), 16, 2)).fits(free)
    assert ShapeOnNodes(Shape((0, 1, 2, 3), 3)).place(free) == ((1, 3),)
    assert ShapeOnNodes(Shape((1, 3), 7)).place(free) == ((3, 5), (1, 2))
