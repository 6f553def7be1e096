"""A job says what it needs, or is refused in one line."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.scheduling.job import Job, check_names


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": ""}, "without a name"),
        ({"duration_s": 0.0}, "no work"),
        ({"duration_s": -1.0}, "duration -1"),
        ({"duration_s": 1.001e9}, "give at most 1,000,000,000 s"),
        ({"duration_s": math.nan}, "duration nan"),
        ({"arrival_s": math.inf}, "arrival inf"),
        ({"steps": -5.0}, "steps -5"),
        ({"devices": 0}, "0 devices"),
        ({"min_devices": 4, "max_devices": 2}, "4 to 2 devices"),
        ({"weight": 0.0}, "weight 0"),
        ({"weight": math.nan}, "weight nan"),
        ({"arrival_s": 10.0, "deadline_s": 10.0}, "deadline"),
        ({"deadline_s": math.nan}, "deadline"),
        ({"adapts": frozenset({"colour"})}, "adapts colour"),
        ({"limit_s": -1.0}, "time limit -1"),
        ({"min_run_s": math.inf}, "minimum runtime inf"),
        ({"grace_s": math.nan}, "grace nan"),
        ({"topology": "rak"}, "unknown topology of job 'a' 'rak'.*rack"),
        ({"share": 0.0}, "a share of 0"),
        ({"share": 1.5}, "a share of 1.5"),
        ({"share": 0.5, "devices": 2}, "a share of 0.5 and 2 devices"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Job(**{"name": "a", "duration_s": 1.0, **given})


def test_any_type_may_be_used_where_none_is_named() -> None:
    assert Job(name="a", duration_s=1).may_use("T4")
    picky = Job(name="a", duration_s=1, device_types=("T4",))
    assert picky.may_use("T4") and not picky.may_use("A100 SXM 40GB")


def test_work_may_be_stated_in_any_unit() -> None:
    for work in ({"steps": 1.0}, {"samples": 1.0}, {"epochs": 1.0}, {"target": "paper"}):
        assert Job(name="a", **work).deadline_s == math.inf  # type: ignore[arg-type]


def test_two_jobs_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="two jobs are named 'a'"):
        check_names([Job(name="a", duration_s=1), Job(name="b", duration_s=1), Job(name="a", duration_s=2)])
