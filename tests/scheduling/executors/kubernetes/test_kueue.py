"""Queues of Kueue: what is not there, quotas, and why a Workload waits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

pytest.importorskip("kubernetes", reason="needs Kubernetes: pip install 'paceline[kubernetes]'")

from kubernetes_nodes import node
from kubernetes_worlds import World, make_world
from live_jobs import training
from paceline.errors import UserError
from paceline.scheduling.executors.kubernetes.kueue import why_waiting

__all__ = ["make_world"]


def test_queues_flavors_and_quotas(make_world: Callable[..., World]) -> None:
    world = make_world({}, queue="team")
    for name, flavor in (("a", "fast"), ("b", "fast"), ("c", "slow"), ("d", "none")):
        world.store.create("nodes", "", node(name, 4, flavor=flavor))
    with pytest.raises(UserError, match=r"unknown queue of namespace default 'team'; legal: none"):
        world.executor.nodes()
    world.queue({"f": 6, "s": 2}, labels={"f": "fast", "s": "slow"})
    assert world.executor.nodes() == (("a", 4), ("b", 2), ("c", 2))
    job = training(world.base, directory=str(world.base))
    world.runs(job, {"c": 2})
    assert world.store.list("jobs")[0]["spec"]["template"]["spec"]["nodeSelector"] == {"flavor": "slow"}
    assert world.executor.nodes() == (("a", 4), ("b", 2), ("c", 2))  # its own use takes nothing from it
    with pytest.raises(UserError, match="nodes c, a have the flavors f and s, and Kueue gives a job one; limit"):
        world.executor.resize("job", {"c": 2, "a": 2})
    world.executor.resize("job", {"a": 2})  # of another flavor: it is stopped, and gets a new Job
    world.step(4)
    assert world.placed("job") == {"a": 2}
    world.executor.resize("job", {"c": 2})
    world.step(4)
    kueue = world.executor._cluster.kueue
    assert kueue is not None
    with pytest.raises(UserError, match=r"queue team gives no cpu; it gives nvidia.com/gpu"):
        kueue.flavors("cpu")
    world.store.patch("clusterqueues", "", "all", {"spec": {"cohort": "lenders"}})
    flavors = kueue.flavors("nvidia.com/gpu")
    assert flavors is not None and flavors[0].quota == math.inf and flavors[1].used == 2
    world.server.forbidden = lambda user, verb, kind: kind == "clusterqueues"
    assert dict(world.executor.nodes()) == dict.fromkeys("abcd", 4)  # without rights Kueue keeps them waiting
    world.server.groups["kueue.x-k8s.io"] = ["v9"]
    with pytest.raises(UserError, match=r"does not serve Kueue's v1beta2 or v1beta1: it serves v9; install Kueue"):
        world.again().nodes()


def test_why_a_workload_waits() -> None:
    def said(*conditions: tuple[str, str, str], active: bool = True) -> str:
        found = [{"type": kind, "status": status, "message": text} for kind, status, text in conditions]
        return why_waiting([{"spec": {"active": active}, "status": {"conditions": found}}])

    assert why_waiting([]) == "Kueue has not seen it yet"
    assert said() == "Kueue: in the queue"
    assert said(("QuotaReserved", "False", "no quota")) == "Kueue: no quota"
    assert said(("Evicted", "True", "Preempted"), ("QuotaReserved", "False", "x")) == "Kueue: Preempted"
    assert said(("Admitted", "True", ""), ("QuotaReserved", "True", "")) == ""
