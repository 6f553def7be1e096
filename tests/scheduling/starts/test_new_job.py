"""A job in words."""

from __future__ import annotations

import numpy as np
import pytest

from kueue_queues import cluster_queue, kueue_queue, local_queue, workload
from paceline.errors import UserError
from paceline.scheduling.queues.kueue_settings import ClusterQueue, KueueSettings, Quota
from paceline.scheduling.queues.slurm_settings import Account, Qos, SlurmSettings
from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions
from paceline.scheduling.starts.new_job import parse_new
from paceline.scheduling.starts.queue_nodes import QueueNodes, nodes_of_quotas
from paceline.scheduling.starts.waiting_queue import WaitingQueue
from paceline.scheduling.traces.record import JobLog
from queues import NOW, nodes, queue, waits

QUEUE = queue(waits("w", 1, queue="gpu", priority=5.0), on=nodes(8, 4))


@pytest.mark.parametrize(
    ("text", "devices", "node_count", "run_s", "words", "limit_s"),
    [
        ("8 A100 for llama-3-8b 1B tokens", 8, 0, 0.0, ("llama-3-8b", "--tokens", "1B"), 0.0),
        ("2x8 A100 for 3h, limit 12h, queue gpu", 16, 2, 10800.0, (), 43200.0),
        ("4 for 30min", 4, 0, 1800.0, (), 0.0),
        ("8 devices for 2:00:00", 8, 0, 7200.0, (), 0.0),
        ("8xA100 for 90min, time 1-00:00:00, partition gpu", 8, 0, 5400.0, (), 86400.0),
        ("2 nodes of 8 A100 gpus for 1-12", 16, 2, 129600.0, (), 0.0),
    ],
)
def test_words_become_a_job(
    text: str, devices: int, node_count: int, run_s: float, words: tuple[str, ...], limit_s: float
) -> None:
    new = parse_new(text, QUEUE)
    assert (new.job.devices, new.job.nodes, new.run_s, new.words, new.job.limit_s) == (
        devices,
        node_count,
        run_s,
        words,
        limit_s,
    )
    assert (new.job.queue, new.job.priority) == ("gpu", 5.0)
    assert new.job.device_types == (("A100 SXM 80GB",) if "A100" in text else ())


WRONG = [
    "0x4 A100 for 3h",
    "1x16 A100 for 3h",
    "5x1 A100 for 3h",
    "8 A100 for 3h, priority high",
    "8 A100",
    "64 A100 for 3h",
    "8 A100 for something",
    "8 A100 for 3h, limt 4h",
    "8 A100 for 3h, limit",
]


@pytest.mark.parametrize("text", WRONG)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_new(text, QUEUE)


def test_a_partition_that_no_node_is_in_is_refused_and_a_priority_is_a_number() -> None:
    there = queue(waits("w", 1, queue="gpu"), on=nodes(8, 4, of_queue={"gpu": (0, 1, 2, 3)}))
    with pytest.raises(UserError, match="legal: gpu"):
        parse_new("8 A100 for 3h, queue nope", there)
    assert parse_new("8 A100 for 3h, queue gpu, priority 5000.5", there).job.priority == 5000.5


KUEUE = KueueSettings(
    queues={
        "q": ClusterQueue(quotas={"a100": Quota(nominal=8)}),
        "shut": ClusterQueue(quotas={"a100": Quota(nominal=8)}, stopped=True),
    },
    local_queues={"m": "q", "t/m": "q", "n": "q", "t/n": "q", "s": "shut", "t/s": "shut"},
    flavors={"a100": "A100 SXM 80GB"},
    stopped=("t/n",),
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4 A100 for 1h, queue m", ""),
        ("4 A100 for 1h, queue t/m", ""),
        ("4 A100 for 1h, queue q", ""),
        ("4 A100 for 1h", "legal: t/m, t/n, t/s, q, shut"),
        ("4 A100 for 1h, queue nope", "legal: t/m, t/n, t/s, q, shut"),
        ("4 A100 for 1h, queue n", "LocalQueue t/n is stopped"),
        ("4 A100 for 1h, queue s", "ClusterQueue shut is stopped"),
        ("12 A100 for 1h, queue m", "more devices than its queue may use"),
        ("4 A100 for 1h, queue m, account x", "only Slurm has accounts"),
    ],
)
def test_queues_of_kueue(text: str, said: str) -> None:
    log = JobLog(jobs=(), form="kueue", file="k.json", moment_s=NOW, queues=KUEUE)
    there = WaitingQueue.of(log, nodes_of_quotas(KUEUE))
    if said:
        with pytest.raises(UserError) as error:
            parse_new(text, there)
        assert said in str(error.value)
    else:
        assert parse_new(text, there).job.queue == "q"


@pytest.mark.parametrize(
    ("words", "account"), [("user al", "x"), ("user bo", ""), ("user bo, account y", "y"), ("user cy", "z"), ("limit 2h", "")]
)
def test_account_of_a_new_job_of_slurm(words: str, account: str) -> None:
    accounts = {"x": Account(users={"al": 1.0, "bo": 1.0}), "y": Account(users={"bo": 1.0}), "z": Account()}
    log = JobLog(jobs=(waits("w", 1, user="cy", account="z"),), form="squeue", file="squeue.txt", moment_s=NOW)
    there = WaitingQueue.of(log, nodes(8), settings=SlurmSettings(accounts=accounts))
    new = parse_new(f"8 A100 for 1h, {words}", there)
    assert new.job.account == account and bool(new.remarks) == (not account)
    with pytest.raises(UserError, match="legal: x, y, z"):
        parse_new("8 A100 for 1h, account w", there)


def test_a_quality_of_service_of_a_new_job_is_one_of_the_settings() -> None:
    log = JobLog(jobs=(waits("w", 1),), form="squeue", file="squeue.txt", moment_s=NOW)
    there = WaitingQueue.of(log, nodes(8), settings=SlurmSettings(qos={"high": Qos(priority=9.0), "low": Qos()}))
    assert parse_new("8 A100 for 1h, qos high", there).job.qos == "high"
    with pytest.raises(UserError, match="legal: high, low"):
        parse_new("8 A100 for 1h, qos hgih", there)
    with pytest.raises(UserError, match="give Slurm's settings"):
        parse_new("8 A100 for 1h, qos high", QUEUE)


@pytest.mark.parametrize(
    ("text", "start_s"),
    [
        ("12 A100 for 1h", 0.0),
        ("2x4 A100 for 1h", 0.0),
        ("2x6 A100 for 1h", 1800.0),
        ("1x8 A100 for 1h", 0.0),
        ("3x8 A100 for 1h", 5400.0),
    ],
)
def test_pods_of_kueue_are_each_on_one_node(text: str, start_s: float) -> None:
    """Three nodes of 8, of which two hold a job of 5 for half an hour and for one and a half: 3, 3 and 8 devices are free."""
    running = [workload("r1", "l", 5, "08:30", runs_in="q"), workload("r2", "l", 5, "08:30", runs_in="q", limit_s=7200)]
    queue = kueue_queue(cluster_queue("q", 24), local_queue("l", "q"), *running, cluster="3x8xA100")
    added = parse_new(text, queue).job
    options = ForecastOptions(futures=8, arrivals=False, lengths="limits")
    assert Forecaster(queue.adding(added), options).forecast([added]).jobs[0].start() == start_s


def test_pods_without_nodes_are_refused() -> None:
    queue = kueue_queue(cluster_queue("q", 24), local_queue("l", "q"))
    with pytest.raises(UserError, match="2 pods of 8 devices") as refused:
        parse_new("2x8 default for 1h", queue)
    assert "give `cluster` or `nodes`" in refused.value.fix
    with pytest.raises(UserError, match="4x8 A100") as refused:
        parse_new("4x8 A100 for 1h", kueue_queue(cluster_queue("q", 64), local_queue("l", "q"), cluster="8x4xA100"))
    assert "hold 0 pods of 8" in refused.value.fix


@pytest.mark.parametrize("text", ["2 A100 1g.10gb for 1h", "2 1g.10gb for 1h", "2 a100-1G.10GB for 1h"])
def test_slices_of_a_profile_are_asked_for_by_their_name(text: str) -> None:
    there = queue(waits("w", 1), on=QueueNodes(np.array([8, 7]), ("A100 SXM 80GB", "A100 1g.10gb"), ("n0", "n1")))
    job = parse_new(text, there).job
    assert (job.profile, job.devices, there.nodes.pool(job)) == ("1g.10gb", 2, (1,))
    with pytest.raises(UserError, match=r"the cluster has 8 A100 SXM 80GB, 7 A100 1g\.10gb"):
        parse_new("8 A100 1g.10gb for 1h", there)
