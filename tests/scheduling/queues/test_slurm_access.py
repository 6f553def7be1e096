"""Jobs of Slurm that may not run, by the rules of its manual and source."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.scheduling.queues.queues_file import parse_queues
from paceline.scheduling.queues.slurm_access import default_qos
from paceline.scheduling.queues.slurm_config import parse_slurm
from paceline.scheduling.queues.slurm_settings import Account, SlurmSettings

TEXT = """AccountingStorageEnforce = associations,limits,qos
PartitionName=gpu AllowAccounts=ALL AllowQos=ALL State=UP
PartitionName=bio AllowAccounts=bio,chem DenyAccounts=bio State=UP
PartitionName=rest DenyAccounts=bio DenyQos=low State=UP
PartitionName=fast AllowQos=high State=UP

Cluster|Account|User|Partition|Share|QOS|Def QOS
c|root|||1|high,low,normal|low
c|bio|||1|high,low,normal|high
c|bio|cat||1|high,low,normal|
c|bio|dan||1|low,normal|normal
c|phys|||1|normal|
c|phys|ann|gpu|1|normal|

Name|Priority|MaxTRESPU
normal|0|
low|0|
high|9|gres/gpu=2
"""


@pytest.mark.parametrize(
    ("account", "user", "partition", "qos", "why"),
    [
        ("bio", "cat", "gpu", "", ""),
        ("bio", "cat", "bio", "", ""),
        ("phys", "ann", "bio", "", "partition bio allows account bio, chem, not phys (AccountNotAllowed)"),
        ("bio", "cat", "rest", "", "partition rest denies account bio (AccountNotAllowed)"),
        ("phys", "ann", "rest", "low", "partition rest denies QOS low (QOSNotAllowed)"),
        ("bio", "dan", "fast", "", "partition fast allows QOS high, not normal (QOSNotAllowed)"),
        ("bio", "cat", "fast", "", ""),
        ("bio", "dan", "gpu", "high", "user dan of account bio may use QOS low, normal, not high (InvalidQOS)"),
        ("bio", "dan", "gpu", "best", "QOS best does not exist (InvalidQOS)"),
        ("bio", "eve", "gpu", "", "user eve has no association with account bio (InvalidAccount)"),
        ("geo", "cat", "gpu", "", "account geo does not exist (InvalidAccount)"),
        ("", "eve", "gpu", "", "user eve has no association with any account (InvalidAccount)"),
        ("phys", "ann", "gpu", "", ""),
        ("phys", "ann", "fast", "normal", "partition fast allows QOS high, not normal (QOSNotAllowed)"),
        ("", "", "gpu", "", ""),
    ],
)
def test_a_job_that_slurm_runs_or_refuses(account: str, user: str, partition: str, qos: str, why: str) -> None:
    found = parse_slurm(TEXT).kind(account, user, partition, qos).refused
    assert found == (f"never starts: {why}" if why else "")


def test_without_enforcement_only_partitions_refuse() -> None:
    settings = parse_slurm(TEXT.replace("associations,limits,qos", "none"))
    assert settings.refuses and not settings.refusal("bio", "eve", "gpu", "best") and settings.refusal("phys", "", "bio", "")
    assert not SlurmSettings().refuses


def test_the_default_quality_of_service_is_that_of_the_user_the_account_or_the_root() -> None:
    """Its limits bind, and it is the job's: cat has that of her account, which holds two devices for each user."""
    settings = parse_slurm(TEXT)
    assert [
        settings.kind(account, user, "gpu", "").qos for account, user in (("bio", "cat"), ("bio", "dan"), ("phys", "ann"))
    ] == [
        "high",
        "normal",
        "normal",
    ]
    assert settings.kind("new", "", "gpu", "").qos == "low" and any(
        bound.most == 2 for bound in settings.bounds("bio", "cat", "gpu", "").bounds
    )
    above = {"top": Account(default_qos="high"), "sub": Account(parent="top", user_default_qos={"ann/gpu": "low"})}
    assert [default_qos(above, "", ("sub", "top"), "ann", partition) for partition in ("gpu", "cpu")] == ["low", "high"]


def test_access_in_toml() -> None:
    text = """enforces_qos = true
[partitions.gpu]
allow_accounts = ["lab"]
[accounts.lab]
default_qos = "low"
user_allowed_qos.ann = ["low"]
[qos.low]
"""
    settings: Any = parse_queues(text, ".toml")
    assert settings.kind("lab", "ann", "gpu", "").qos == "low" and settings.refusal("lab", "ann", "gpu", "high")
    assert settings.accounts["lab"].user_allowed_qos == {"ann": ("low",)}
