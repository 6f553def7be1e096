"""Fleet of a queue: its kinds of nodes, partitions that overlap, and what a job could get at most."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline.scheduling.queues.kueue_settings import ClusterQueue, KueueSettings, Quota
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions
from paceline.scheduling.starts.policy_cluster import PolicyCluster
from paceline.scheduling.starts.queue_nodes import QueueNodes
from paceline.scheduling.starts.waiting_queue import WaitingQueue
from paceline.scheduling.traces.record import JobLog
from queues import NOW, nodes, runs, waits

KIND = "A100 SXM 80GB"


def test_partitions_apart_are_groups_and_overlapping_ones_have_bounds() -> None:
    apart = nodes(8, 4, of_queue={"big": (0, 1), "small": (2,), "debug": (0,)})
    found = PolicyCluster.of(apart, SlurmSettings(), single_nodes=True)
    assert [group.devices for group in found.fleet.groups] == [16, 8, 8]
    assert found.most(waits("x", 1, queue="big")) == 16 and found.most(waits("x", 1, queue="small")) == 8
    assert isinstance(found.settings, SlurmSettings) and not found.preempts
    assert {name: stated.max_devices for name, stated in found.settings.partitions.items()} == {"debug": 8}
    assert PolicyCluster.of(apart, replace(SlurmSettings(), preempt="qos")).preempts


def test_quotas_of_a_flavor_bound_a_job_on_its_type() -> None:
    two = QueueNodes(np.array([8, 4]), (KIND, "V100"), ("a", "b"))
    quotas = {"fast": Quota(nominal=2, borrowing_limit=1), "slow": Quota(nominal=4)}
    queues = {"q": ClusterQueue(quotas=quotas, cohort="c"), "p": ClusterQueue(quotas={"fast": Quota(nominal=6)}, cohort="c")}
    found = PolicyCluster.of(two, KueueSettings(queues=queues, flavors={"fast": KIND, "slow": "V100"}))
    most = [found.most(waits("x", 1, queue="q", device_types=types)) for types in ((), (KIND,), ("V100",), ("T4",))]
    assert most == [4, 3, 4, 0]


def test_a_job_of_slurm_has_its_devices_on_each_of_its_nodes() -> None:
    """sbatch(1), --nodes and --gpus-per-node: two nodes with eight free devices each are needed, and 16 are free on three."""
    held = [runs(f"r{at}", 4, 1800.0, limit_s=3600.0 * (at + 1), node_names=(f"n{at}",)) for at in range(2)]
    job = waits("w", 16, limit_s=3600.0, nodes=2, node_devices=8)
    log = JobLog(jobs=(*held, job), form="squeue", file="squeue.txt", moment_s=NOW)
    queue = WaitingQueue.of(log, nodes(8, 3), settings=SlurmSettings())
    options = ForecastOptions(futures=8, arrivals=False, lengths="limits")
    assert [each.start() for each in Forecaster(queue, options).forecast().jobs] == [1800.0]
