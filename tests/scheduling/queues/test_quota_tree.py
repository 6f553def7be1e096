"""Quotas of queues, against the borrowing and lending examples of Kueue's documentation."""

from __future__ import annotations

import math

import pytest

from paceline.scheduling.queues.kueue_settings import ClusterQueue, Cohort, KueueSettings, Quota
from paceline.scheduling.queues.quota_tree import QuotaTree

F = {"default": "T4"}


def tree(**queues: ClusterQueue) -> QuotaTree:
    return QuotaTree(KueueSettings(queues=queues, cohorts={"below": Cohort(parent="ab")}), F)


def queue(nominal: int, cohort: str = "ab", **also: int) -> ClusterQueue:
    return ClusterQueue(quotas={"default": Quota(nominal=nominal, **also)}, cohort=cohort)


@pytest.mark.parametrize(
    ("a", "b", "may_use"),
    [
        (queue(9), queue(12), (21, 21)),
        (queue(9, borrowing_limit=1), queue(12), (10, 21)),
        (queue(9), queue(12, lending_limit=1), (10, 21)),
        (queue(9, ""), queue(12), (9, 12)),
        (queue(9, "below"), queue(12), (21, 21)),
        (queue(9, borrowing_limit=0), queue(12, lending_limit=0), (9, 21)),
    ],
    ids=["borrowing", "borrowing limit", "lending limit", "no cohort", "a cohort below", "none"],
)
def test_devices_that_a_queue_may_use_while_the_other_uses_none(
    a: ClusterQueue, b: ClusterQueue, may_use: tuple[int, int]
) -> None:
    """concepts/cluster_queue: 9 and 12 CPUs; 12 + 9 = 21, 9 + 1 = 10 with a borrowing limit of 1, or lending of 1."""
    quotas = tree(a=a, b=b)
    assert (quotas.available("a", "default"), quotas.available("b", "default")) == may_use


def test_what_one_borrows_the_other_lacks() -> None:
    quotas = tree(a=queue(9), b=queue(12, lending_limit=4))
    quotas.add("a", "default", 11)
    assert quotas.borrows("a", "default") and not quotas.borrows("b", "default")
    assert (quotas.available("a", "default"), quotas.available("b", "default")) == (2, 10)
    quotas.add("b", "default", 10)
    assert quotas.available("a", "default") == 0 and quotas.borrows("b", "default", 3)
    quotas.add("a", "default", -11)
    assert quotas.available("a", "default") == 11, "9 of its own, and 2 that are left of the 4 that b lends"


def test_the_share_is_what_is_borrowed_of_what_is_lent() -> None:
    quotas = QuotaTree(KueueSettings(queues={"a": queue(9), "b": queue(12)}), F)
    quotas.add("a", "default", 12)
    assert quotas.share("a") == pytest.approx(3 / 21) and quotas.share("b", {"default": 12}) == 0
    weighted = QuotaTree(
        KueueSettings(queues={"a": ClusterQueue(quotas=queue(0).quotas, cohort="ab", weight=0), "b": queue(4)}), F
    )
    assert weighted.share("a", {"default": 1}) == math.inf
