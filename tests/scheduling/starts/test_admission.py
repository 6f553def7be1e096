"""The cluster queue of each job, and jobs that no rule admits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kueue_queues import cluster_queue, kueue_queue, local_queue, volcano_job, volcano_queue, workload
from paceline.errors import UserError
from paceline.scheduling.queues.kueue_settings import ClusterQueue, KueueSettings
from paceline.scheduling.queues.slurm_config import parse_slurm
from paceline.scheduling.queues.slurm_limits import DeviceLimits
from paceline.scheduling.queues.slurm_settings import Account, Qos, SlurmPartition, SlurmSettings
from paceline.scheduling.queues.unknown_names import ignored_limits
from paceline.scheduling.starts.admission import in_cluster_queues, never_fits, with_named_queues
from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions
from paceline.scheduling.starts.new_job import parse_new
from paceline.scheduling.starts.queue_nodes import QueueNodes
from paceline.scheduling.starts.reason_codes import held_text
from paceline.scheduling.starts.waiting_queue import WaitingQueue
from paceline.scheduling.traces.record import JobLog
from paceline.scheduling.traces.snapshot import parse_queue
from queues import NOW, nodes, runs, waits


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
    named_by = [waits("j", 1, queue="missing"), waits("k", 1, queue="default"), runs("r", 1, 60.0, queue="new")]
    assert set(with_named_queues(plain, named_by).queues) == {"cqa", "cqb", "new", "default"}


def test_a_job_of_slurm_above_a_bound_never_starts() -> None:
    accounts = {"x": Account(max_devices=12), "below": Account(parent="x")}
    settings = SlurmSettings(accounts=accounts, qos={"q": Qos(max_devices_per_user=4)})
    jobs = [waits("a", 16, account="below"), waits("b", 12, account="x"), waits("c", 5, qos="q"), waits("d", 4, qos="q")]
    log = JobLog(jobs=tuple(jobs), form="squeue", file="squeue.txt", moment_s=NOW)
    queue = WaitingQueue.of(log, nodes(16), settings=settings)
    assert [job.name for job in queue.waiting] == ["b", "d"]
    assert [job.reason for job in queue.held] == [
        "never starts: it asks for 16 devices, and account x may hold 12 devices",
        "never starts: it asks for 5 devices, and user default of QOS q may hold 4 devices",
    ]


def test_a_job_of_slurm_above_a_bound_of_time_never_starts() -> None:
    """squeue(1), JOB REASON CODES: QOSMaxWallDurationPerJobLimit."""
    settings = SlurmSettings(qos={"q": Qos(max_limit_s=3600.0)})
    job = waits("a", 1, qos="q", limit_s=7200.0, reason="QOSMaxWallDurationPerJobLimit")
    log = JobLog(jobs=(job,), form="squeue", file="squeue.txt", moment_s=NOW)
    held = WaitingQueue.of(log, nodes(16), settings=settings).held
    assert [each.reason for each in held] == ["never starts: its time limit is longer than the 60 min that QOS q allows"]


@pytest.mark.parametrize(
    ("state", "held", "new"),
    [("DOWN", True, "starts no job"), ("DRAIN", False, "takes no new"), ("INACTIVE", True, "takes no new")],
)
def test_a_closed_partition_starts_or_takes_no_job(state: str, held: bool, new: str) -> None:
    """scontrol(1), State of a partition: jobs that wait in a draining one may still run."""
    settings = parse_slurm(f"PartitionName=gpu State={state}\nPartitionName=debug State=UP\n")
    jobs = (waits("a", 1, queue="gpu"), waits("b", 1, queue="gpu,debug", since_s=30.0), waits("c", 1, queue="debug"))
    log = JobLog(jobs=jobs, form="squeue", file="squeue.txt", moment_s=NOW)
    queue = WaitingQueue.of(log, nodes(16), settings=settings)
    assert {job.name for job in queue.waiting} == ({"b", "c"} if held else {"a", "b", "c"}) and not queue.remarks
    why = f"partition gpu is {state}: it starts no job until scontrol update PartitionName=gpu State=UP"
    assert [held_text(job) for job in queue.held] == ([why] if held else [])
    with pytest.raises(UserError, match="not up to the scheduler") as refused:
        parse_new("1 A100 for 1h, queue gpu", queue)
    assert new in refused.value.fix
    assert ignored_limits(settings) == [f"ignored: State={state} of partition gpu."]


def test_reserved_quota_is_used_and_a_requeued_workload_waits() -> None:
    reserved = workload("r", "l", 8, "08:00", runs_in="q")
    del reserved["status"]["conditions"][1]
    late = workload("w", "l", 8, "08:30")
    late["status"] = {"requeueState": {"requeueAt": "2026-11-01T10:00:00Z"}}
    queue = kueue_queue(cluster_queue("q", 8), local_queue("l", "q"), reserved, late)
    assert [(job.status, job.run_s, job.start_s) for job in queue.running] == [("QuotaReserved", 0.0, queue.now_s)]
    assert queue.waiting[0].eligible_s == queue.now_s + 3600


def test_queues_of_volcano_are_named_in_its_words() -> None:
    closed = volcano_queue("q", 8) | {"status": {"state": "Closed"}}
    assert [job.reason for job in kueue_queue(closed, volcano_job("j", [1], "08:00")).held] == ["Queue q is closed"]
    queue = kueue_queue(volcano_queue("other", 8), volcano_job("j", [1], "08:00"))
    assert [held_text(job) for job in queue.held] == [
        "Queue q doesn't exist: inadmissible: it never starts until the queue is created"
    ]


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(("policy", "start_s"), [("Hold", 2700.0), ("HoldAndDrain", 0.0)])
def test_a_queue_that_drains_evicts_its_running_jobs(policy: str, start_s: float, local: bool) -> None:
    """Kueue, concepts/cluster_queue, stopPolicy: running workloads of a held queue complete, those of a drained one leave."""
    stops: list[dict[str, str]] = [{"stopPolicy": policy}, {}]
    queue = kueue_queue(
        cluster_queue("a", 8, **stops[local]),
        cluster_queue("b", 8),
        local_queue("la", "a", **stops[not local]),
        local_queue("lb", "b"),
        workload("runs", "la", 8, "08:45", runs_in="a"),
        workload("w", "lb", 8, "08:50"),
        cluster="1x8xA100",
    )
    options = ForecastOptions(futures=8, arrivals=False, lengths="limits")
    assert {job.job.name: job.start() for job in Forecaster(queue, options).forecast().jobs} == {"ns/w": start_s}
    evicts = f"{'LocalQueue ns/la' if local else 'ClusterQueue a'} is stopped, and evicts its running jobs (HoldAndDrain)"
    assert [job.reason for job in queue.held] == ([evicts] if policy == "HoldAndDrain" else [])


@pytest.mark.parametrize(
    ("asked", "form", "why"),
    [
        ("gres/gpu:a100:16", "squeue", "it asks for 16 devices on one node, and the nodes that it may use have 8 at most"),
        ("gres/gpu:8", "squeue", ""),
        ("gres/gpu:16", "--gpus", ""),
    ],
)
def test_a_job_that_no_node_holds_never_starts(asked: str, form: str, why: str) -> None:
    """A number of nodes next to ``--gpus`` is a minimum: the job may start on two."""
    column = "TRES_PER_NODE" if form == "squeue" else "TRES_PER_JOB"
    text = f"JOBID|PARTITION|STATE|SUBMIT_TIME|TIME_LIMIT|NODES|{column}\n7|gpu|PENDING|2026-11-02T08:41:00|30:00|1|{asked}\n"
    log = replace(parse_queue(text, "squeue.txt", NOW), moment_s=NOW)
    for settings in (None, SlurmSettings()):
        there = WaitingQueue.of(log, nodes(8, 4), settings=settings)
        assert [job.reason for job in there.held] == ([f"never starts: {why}"] if why else []) and len(there.waiting) == (
            not why
        )
    wide = waits("w", 16, nodes=2, node_devices=8)
    assert "2 nodes of 8 devices, and the nodes that it may use hold 1" in never_fits(wide, nodes(8, 1))
    assert "2 pods of 8 devices" in never_fits(waits("w", 16, pods=2), nodes(8, 1)) and not never_fits(wide, nodes(8, 2))


def test_a_job_that_its_partition_or_association_does_not_allow_never_starts() -> None:
    partitions = {"a": SlurmPartition(allow_accounts=("lab",)), "b": SlurmPartition(allow_qos=("high",))}
    settings = SlurmSettings(
        partitions=partitions,
        qos={"high": Qos()},
        accounts={"lab": Account(members=("ann",)), "new": Account(members=("bob",))},
        enforces_associations=True,
    )
    jobs = (
        waits("right", 1, account="lab", user="ann", queue="a,b"),
        waits("wrong", 1, account="new", user="bob", queue="a"),
        waits("other", 1, account="new", user="bob", queue="a,b", qos="high"),
        waits("eve", 1, account="lab", user="eve", queue="a"),
    )
    there = WaitingQueue.of(JobLog(jobs=jobs, form="squeue", file="squeue.txt", moment_s=NOW), nodes(8), settings=settings)
    assert [(job.name, job.queue) for job in there.waiting] == [("right", "a"), ("other", "b")]
    assert {job.name: job.reason.rpartition("(")[2] for job in there.held} == {
        "wrong": "AccountNotAllowed)",
        "eve": "InvalidAccount)",
    }
    with pytest.raises(UserError, match="not up to the scheduler") as error:
        parse_new("1 A100 for 1h, user zoe, queue b, qos high", there)
    assert "user zoe has no association with any account" in error.value.fix


def test_limits_on_nodes_processors_and_submitted_jobs_bind_the_live_queue() -> None:
    settings = parse_slurm(
        "PartitionName=gpu MaxNodes=2 Default=YES State=UP\n\nAccount|User|GrpTRES|MaxSubmit\nlab||cpu=64|\nlab|ann||3\n"
    )
    text = (
        "JOBID|STATE|USER|ACCOUNT|SUBMIT_TIME|TIME_LIMIT|NODES|CPUS|TRES_PER_NODE\n"
        "1|PENDING|ann|lab|2026-11-02T08:41:00|30:00|3|8|gres/gpu:1\n"
        "2|PENDING|ann|lab|2026-11-02T08:42:00|30:00|1|96|gres/gpu:1\n"
        "3|PENDING|ann|lab|2026-11-02T08:43:00|30:00|1|8|gres/gpu:1\n"
    )
    there = WaitingQueue.of(replace(parse_queue(text, "squeue.txt", NOW), moment_s=NOW), nodes(8, 4), settings=settings)
    assert [(job.name, job.queue) for job in there.waiting] == [("3", "gpu")], "a row without a partition is in the default one"
    assert [job.reason.partition(": ")[2] for job in there.held] == [
        "it asks for 3 nodes, and a job of partition gpu may hold 2 nodes",
        "it asks for 96 processors, and account lab may hold 64 processors",
    ]
    with pytest.raises(UserError) as error:
        parse_new("1 A100 for 1h, user ann, account lab", there)
    assert "user ann of account lab may have 3 jobs in the queue, and has 3" in error.value.fix
    assert parse_new("1 A100 for 1h, user bob, account lab", there).job.account == "lab"


@pytest.mark.parametrize(
    ("reason", "simulated"),
    [
        ("AssocGrpCpuLimit", True),
        ("AssocGrpGRESRunMinutes", True),
        ("AssocGrpNodeLimit", False),
        ("AssocGrpGRESMinutes", False),
        ("QOSGrpCpuLimit", False),
    ],
)
def test_a_job_at_a_limit_that_the_settings_state_is_simulated(reason: str, simulated: bool) -> None:
    """squeue(1), JOB REASON CODES. GrpTRESMins counts minutes of the past, which are unknown."""
    accounts = {"lab": Account(of_resource={name: DeviceLimits(max_devices=900) for name in ("cpu", "gpu_minutes")})}
    job = waits("a", 1, 600.0, account="lab", reason=reason, resources=(("cpu", 1.0),))
    log = JobLog(jobs=(job,), form="squeue", file="squeue.txt", moment_s=NOW)
    assert bool(WaitingQueue.of(log, nodes(8), settings=SlurmSettings(accounts=accounts)).waiting) is simulated


def test_a_limit_on_a_type_binds_jobs_that_may_use_no_other() -> None:
    """resource_limits.html, MaxTRESPerJob of gres/gpu:a100: a job of that type never starts, one of any type may."""
    settings = SlurmSettings(qos={"q": Qos(of_type={"a100": DeviceLimits(max_devices_per_job=4)})})
    fleet = QueueNodes(np.array([8, 8]), ("A100 SXM 80GB", "V100"), ("a", "v"))
    jobs = (
        waits("a", 8, qos="q", device_types=("a100",)),
        waits("b", 8, qos="q"),
        waits("c", 4, qos="q", device_types=("a100",)),
    )
    log = JobLog(jobs=jobs, form="squeue", file="squeue.txt", moment_s=NOW)
    queue = WaitingQueue.of(log, fleet, settings=settings)
    assert [job.name for job in queue.waiting] == ["b", "c"]
    assert [job.reason for job in queue.held] == [
        "never starts: it asks for 8 devices, and a job of QOS q may hold 4 a100 devices"
    ]


@pytest.mark.parametrize(("held", "devices", "start_s"), [(0, 8, 0.0), (4, 2, 0.0), (7, 2, 3600.0)])
def test_a_workload_may_be_admitted_in_part(held: int, devices: int, start_s: float) -> None:
    """Kueue, tasks/run/jobs, "Partial admission": all eight pods where they fit, else at least two."""
    job = workload("w", "l", 1, "08:30")
    job["spec"]["podSets"][0] |= {"count": 8, "minCount": 2}
    running = [workload("r", "l", held, "09:00", runs_in="q")] if held else []
    queue = kueue_queue(cluster_queue("q", 8), local_queue("l", "q"), *running, job)
    options = ForecastOptions(futures=8, arrivals=False, lengths="limits")
    assert [(each.job.devices, each.start()) for each in Forecaster(queue, options).forecast().jobs] == [(devices, start_s)]
    assert any("ns/w with at least 2 of 8" in note for note in queue.notes) is (devices == 2)
