"""Jobs that no nodes hold are refused with their number, or left out."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.simulate.oversized_jobs import check_sizes, without_too_large
from scheduling_toys import elastic, rigid

MIXED = Fleet.named("2x4xT4 + 1x2xK80")


def test_the_largest_type_that_a_job_may_use_counts() -> None:
    check_sizes([rigid("a", 1, 8), elastic("b", 1, devices=20), rigid("c", 1, 2, device_types=("K80",))], MIXED)
    with pytest.raises(
        UserError, match=r"^row 7: job 'c' asks for 4 devices; the cluster has 2 of one type that it may use; give"
    ):
        check_sizes([rigid("c", 1, 4, device_types=("K80",))], MIXED, ["row 7"])
    with pytest.raises(UserError, match=r"job 'a' asks for 9 devices.*\(2 more of 4 jobs are too large\)"):
        check_sizes([rigid(name, 1, size) for name, size in (("b", 8), ("a", 9), ("c", 10), ("d", 99))], MIXED)
    with pytest.raises(UserError, match="job 'a' runs on V100; the cluster has T4, K80"):
        check_sizes([rigid("a", 1, device_types=("V100",))], MIXED)


def test_jobs_too_large_are_left_out_and_counted() -> None:
    jobs = [rigid("a", 1, 8), rigid("b", 1, 9), elastic("c", 1, devices=9), rigid("d", 1, 1)]
    stay, notes = without_too_large(jobs, MIXED)
    assert [job.name for job in stay] == ["a", "d"] and notes[0].startswith("2 of 4 jobs left out: ")
    assert without_too_large(stay, MIXED) == (stay, ())
    with pytest.raises(UserError, match="all 2 jobs are larger than the cluster; give one of 9 devices or more"):
        without_too_large(jobs[1:3], MIXED)
