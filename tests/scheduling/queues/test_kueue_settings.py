"""Settings of Kueue are checked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.errors import UserError
from paceline.scheduling.queues.kueue_settings import ClusterQueue, Cohort, KueueSettings, Quota


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Quota(nominal=-1), "a quota below 0"),
        (lambda: ClusterQueue(strategy="FIFO"), "did you mean|unknown queueing strategy"),  # type: ignore[arg-type]
        (lambda: ClusterQueue(reclaim="All"), "unknown reclaim"),  # type: ignore[arg-type]
        (lambda: KueueSettings(local_queues={"a": "b"}), "unknown cluster queue of local queue a"),
        (lambda: KueueSettings(cohorts={"a": Cohort(parent="b"), "b": Cohort(parent="a")}), "is above itself"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()
