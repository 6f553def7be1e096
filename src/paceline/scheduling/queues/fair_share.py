"""Fair shares of Slurm: decayed usage of accounts and users, and the classic and the Fair Tree factor.

Slurm 25.05, classic_fair_share.html and fair_tree.html.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from paceline.scheduling.queues.slurm_settings import Account, SlurmSettings

User = tuple[str, str]
"""Account and user."""


@dataclass
class _ShareNode:
    """Account or user in the tree of shares. ``usage`` includes the nodes below it."""

    shares: float = 1.0
    user: User | None = None
    children: list[_ShareNode] = field(default_factory=list)
    usage: float = 0.0

    def level(self, shares: float, usage: float) -> float:
        """Return the Level Fairshare: the part of the shares over the part of the usage among siblings.

        Args:
            shares: sum of the siblings' shares and its own. ``usage``: that of their usage.
        """
        if not self.shares:
            return 0.0
        return self.shares / shares / (self.usage / usage) if self.usage else math.inf


def fair_share_factors(settings: SlurmSettings, usage: Mapping[User, float], users: Iterable[User] = ()) -> dict[User, float]:
    """Return the fair-share factor of each user, from 0 to 1.

    Args:
        usage: decayed device-seconds.
        users: further users, without usage.
    """
    root = _tree(settings, usage, users)
    factors: dict[User, float] = {}
    if settings.fair_tree:
        count = _users(root)
        _rank([root.children], count, count, factors)
    else:
        shares = sum(child.shares for child in root.children)
        for child in root.children:
            used = child.usage / root.usage if root.usage else 0.0
            share = child.shares / shares if shares else 0.0
            _set_classic(child, share, used, root.usage, settings.dampening, factors)
    return factors


def _tree(settings: SlurmSettings, usage: Mapping[User, float], users: Iterable[User]) -> _ShareNode:
    """Return the tree of accounts and users, with the usage summed upwards. The next call with the same users changes it."""
    stated = ((name, user) for name, account in settings.accounts.items() for user in account.users)
    every = tuple(sorted({*usage, *users, *stated}))
    if every not in settings.share_trees:
        settings.share_trees[every] = _made_tree(settings, every)
    nodes: Sequence[_ShareNode] = settings.share_trees[every]
    for node in nodes:
        node.usage = 0.0 if node.user is None else usage.get(node.user, 0.0)
    _sum(nodes[0])
    return nodes[0]


def _made_tree(settings: SlurmSettings, users: Sequence[User]) -> list[_ShareNode]:
    """Build the tree of accounts and users without usage. Return its nodes, the root first."""
    nodes: dict[str, _ShareNode] = {"": _ShareNode()}
    people = []

    def account(name: str) -> _ShareNode:
        if name not in nodes:
            stated = settings.accounts.get(name, Account())
            nodes[name] = _ShareNode(stated.shares)
            account(stated.parent).children.append(nodes[name])
        return nodes[name]

    for name in settings.accounts:
        account(name)
    for name, user in users:
        shares = settings.accounts[name].users.get(user, 1.0) if name in settings.accounts else 1.0
        people.append(_ShareNode(shares, (name, user)))
        account(name).children.append(people[-1])
    return [*nodes.values(), *people]


def _sum(node: _ShareNode) -> float:
    node.usage += sum(_sum(child) for child in node.children)
    return node.usage


def _users(node: _ShareNode) -> int:
    return (node.user is not None) + sum(_users(child) for child in node.children)


def _rank(families: Sequence[Sequence[_ShareNode]], rank: int, count: int, factors: dict[User, float]) -> int:
    """Rank users from the highest Level Fairshare down, and return the next rank. Accounts that tie merge their children.

    Args:
        families: siblings of each account.
    """
    levels: list[tuple[float, _ShareNode]] = []
    for siblings in families:
        shares, usage = sum(node.shares for node in siblings), sum(node.usage for node in siblings)
        levels += [(node.level(shares, usage), node) for node in siblings]
    levels.sort(key=lambda pair: -pair[0])
    for _, group in groupby(levels, key=lambda pair: pair[0]):
        tied = [node for _, node in group]
        people = [node for node in tied if node.user is not None]
        for node in people:
            assert node.user is not None
            factors[node.user] = rank / count
        below = [node.children for node in tied if node.user is None]
        rank = (_rank(below, rank, count, factors) if any(below) else rank) - len(people)
    return rank


def _set_classic(
    node: _ShareNode, share: float, used: float, total: float, dampening: float, factors: dict[User, float]
) -> None:
    """Set 2^(-effective usage / normalized shares) of the users below a node.

    Args:
        share: normalized shares of the node. ``used``: its effective usage. ``total``: usage of the cluster.
    """
    if node.user is not None:
        factors[node.user] = 2 ** (-used / share / dampening) if share else 0.0
        return
    shares = sum(child.shares for child in node.children)
    for child in node.children:
        own, part = child.usage / total if total else 0.0, child.shares / shares if shares else 0.0
        _set_classic(child, share * part, own + (used - own) * part, total, dampening, factors)


class DecayedUsage:
    """Device-seconds of each user, of which past ones count less with every half-life.

    Args:
        half_life_s: time after which usage counts half; 0: it does not decay.
        memory: ``to_json`` of the previous decision.
    """

    def __init__(self, half_life_s: float, start: Mapping[User, float], memory: Mapping[str, object] | None = None) -> None:
        self._half_life_s = half_life_s
        saved: Mapping[str, object] = memory or {}
        self._time_s = saved.get("time_s")
        rows = saved.get("usage")
        self.usage: dict[User, float] = dict(start) if rows is None else {(a, u): float(x) for a, u, x in rows}  # type: ignore[attr-defined]
        held = saved.get("held")
        self._held: dict[User, float] = {(a, u): float(x) for a, u, x in held or ()}  # type: ignore[attr-defined]

    def pass_to(self, time_s: float) -> None:
        """Advance time, in which users held the devices of the previous decision."""
        if self._time_s is not None:
            seconds = time_s - float(self._time_s)  # type: ignore[arg-type]
            half = self._half_life_s
            decay = 0.5 ** (seconds / half) if half else 1.0
            gained_s = (1 - decay) * half / math.log(2) if half else seconds
            self.usage = {user: used * decay for user, used in self.usage.items()}
            for user, devices in self._held.items():
                self.usage[user] = self.usage.get(user, 0.0) + devices * gained_s
        self._time_s = time_s

    def hold(self, held: Mapping[User, float]) -> None:
        """Set the devices that each user holds from now on."""
        self._held = dict(held)

    def to_json(self) -> dict[str, object]:
        """Convert to plain data."""
        return {
            "time_s": self._time_s,
            "usage": [[*user, used] for user, used in self.usage.items()],
            "held": [[*user, devices] for user, devices in self._held.items()],
        }
