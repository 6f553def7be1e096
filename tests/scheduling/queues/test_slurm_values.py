"""Values of Slurm's settings in its own words."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.scheduling.queues.slurm_values import (
    exempt_seconds,
    grace_seconds,
    preempt_mode,
    preempts_within,
    slurm_bytes,
    slurm_seconds,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:00:00", 3600),
        ("7-0", 604800),
        ("1-12:30", 131400),
        ("2-00:00:01", 172801),
        ("UNLIMITED", 0),
    ],
)
def test_times_of_slurm(text: str, seconds: float) -> None:
    assert slurm_seconds(text) == seconds


def test_graces_are_seconds_or_times_and_modes_have_flags() -> None:
    assert (grace_seconds("120"), grace_seconds("00:02:00"), grace_seconds("")) == (120, 120, 0)
    assert (exempt_seconds("-1"), exempt_seconds("00:10:00")) == (0, 600)
    assert [preempt_mode(text) for text in ("", "cluster", "GANG,SUSPEND", "REQUEUE,WITHIN")] == [
        "cluster",
        "cluster",
        "suspend",
        "requeue",
    ]
    assert preempts_within("REQUEUE,WITHIN") and not preempts_within("cluster")
    with pytest.raises(UserError, match="PreemptMode 'kill'"):
        preempt_mode("kill")


def test_memory_is_in_mebibytes_or_the_unit_that_it_names() -> None:
    """sacctmgr(1): mem=2000 are MiB."""
    assert (slurm_bytes("2000"), slurm_bytes("1.5G"), slurm_bytes("3T")) == (2000 * 2**20, 1.5 * 2**30, 3 * 2**40)
    with pytest.raises(UserError, match="no amount of memory"):
        slurm_bytes("much")
