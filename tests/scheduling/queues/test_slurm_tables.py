"""Tables of sacctmgr and sshare with the columns that they print, and what is said of limits that are not simulated."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.scheduling.queues.slurm_limits import DeviceLimits, Limits
from paceline.scheduling.queues.slurm_settings import Account, Qos
from paceline.scheduling.queues.slurm_tables import Ignored, associations, qualities, tables

DEFAULT = """Cluster|Account|User|Partition|Share|Priority|GrpJobs|GrpTRES|GrpSubmit|GrpWall|GrpTRESMins|MaxJobs|MaxTRES|\
MaxTRESPerNode|MaxSubmit|MaxWall|MaxTRESMins|QOS|Def QOS|GrpTRESRunMins
c|root|||1|||gres/gpu=64||||||||||normal||
c| lab|||2||9|cpu=100,gres/gpu=32,gres/gpu:a100=16|50|||3|||7|2-00:00:00||normal||
c| lab|ann||4|||gres/gpu=8||||1|gres/gpu=4|||||normal||
c| lab|ann|gpu|4|||||||2|||||||normal||
c|  sub|||1|||||||||||||normal||gres/gpu=600
c| other|||1||||||||||-1|||normal||
"""
"""Columns of ``sacctmgr show assoc tree -P``."""
QOS = """Name|Priority|GraceTime|Preempt|PreemptExemptTime|PreemptMode|Flags|UsageThres|UsageFactor|GrpTRES|\
GrpTRESMins|GrpTRESRunMins|GrpJobs|GrpSubmit|GrpWall|MaxTRES|MaxTRESPerNode|MaxTRESMins|MaxWall|MaxTRESPU|\
MaxJobsPU|MaxSubmitPU|MaxTRESPA|MaxTRESRunMinsPA|MaxTRESRunMinsPU|MaxJobsPA|MaxSubmitPA|MinTRES
normal|0|00:00:00|||cluster|||1.000000|||||||||||||||||||
high|100|00:05:00|normal||cluster|DenyOnLimit,NoReserve,NoDecay||2.000000|gres/gpu=16|||8|||gres/gpu=8|||12:00:00|gres/gpu:a100=4|2|9|gres/gpu=12|||5||gres/gpu=1
"""
SSHARE = """Account|User|RawShares|NormShares|RawUsage|EffectvUsage|FairShare|GrpTRESMins
root|||0.0|900|1.0||
 lab||2|0.5|900|1.0||gres/gpu=99
  lab|ann|4|0.5|800|0.9|0.1|
  sub||3|0.5|100|0.1||
"""


def test_every_limit_of_an_association_is_read_or_said() -> None:
    ignored = Ignored()
    accounts, root, _ = associations(list(tables(DEFAULT)), ignored)
    people = {"ann": Limits(max_devices=8, max_jobs_per_user=1, max_devices_per_job=4), "ann/gpu": Limits(max_jobs_per_user=2)}
    assert root == Limits(max_devices=64) and accounts == {
        "lab": Account(
            shares=2,
            users={"ann": 4},
            user_limits=people,
            members=("ann", "ann/gpu"),
            allowed_qos=("normal",),
            user_allowed_qos={"ann": ("normal",)},
            user_default_qos={"ann/gpu": "normal"},
            max_jobs=9,
            max_devices=32,
            of_type={"a100": DeviceLimits(max_devices=16)},
            max_jobs_per_user=3,
            max_submitted=50,
            max_submitted_per_user=7,
            of_resource={"cpu": DeviceLimits(max_devices=100)},
            max_limit_s=172_800,
        ),
        "sub": Account(parent="lab", allowed_qos=("normal",), of_resource={"gpu_minutes": DeviceLimits(max_devices=600)}),
        "other": Account(allowed_qos=("normal",)),
    }
    assert ignored.texts() == ()


def test_every_limit_of_a_quality_of_service_is_read_or_said() -> None:
    ignored = Ignored()
    found = qualities(list(tables(QOS)), ignored)
    assert found == {
        "normal": Qos(),
        "high": Qos(
            priority=100,
            preempts=("normal",),
            grace_s=300,
            reserves=False,
            max_devices=16,
            max_jobs=8,
            max_devices_per_job=8,
            max_limit_s=43_200,
            max_jobs_per_user=2,
            max_submitted_per_user=9,
            max_devices_per_account=12,
            max_jobs_per_account=5,
            of_type={"a100": DeviceLimits(max_devices_per_user=4)},
        ),
    }
    said = ("Flags=NoDecay", "UsageFactor", "MinTRES")
    assert set(ignored.texts()) == {f"{what} of QOS high" for what in said}


def test_accounts_follow_from_sshare_if_sacctmgr_says_nothing() -> None:
    ignored = Ignored()
    accounts, _, _ = associations(list(tables(SSHARE)), ignored)
    assert accounts == {"lab": Account(shares=2, users={"ann": 4}, members=("ann",)), "sub": Account(parent="lab", shares=3)}
    assert ignored.texts() == ("GrpTRESMins of account lab",)


def test_parents_follow_from_the_indentation_of_sshare_if_sacctmgr_prints_none() -> None:
    """sshare(1) indents an account below the one above it, with and without -P."""
    ignored = Ignored()
    flat = "Account|User|Share\nroot||1\nlab||1\nlab|ann|1\nsub||1\nother||1\n\n"
    accounts, _, _ = associations(list(tables(flat + SSHARE)), ignored)
    assert {name: account.parent for name, account in accounts.items()} == {"lab": "", "sub": "lab", "other": ""}
    assert ignored.texts() == ()


def test_unknown_parents_are_said_and_wrong_counts_refused() -> None:
    ignored = Ignored()
    associations(list(tables("Account|User|Share\na||1\nb||1\n")), ignored)
    assert "parents of accounts" in ignored.texts()[0]
    with pytest.raises(UserError, match="GrpJobs of account a is 'few'"):
        associations(list(tables("Account|User|GrpJobs\na||few\n")), Ignored())
