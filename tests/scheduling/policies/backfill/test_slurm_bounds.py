"""Starts under limits as sacctmgr prints them, computed by hand from Slurm's resource_limits.html and sacctmgr(1)."""

from __future__ import annotations

from functools import partial

import pytest

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.backfill.slurm import slurm
from paceline.scheduling.queues.slurm_config import parse_slurm
from scheduling_toys import rigid, simulated

ASSOC = "Account|User|Partition|Share|ParentName|GrpJobs|GrpTRES|MaxJobs|MaxTRES|MaxWall\n"
QOS = "Name|Priority|Flags|GrpTRES|GrpJobs|MaxTRES|MaxWall|MaxTRESPU|MaxJobsPU|MaxTRESPA|MaxJobsPA\n"
GPU_PARTITION = "PartitionName=gpu MaxTime=UNLIMITED QoS=part\n"
NEVER = "the policy never starts job {}; .*{}"


def job(name: str, devices: int = 2, user: str = "ann", account: str = "lab", **also: object) -> Job:
    return rigid(name, 100.0, devices, owner=user, virtual_cluster=account, **also)  # type: ignore[arg-type]


TWO = [job("a"), job("b")]
OTHERS = [job("a"), job("b", user="bob"), job("c", account="sub"), job("d", account="sub", user="bob")]
HIGH = [job("a", qos="high"), job("b", qos="high"), job("c", qos="high", user="bob"), job("d", qos="high", account="sub")]
IN_GPU = [job("a", queue="gpu", qos="high"), job("b", queue="gpu", qos="high"), job("c", qos="high"), job("d", qos="high")]
CASES: dict[str, tuple[str, list[Job], list[float] | str]] = {
    "a user's GrpTRES": (f"{ASSOC}lab||||root|||||\nlab|ann||1|||gres/gpu=3|||", OTHERS[:3], [0, 0, 0]),
    "a user's GrpTRES binds that user": (f"{ASSOC}lab||||root|||||\nlab|ann||1|||gres/gpu=3|||", TWO, [0, 100]),
    "a user's GrpJobs": (f"{ASSOC}lab|ann||1||1|||||", TWO, [0, 100]),
    "MaxJobs of a user": (f"{ASSOC}lab|ann||1||||1||", TWO, [0, 100]),
    "MaxJobs of an account is for each of its users": (
        f"{ASSOC}lab|||1|root|||1||",
        [*TWO, job("c", user="bob")],
        [0, 100, 0],
    ),
    "a user's MaxJobs comes before the account's": (f"{ASSOC}lab|||1|root|||1||\nlab|ann||1||||2||", TWO, [0, 0]),
    "MaxJobs of a parent is handed down": (
        f"{ASSOC}top|||1|root|||1||\nlab|||1|top|||||",
        [*TWO, job("c", user="bob")],
        [0, 100, 0],
    ),
    "GrpJobs of a parent counts its children": (f"{ASSOC}lab|||1|root|3||||\nsub|||1|lab|||||", OTHERS, [0, 0, 0, 100]),
    "GrpTRES of a parent counts its children": (
        f"{ASSOC}lab|||1|root||gres/gpu=5|||\nsub|||1|lab|||||",
        OTHERS,
        [0, 0, 100, 100],
    ),
    "the lowest of both binds": (
        f"{ASSOC}lab|||1|root||gres/gpu=6|||\nsub|||1|lab||gres/gpu=2|||",
        OTHERS,
        [0, 0, 0, 100],
    ),
    "GrpTRES of the root": (f"{ASSOC}root|||1|||gres/gpu=4|||\nlab|||1|root|||||", OTHERS, [0, 0, 100, 100]),
    "an association of a partition": (
        f"{ASSOC}lab|ann|gpu|1||||1||\nlab|ann||1||||||",
        [job("a", queue="gpu"), job("b", queue="gpu"), job("c"), job("d")],
        [0, 100, 0, 0],
    ),
    "MaxTRES of a job": (
        f"{ASSOC}lab|||1|root||||gres/gpu=2|",
        [job("a"), job("b", 3)],
        NEVER.format("b", "asks for 3 devices, and a job of account lab may hold 2"),
    ),
    "MaxWall": (
        f"{ASSOC}lab|||1|root|||||01:00:00",
        [job("a", limit_s=3600.0), job("b", limit_s=3601.0)],
        NEVER.format("b", "longer than the 60 min"),
    ),
    "a bound of 0": (f"{ASSOC}lab|||1|root|0||||", TWO, "the policy never starts 2.*account lab may run 0 jobs"),
    "one type of GPU": (f"{ASSOC}lab|||1|root||gres/gpu:t4=2|||", TWO, [0, 100]),
    "another type of GPU": (f"{ASSOC}lab|||1|root||gres/gpu:a100=2|||", TWO, [0, 0]),
    "MaxTRESPU of a QOS": (f"{QOS}high|1||||||gres/gpu=2|||", HIGH, [0, 100, 0, 200]),
    "MaxJobsPU of a QOS": (f"{QOS}high|1|||||||1||", HIGH, [0, 100, 0, 200]),
    "MaxTRESPA of a QOS": (f"{QOS}high|1||||||||gres/gpu=4|", HIGH, [0, 0, 100, 0]),
    "MaxJobsPA of a QOS": (f"{QOS}high|1|||||||||1", HIGH, [0, 100, 200, 0]),
    "GrpJobs of a QOS": (f"{QOS}high|1|||3||||||", HIGH, [0, 0, 0, 100]),
    "a QOS comes before an account": (
        f"{ASSOC}lab|||1|root|1||||\n\n{QOS}high|1|||3||||||",
        HIGH[:3],
        [0, 0, 0],
    ),
    "of a partition's QOS": (f"{GPU_PARTITION}\n{QOS}part|1|||1||||||\nhigh|1|||||||||", IN_GPU, [0, 100, 0, 0]),
    "it comes before the job's": (f"{GPU_PARTITION}\n{QOS}part|1|||2||||||\nhigh|1|||1||||||", IN_GPU, [0, 0, 100, 200]),
    "unless the job's is over it": (
        f"{GPU_PARTITION}\n{QOS}part|1|||2||||||\nhigh|1|OverPartQOS||1||||||",
        IN_GPU,
        [0, 100, 200, 300],
    ),
    "MaxTime of a partition": (
        "PartitionName=gpu MaxTime=60",
        [job("a", queue="gpu", limit_s=7200.0), job("b")],
        NEVER.format("a", "that partition gpu allows"),
    ),
    "but for a QOS with PartitionTimeLimit": (
        f"PartitionName=gpu MaxTime=60\n\n{QOS}high|1|PartitionTimeLimit||||||||",
        [job("a", queue="gpu", limit_s=7200.0, qos="high")],
        [0],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_limits_decide(name: str) -> None:
    text, jobs, expected = CASES[name]
    policy = partial(slurm, settings=parse_slurm(text))
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            simulated(jobs, policy, Fleet.named("1x8xT4"))
        return
    schedule = simulated(jobs, policy, Fleet.named("1x8xT4"))
    assert [outcome.start_s for outcome in schedule.outcomes] == expected


LIMITED = "Account|User|GrpTRES|MaxTRES|GrpTRESRunMins|MaxTRESMins|GrpSubmit|MaxSubmit\n"


def big(name: str, duration_s: float = 100.0, **also: object) -> Job:
    """A job of two devices, eight processors, 64 GiB and two nodes, which may run for ten minutes."""
    amounts = (("cpu", 8.0), ("mem", 64 * 2.0**30), ("node", 2.0))
    return rigid(name, duration_s, 2, virtual_cluster="lab", owner="ann", limit_s=600.0, **{"resources": amounts, **also})


RESOURCES: dict[str, tuple[str, list[Job], list[float] | str]] = {
    "GrpTRES of processors": ("lab||cpu=12|||||", [big("a"), big("b")], [0, 100]),
    "GrpTRES of processors that suffice": ("lab||cpu=16|||||", [big("a"), big("b")], [0, 0]),
    "GrpTRES of processors that a job does not state": ("lab||cpu=12|||||", [big("a"), big("b", resources=())], [0, 0]),
    "GrpTRES of memory": ("lab||mem=100G|||||", [big("a"), big("b")], [0, 100]),
    "GrpTRES of memory in MiB": ("lab||mem=131072|||||", [big("a"), big("b")], [0, 0]),
    "GrpTRES of nodes": ("lab||node=3|||||", [big("a"), big("b")], [0, 100]),
    "MaxTRES of nodes": ("lab|||node=1||||", [big("a")], "a job of account lab may hold 1 nodes"),
    # 2 devices for 10 minutes are 20. At 300 s the first has 10 left, and 10 + 20 is the bound. No job ends then.
    "GrpTRESRunMins of GPUs": ("lab||||gres/gpu=30|||", [big("a", 500.0), big("b", 500.0)], [0, 300.001]),
    "GrpTRESRunMins of processors": ("lab||||cpu=100|||", [big("a", 500.0), big("b", 500.0)], [0, 450.001]),
    "MaxTRESMins": ("lab|||||gres/gpu=19||", [big("a")], "a job of account lab may hold 19 GPU minutes"),
}


@pytest.mark.parametrize("name", RESOURCES)
def test_limits_on_other_resources_decide(name: str) -> None:
    """sacctmgr(1): GrpTRES, MaxTRES, GrpTRESRunMins (minutes that the limits of running jobs leave), MaxTRESMins."""
    row, jobs, expected = RESOURCES[name]
    for explains in (True, False):
        policy = partial(slurm, settings=parse_slurm(LIMITED + row), explains=explains)
        if isinstance(expected, str):
            with pytest.raises(UserError, match=f"never starts job a; .*{expected}" if explains else "never starts job a"):
                simulated(jobs, policy, Fleet.named("1x8xT4"))
            continue
        assert [one.start_s for one in simulated(jobs, policy, Fleet.named("1x8xT4")).outcomes] == pytest.approx(expected)


def test_jobs_beyond_maxsubmit_are_refused_when_they_come() -> None:
    """Two of a user may wait or run. The third comes while two are there, the fourth when one has ended."""
    jobs = [big("a"), big("b", 300.0), big("c", arrival_s=1.0), big("d", arrival_s=150.0)]
    for row in ("lab|ann|||||||", "lab||||||2|", "lab|ann||||||2"):
        settings = parse_slurm(LIMITED + row)
        found = simulated(jobs, partial(slurm, settings=settings), Fleet.named("1x8xT4")).outcomes
        bounded = settings.bounds_submits
        assert [bool(one.removed) for one in found] == [False, False, bounded, False] and bounded == (row != "lab|ann|||||||")
        assert not bounded or "may have 2 jobs in the queue" in found[2].removed
