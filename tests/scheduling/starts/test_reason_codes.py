"""Reasons of schedulers, and which of them set a job apart."""

from __future__ import annotations

import pytest

from paceline.scheduling.starts.reason_codes import held_text, reason_of, reason_text
from queues import waits


@pytest.mark.parametrize(
    ("reason", "kind", "says"),
    [
        ("None", "waits", ""),
        ("(Resources)", "waits", "the next one"),
        ("Priority", "waits", "higher priority"),
        ("BeginTime", "later", "begin time"),
        ("PartitionTimeLimit", "apart", "never starts"),
        ("PartitionDown", "apart", "must open it"),
        ("AssocGrpGRES", "apart", "its account is at its limit"),
        ("QOSMaxGRESPerUser", "apart", "limit of the quality of service"),
        ("QOSGrpCpuLimit", "apart", "its quality of service is at its limit"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "apart", "when the node is back"),
        ("Nodes required for job are DOWN, DRAINED or reserved", "apart", "when they are back"),
        ("DependencyNeverSatisfied", "apart", "never starts"),
        ("JobHeldAdmin", "apart", "must release it"),
        ("AssocMaxWallDurationPerJobLimit", "apart", "its account allows one job: it never starts"),
        ("(QOSMaxWallDurationPerJobLimit)", "apart", "its quality of service allows one job: it never starts"),
        ("ClusterQueue c is stopped, and evicts its running jobs (HoldAndDrain)", "apart", "(HoldAndDrain): its"),
        ("Odd", "apart", "Odd"),
        ("LocalQueue team-zz doesn't exist", "apart", "inadmissible"),
        ("ClusterQueue cqa is inactive", "apart", "admits nothing"),
    ],
)
def test_each_reason_has_one_meaning(reason: str, kind: str, says: str) -> None:
    job = waits("x", 1, reason=reason)
    assert reason_of(job).kind == kind and says in reason_text(job)
    assert reason_of(waits("x", 1, reason="insufficient unused quota, 2 more needed"), "kueue").kind == "waits"
    if kind == "later":
        assert "does not say until when" in held_text(job)
