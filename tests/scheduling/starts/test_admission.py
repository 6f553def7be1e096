"""The cluster queue of each job, and jobs that no rule admits."""

from __future__ import annotations

from dataclasses import replace

from paceline.scheduling.queues.kueue_settings import ClusterQueue, KueueSettings
from paceline.scheduling.starts.admission import in_cluster_queues, with_named_queues
from queues import waits


def test_a_local_queue_is_that_of_its_namespace() -> None:
    queues = {"cqa": ClusterQueue(), "cqb": ClusterQueue()}
    named = KueueSettings(queues=queues, local_queues={"team": "cqb", "one/team": "cqa", "two/team": "cqb"})
    jobs = [waits("one/j", 1, queue="team"), waits("two/j", 1, queue="team"), waits("three/j", 1, queue="team")]
    found = in_cluster_queues(jobs, named)
    assert [job.queue for job in found] == ["cqa", "cqb", "team"] and found[2].reason == "LocalQueue three/team doesn't exist"
    plain = replace(named, local_queues={})
    assert in_cluster_queues([waits("j", 1, queue="cqb")], plain)[0].queue == "cqb"
    assert "not in the file" in in_cluster_queues(jobs, plain)[0].reason
    assert in_cluster_queues(jobs, KueueSettings(queues={"only": ClusterQueue()}))[0].queue == "only"
    assert set(with_named_queues(plain, [waits("j", 1, queue="new")]).queues) == {"cqa", "cqb", "new"}
