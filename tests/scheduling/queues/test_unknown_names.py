"""Names of jobs that the settings lack are said with a count."""

from __future__ import annotations

from paceline.scheduling.queues.kueue_settings import ClusterQueue, KueueSettings
from paceline.scheduling.queues.slurm_limits import DeviceLimits, Limits
from paceline.scheduling.queues.slurm_settings import Qos, SlurmSettings
from paceline.scheduling.queues.unknown_names import unknown_names
from scheduling_toys import rigid


def test_each_kind_is_counted() -> None:
    jobs = [rigid("a", 1, qos="high", queue="gpu"), rigid("b", 1, qos="high"), rigid("c", 1)]
    (said,) = unknown_names(jobs, SlurmSettings(qos={"hgih": Qos(priority=9)}))
    assert said.startswith("2 jobs name a QOS that the settings lack ('high')")
    assert not unknown_names(jobs, SlurmSettings(qos={"high": Qos()})) and not unknown_names(jobs, None)
    limited = SlurmSettings(
        root=Limits(of_resource={"cpu": DeviceLimits(max_devices=8), "gpu_minutes": DeviceLimits(max_devices=8)})
    )
    (said,) = unknown_names([*jobs, rigid("d", 1, resources=(("cpu", 4.0),))], limited)
    assert said.startswith("ignored: limits on cpu where 3 jobs state none")
    (said,) = unknown_names(jobs, KueueSettings(queues={"all": ClusterQueue()}))
    assert said.startswith("1 job names a queue that the settings lack ('gpu')")
