"""Holders of Slurm's settings are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.scheduling.queues.slurm_holders import Account, Qos, SlurmPartition
from paceline.scheduling.queues.slurm_limits import DeviceLimits, Limits


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Qos(preempt_mode="kill"), "unknown preempt_mode of a QOS 'kill'"),  # type: ignore[arg-type]
        (lambda: SlurmPartition(preempt_mode="kill"), "unknown preempt_mode of a partition"),  # type: ignore[arg-type]
        (lambda: SlurmPartition(state="OPEN"), "unknown state of a partition"),  # type: ignore[arg-type]
        (lambda: Account(max_submitted_per_account=2), "max_submitted_per_account of an account"),
        (lambda: Account(of_resource={"cpu": DeviceLimits(max_devices_per_user=2)}), "max_devices_per_user of an account"),
        (lambda: Account(user_limits={"ann": Limits(max_jobs_per_account=1)}), "max_jobs_per_account of user ann"),
    ],
)
def test_what_slurm_does_not_have_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()
