"""Rules of Slurm on who may run: by account, user, partition and quality of service.

Slurm 25.05: slurm.conf(5), AllowAccounts, AllowQos and AccountingStorageEnforce; in its source ``part_policy_valid_acct`` and
``part_policy_valid_qos`` of slurmctld/partition_mgr.c, and ``assoc_mgr_get_default_qos_info`` of common/assoc_mgr.c. Names
must be equal: an account does not stand for the accounts below it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from paceline.scheduling.queues.slurm_holders import Account, SlurmPartition

FEW = 4
"""Most names in a sentence."""
NORMAL = "normal"
"""Quality of service where nothing names one."""
_Value = TypeVar("_Value")


def access_refusal(stated: SlurmPartition, partition: str, account: str, qos: str) -> str:
    """Return why a partition takes no job of an account with a quality of service; empty if it does.

    A list of those that may use it comes before a list of those that may not.
    """
    qos = qos or NORMAL
    if stated.allow_qos:
        if qos not in stated.allow_qos:
            return f"never starts: partition {partition} allows QOS {_names(stated.allow_qos)}, not {qos} (QOSNotAllowed)"
    elif qos in stated.deny_qos:
        return f"never starts: partition {partition} denies QOS {qos} (QOSNotAllowed)"
    if not account:  # the log does not tell it
        return ""
    if stated.allow_accounts:
        if account not in stated.allow_accounts:
            allowed = _names(stated.allow_accounts)
            return f"never starts: partition {partition} allows account {allowed}, not {account} (AccountNotAllowed)"
    elif account in stated.deny_accounts:
        return f"never starts: partition {partition} denies account {account} (AccountNotAllowed)"
    return ""


def association_refusal(accounts: Mapping[str, Account], account: str, user: str, partition: str) -> str:
    """Return why a user has no association with an account; empty if there is one, or names are unknown."""
    if not any(each.members for each in accounts.values()):
        return ""
    if account and account not in accounts:
        return f"never starts: account {account} does not exist (InvalidAccount)"
    holders = [accounts[account]] if account else list(accounts.values())
    names = {user, f"{user}/{partition}"}
    if not user or any(names & set(each.members) for each in holders):
        return ""
    where = f"account {account}" if account else "any account"
    return f"never starts: user {user} has no association with {where} (InvalidAccount)"


def qos_refusal(
    accounts: Mapping[str, Account], known: Collection[str], account: str, user: str, partition: str, qos: str
) -> str:
    """Return why an association may not use the quality of service that a job names; empty if it may."""
    if not qos:
        return ""
    if known and qos not in known:
        return f"never starts: QOS {qos} does not exist (InvalidQOS)"
    holder = accounts.get(account)
    allowed = _of_user(holder.user_allowed_qos, user, partition) or holder.allowed_qos if holder else ()
    if not allowed or qos in allowed:
        return ""
    return f"never starts: user {user} of account {account} may use QOS {_names(allowed)}, not {qos} (InvalidQOS)"


def default_qos(accounts: Mapping[str, Account], root: str, path: Sequence[str], user: str, partition: str) -> str:
    """Return the quality of service of a job that names none: of its user, its account or one above; empty if none states it.

    Args:
        root: that of the root. ``path``: the account of the job and those above it.
    """
    known = [accounts[name] for name in path if name in accounts]
    if known and (own := _of_user(known[0].user_default_qos, user, partition)):
        return own
    for account in known:
        if account.default_qos:
            return account.default_qos
    if known:
        allowed = _of_user(known[0].user_allowed_qos, user, partition) or known[0].allowed_qos
        if len(allowed) == 1:
            return allowed[0]
    return root


def _of_user(values: Mapping[str, _Value], user: str, partition: str) -> _Value | None:
    """Return the value of a user in a partition, or of the user."""
    return values.get(f"{user}/{partition}") or values.get(user)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
