"""Starts of small queues by the rules of Kueue, Volcano and Slurm, computed by hand. Every job runs to its limit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kueue_queues import KUEUE, NOW_S, cluster_queue, kueue_queue, local_queue, volcano_job, volcano_queue, workload
from paceline.scheduling.queues.slurm_settings import Account, Qos, SlurmPartition, SlurmSettings
from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions
from paceline.scheduling.starts.live_source import read_waiting_queue
from paceline.scheduling.starts.sooner import sooner
from paceline.scheduling.starts.wait_reasons import wait_reasons
from paceline.scheduling.starts.waiting_queue import WaitingQueue
from paceline.scheduling.traces.record import JobLog, LoggedJob
from queues import NOW, nodes, runs, waits

LIMITS = ForecastOptions(futures=2, arrivals=False, lengths="limits")
A, B = local_queue("team-a", "cqa"), local_queue("team-b", "cqb")
HELD_4, HELD_8 = (workload("a1", "team-a", count, "08:00", "cqa", 7200) for count in (4, 8))  # one hour is left
MIG = "nvidia.com/mig-1g.5gb"
RECLAIMS = {"preemption": {"reclaimWithinCohort": "Any"}}
WITHIN = {"preemption": {"withinClusterQueue": "LowerPriority"}}
Objects = tuple[dict[str, Any], ...]
CASES: dict[str, tuple[Objects, dict[str, float], dict[str, str]]] = {
    "a quota binds though devices are free": (
        (
            cluster_queue("cqa", 4, borrowingLimit=0),
            cluster_queue("cqb", 4),
            A,
            B,
            HELD_4,
            workload("a2", "team-a", 2, "08:10"),
            workload("b1", "team-b", 4, "08:20"),
        ),
        {"ns/a2": 3600.0, "ns/b1": 0.0},
        {},
    ),
    "a borrowing limit binds": (
        (
            cluster_queue("cqa", 4, borrowingLimit=2),
            cluster_queue("cqb", 4),
            A,
            B,
            HELD_4,
            workload("a2", "team-a", 2, "08:10"),
            workload("a3", "team-a", 2, "08:20"),
        ),
        {"ns/a2": 0.0, "ns/a3": 3600.0},
        {},
    ),
    "a queue takes back what another borrows": (
        (cluster_queue("cqa", 4), cluster_queue("cqb", 4, **RECLAIMS), A, B, HELD_8, workload("b1", "team-b", 4, "08:20")),
        {"ns/b1": 0.0},
        {},
    ),
    "without reclaim it waits": (
        (cluster_queue("cqa", 4), cluster_queue("cqb", 4), A, B, HELD_8, workload("b1", "team-b", 4, "08:20")),
        {"ns/b1": 3600.0},
        {},
    ),
    "a job of higher priority preempts": (
        (
            cluster_queue("cqa", 8, **WITHIN),
            A,
            HELD_8,
            workload("a2", "team-a", 8, "08:20", priority=5),
            workload("a3", "team-a", 8, "08:10"),
        ),
        {"ns/a2": 0.0, "ns/a3": 7200.0},
        {},
    ),
    "no job passes the first under StrictFIFO": (
        (
            cluster_queue("cqa", 8, queueingStrategy="StrictFIFO"),
            A,
            HELD_4,
            workload("a2", "team-a", 8, "08:10"),
            workload("a3", "team-a", 2, "08:20"),
        ),
        {"ns/a2": 3600.0, "ns/a3": 7200.0},
        {},
    ),
    "under BestEffortFIFO it does": (
        (cluster_queue("cqa", 8), A, HELD_4, workload("a2", "team-a", 8, "08:10"), workload("a3", "team-a", 2, "08:20")),
        {"ns/a2": 3600.0, "ns/a3": 0.0},
        {},
    ),
    "a first job that never fits blocks its queue for good": (
        (
            cluster_queue("cqa", 8, queueingStrategy="StrictFIFO", borrowingLimit=0),
            A,
            workload("a0", "team-a", 1, "08:00"),
            workload("a1", "team-a", 9, "08:10"),
            workload("a2", "team-a", 2, "08:20"),
        ),
        {"ns/a0": 0.0},
        {"ns/a1": "9; cqa may use 8", "ns/a2": "blocked by ns/a1"},
    ),
    "a stopped queue, one that does not exist, and a stopped local queue": (
        (
            cluster_queue("cqa", 4),
            cluster_queue("cqb", 4, stopPolicy="Hold"),
            A,
            B,
            local_queue("team-c", "cqa", stopPolicy="Hold"),
            workload("c1", "team-c", 2, "08:10"),
            workload("a1", "team-a", 2, "08:10"),
            workload("b1", "team-b", 2, "08:20"),
            workload("z1", "team-zz", 2, "08:10"),
        ),
        {"ns/a1": 0.0},
        {"ns/b1": "cqb is stopped", "ns/z1": "team-zz doesn't exist", "ns/c1": "team-c is stopped"},
    ),
    "MIG slices have their own quota": (
        (
            cluster_queue("cqa", 8, MIG),
            A,
            workload("a1", "team-a", 7, "08:00", "cqa", 7200, MIG),
            workload("a2", "team-a", 2, "08:10", resource=MIG),
            workload("a3", "team-a", 1, "08:20", resource=MIG),
        ),
        {"ns/a2": 3600.0, "ns/a3": 0.0},
        {},
    ),
    "a stopped queue lends its quota": (
        (cluster_queue("cqa", 8, stopPolicy="Hold"), cluster_queue("cqb", 0), A, B, workload("b1", "team-b", 8, "08:20")),
        {"ns/b1": 0.0},
        {},
    ),
    "and its running jobs are not preempted": (
        (
            cluster_queue("cqa", 4, stopPolicy="Hold"),
            cluster_queue("cqb", 4, **RECLAIMS),
            A,
            B,
            HELD_8,
            workload("b1", "team-b", 4, "08:20"),
        ),
        {"ns/b1": 3600.0},
        {},
    ),
    "a capability of Volcano binds, and a gang is enough": (
        (
            volcano_queue("q", 6),
            volcano_job("v0", [4], "08:00", runs=True),
            volcano_job("v1", [7], "08:10"),
            volcano_job("v2", [1, 2, 2, 2], "08:20", gang=2),
            volcano_job("v3", [2], "08:05"),
        ),
        {"ns/v2": 3600.0, "ns/v3": 0.0},
        {"ns/v1": "7; q may use 6"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_starts_are_those_of_the_rules(name: str) -> None:
    objects, starts, refused = CASES[name]
    for cluster in ("", "1x8xA100") if MIG not in str(objects) else ("", "1x8xA100 1g.5gb"):
        queue = kueue_queue(*objects, cluster=cluster)
        found = {each.job.name: each.start() for each in Forecaster(queue, LIMITS).forecast().jobs}
        assert found == starts, cluster
        why = {job.name: job.reason for job in queue.held} | {row.name: row.detail for row in queue.skipped}
        assert why.keys() == refused.keys() and all(text in why[job] for job, text in refused.items())


def test_gpus_that_are_mig_slices_have_the_quota_and_the_nodes_of_their_flavor(tmp_path: Path) -> None:
    """The strategy ``single`` of NVIDIA's GPU operator: nvidia.com/gpu counts slices, and the product's label names them."""
    label = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}
    flavor = {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "default"}, "spec": {"nodeLabels": label}}
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "7"}}
    node = {"kind": "Node", "metadata": {"name": "n0", "labels": label}, "spec": {}, "status": ready}
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps({"kind": "List", "items": [node]}))
    objects = [
        cluster_queue("cqa", 7),
        A,
        workload("a1", "team-a", 6, "08:00", "cqa", 7200),
        workload("a2", "team-a", 2, "08:10"),
    ]
    text = json.dumps({"kind": "List", "items": [flavor, *objects]})
    for given in ({}, {"nodes": file}):
        queue = read_waiting_queue("-", stdin=lambda: text, now_s=NOW_S, **given)  # type: ignore[arg-type]
        assert [(job.profile, job.devices) for job in (*queue.running, *queue.waiting)] == [("1g.5gb", 6), ("1g.5gb", 2)]
        assert {each.job.name: each.start() for each in Forecaster(queue, LIMITS).forecast().jobs} == {"ns/a2": 3600.0}
        assert queue.nodes.types == ("A100 1g.5gb",)


def test_a_preempted_job_ends_later_and_the_policy_says_why_a_job_waits() -> None:
    late = [workload(name, "team-a", 8, "08:30", priority=at, labels={"user": "ann"}) for at, name in enumerate("abc")]
    queue = kueue_queue(cluster_queue("cqa", 8, **WITHIN), A, *late)
    forecaster = Forecaster(queue, LIMITS)
    ends = {each.job.name: (each.start(), each.end()) for each in forecaster.forecast().jobs}
    assert ends == {"ns/c": (0.0, 3600.0), "ns/b": (3600.0, 7200.0), "ns/a": (7200.0, 10800.0)}
    assert {job.user for job in queue.waiting} == {"ann"} and queue.job("a").name == "ns/a"
    assert "cqa owns 8 default: 0 of its quota" in forecaster.reasons["ns/b"]
    says = " ".join(wait_reasons(forecaster, queue, queue.job("b")))
    assert "asks for 8 devices in queue cqa; cluster queue cqa owns" in says and "asks for 8 devices: ns/c" in says
    preempted = kueue_queue(cluster_queue("cqa", 8, **WITHIN), A, HELD_8, late[2])
    forecast = Forecaster(preempted, LIMITS).forecast().jobs[0]
    assert math.isclose(forecast.end(), 3600.0) and np.all(forecast.start_s == 0)


SHARES = SlurmSettings(weight_fairshare=1000.0, usage={("lab", "ann"): 1e6, ("lab", "bob"): 1.0})
HELD = runs("r", 8, 3600.0, 7200.0, user="eve", account="lab", qos="low", queue="gpu")
BY_ANN = waits("ann", 8, 3600.0, 99.0, user="ann", account="lab", priority=9.0)
BY_BOB = waits("bob", 8, 3600.0, 9.0, user="bob", account="lab", qos="high", priority=1.0)
AT_BOUND = replace(BY_BOB, devices=2, reason="AssocGrpGRES")
SLURM: dict[str, tuple[SlurmSettings, tuple[LoggedJob, ...], dict[str, float]]] = {
    "the smaller use of the cluster comes first": (SHARES, (HELD, BY_ANN, BY_BOB), {"ann": 7200.0, "bob": 3600.0}),
    "or the printed priority without factors": (
        SlurmSettings(multifactor=False),
        (HELD, BY_ANN, BY_BOB),
        {"ann": 3600.0, "bob": 7200.0},
    ),
    "a bound of the account": (
        SlurmSettings(accounts={"lab": Account(max_devices=5)}),
        (replace(HELD, devices=4), AT_BOUND),
        {"bob": 3600.0},
    ),
    "a bound of jobs of the user in its QOS": (
        SlurmSettings(qos={"high": Qos(max_jobs_per_user=1)}),
        (replace(HELD, devices=4, user="bob", qos="high"), replace(AT_BOUND, reason="QOSMaxJobsPerUserLimit")),
        {"bob": 3600.0},
    ),
    "a quality of service preempts another": (
        SlurmSettings(qos={"high": Qos(preempts=("low",)), "low": Qos()}, preempt="qos"),
        (HELD, BY_ANN, BY_BOB),
        {"ann": 3600.0, "bob": 0.0},  # the preempted job is submitted again
    ),
    "a tier comes before a priority": (
        SlurmSettings(multifactor=False, partitions={"fast": SlurmPartition(tier=2)}),
        (HELD, BY_ANN, replace(BY_BOB, queue="fast")),
        {"ann": 7200.0, "bob": 3600.0},
    ),
}


@pytest.mark.parametrize("name", SLURM)
def test_settings_of_slurm_decide(name: str) -> None:
    settings, jobs, expected = SLURM[name]
    there = WaitingQueue.of(JobLog(jobs=jobs, form="squeue", moment_s=NOW), nodes(8), settings=settings)
    assert {each.job.name: each.start() for each in Forecaster(there, LIMITS).forecast().jobs} == expected


def test_a_change_that_could_never_start_does_not_help() -> None:
    settings = SlurmSettings(multifactor=False, partitions={"gpu": SlurmPartition(max_limit_s=4000.0)})
    log = JobLog(jobs=(HELD, replace(BY_BOB, queue="gpu")), form="squeue", moment_s=NOW)
    forecaster = Forecaster(WaitingQueue.of(log, nodes(8), settings=settings), LIMITS)
    forecast = forecaster.forecast().jobs[0]
    longer = replace(forecast.job, devices=4, limit_s=7200.0)
    assert forecaster.variant(forecast.job, longer, forecaster.distribution(forecast.job)).start() == math.inf
    assert all(math.isfinite(each.forecast.start()) for each in sooner(forecaster, forecast))
