"""Settings of Slurm as its tools print them."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.scheduling.queues.slurm_config import parse_slurm
from paceline.scheduling.queues.slurm_settings import Account, Qos, SlurmPartition, SlurmSettings

CONFIG = """Configuration data as of 2026-11-01T10:00:00
PreemptMode             = REQUEUE
PreemptType             = preempt/qos
PreemptExemptTime       = 00:10:00
PriorityParameters      = (null)
PriorityDecayHalfLife   = 14-00:00:00
PriorityFavorSmall      = No
PriorityFlags           = NO_FAIR_TREE
PriorityMaxAge          = 14-00:00:00
PriorityType            = priority/multifactor
PriorityWeightAge       = 1000
PriorityWeightFairShare = 2000
PriorityWeightJobSize   = 10
PriorityWeightPartition = 20
PriorityWeightQOS       = 30
SchedulerParameters     = bf_window=2880,bf_max_job_test=100,bf_continue
SchedulerType           = sched/backfill

PartitionName=gpu
   AllowGroups=ALL DefaultTime=01:00:00 MaxTime=2-00:00:00
   PriorityJobFactor=5 PriorityTier=2 State=UP
PartitionName=long
   DefaultTime=NONE MaxTime=UNLIMITED PriorityJobFactor=1 PriorityTier=1

Cluster|Account|User|Share|ParentName|GrpTRES|QOS
c|root||1|||normal
c|vision||4|root|gres/gpu=32|normal
c|vision|ann|2|||normal
c|nlp||parent|vision||normal

Name|Priority|Preempt|GrpTRES|MaxTRESPU
normal|0|||
high|100|normal,low|gres/gpu=16|gres/gpu=8

Account|User|RawShares|NormShares|RawUsage|EffectvUsage|FairShare
root|||0.0|900|1.0|
 vision|ann|2|0.5|800|0.9|0.1
"""


def test_everything_that_decides_is_read() -> None:
    settings = parse_slurm(CONFIG)
    assert settings == SlurmSettings(
        weight_age=1000,
        weight_fairshare=2000,
        weight_job_size=10,
        weight_partition=20,
        weight_qos=30,
        max_age_s=14 * 86400,
        half_life_s=14 * 86400,
        fair_tree=False,
        preempt="qos",
        exempt_s=600,
        window_s=2 * 86400,
        max_tested=100,
        partitions={
            "gpu": SlurmPartition(priority=5, tier=2, default_limit_s=3600, max_limit_s=172_800),
            "long": SlurmPartition(),
        },
        accounts={
            "vision": Account(
                shares=4,
                max_devices=32,
                users={"ann": 2},
                members=("ann",),
                allowed_qos=("normal",),
                user_allowed_qos={"ann": ("normal",)},
            ),
            "nlp": Account(parent="vision", allowed_qos=("normal",)),
        },
        qos={"normal": Qos(), "high": Qos(priority=100, max_devices=16, max_devices_per_user=8, preempts=("normal", "low"))},
        usage={("vision", "ann"): 800},
        ignored=("Fairshare=parent of account nlp",),
    )


def test_preemption_is_read() -> None:
    """slurm.conf(5): PreemptMode, PreemptParameters and their older names in SchedulerParameters, and words of a partition."""
    partition = "PartitionName=gpu State=UP GraceTime=120 PreemptMode=OFF\n"
    older = "SchedulerParameters=bf_continue,preempt_youngest_first,preempt_reorder_count=3,preempt_strict_order\n"
    newer = "PreemptParameters = youngest_first,strict_order,reorder_count=3\n"
    for parameters in (older, newer):
        settings = parse_slurm(
            f"PreemptType = preempt/partition_prio\nPreemptMode = GANG,SUSPEND,WITHIN\n{parameters}{partition}"
        )
        assert settings == SlurmSettings(
            multifactor=False,
            preempt="partition_prio",
            preempt_mode="suspend",
            preempts_within=True,
            youngest_first=True,
            reorder_count=3,
            strict_order=True,
            partitions={"gpu": SlurmPartition(grace_s=120, preempt_mode="off")},
        )
    assert parse_slurm("PreemptMode = OFF\n").preempt_mode == "off"
    assert parse_slurm("PreemptMode = OFF\nPreemptParameters = min_exempt_priority=5000\n").exempt_priority == 5000
    assert parse_slurm("PreemptMode = REQUEUE\nJobRequeue = 0\n").preempt_mode == "cancel"


def test_slurm_conf_and_its_defaults() -> None:
    partition = "PartitionName=debug Nodes=n[1-4] Default=YES MaxTime=30 State=UP"
    settings = parse_slurm(f"ClusterName=c # a comment\nSchedulerType=sched/builtin\n{partition}\n")
    assert (
        not settings.multifactor
        and not settings.backfill
        and settings.partitions == {"debug": SlurmPartition(default_limit_s=1800, max_limit_s=1800)}
    )


def test_limits_that_are_not_simulated_are_said() -> None:
    """Names of scontrol(1), sacctmgr(1) and slurm.conf(5)."""
    partition = "PartitionName=gpu AllowGroups=a,b State=UP MinNodes=4 QoS=part AllowQos=ALL\n"
    weights = "PriorityWeightTRES = CPU=1000\nPriorityWeightAssoc = 0\nPriorityUsageResetPeriod = NONE\n"
    assert parse_slurm(weights + partition).ignored == (
        "PriorityWeightTRES",
        "AllowGroups=a,b of partition gpu",
        "MinNodes=4 of partition gpu",
        "QOS part, which the text does not describe (print sacctmgr show qos -P) of partition gpu",
    )


@pytest.mark.parametrize(
    ("enforced", "bounded"), [("associations,limits,qos", True), ("safe", True), ("none", False), ("associations", False)]
)
def test_limits_bind_where_slurm_enforces_them(enforced: str, bounded: bool) -> None:
    """slurm.conf(5), AccountingStorageEnforce."""
    tables = "Account|User|Share|ParentName|GrpTRES\nlab||1|root|gres/gpu=4\n\nName|Priority|MaxTRESPU\nhigh|1|gres/gpu=2\n"
    settings = parse_slurm(f"AccountingStorageEnforce = {enforced}\n\n{tables}")
    assert settings.is_bounded is bounded and settings.accounts["lab"].max_devices == (4 if bounded else None)
    said = "limits of associations and QOS, which AccountingStorageEnforce does not enforce"
    assert settings.ignored == (() if bounded else (said,))


@pytest.mark.parametrize("text", ["", "hello = 3\n", "PriorityWeightAge = many\n", "PriorityMaxAge = soon\n"])
def test_a_text_without_settings_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_slurm(text)
