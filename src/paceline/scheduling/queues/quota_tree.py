"""Quotas of a tree of cohorts, with what each queue may still use, as Kueue counts them.

Kueue 0.14, keps/79-hierarchical-cohorts. A queue keeps its guaranteed part, the nominal quota without what it lends. The rest
of its quota and usage counts in its cohort.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from paceline.scheduling.queues.kueue_settings import KueueSettings, Quota

_NONE = Quota()


@dataclass
class _Node:
    """Queue or cohort, for one flavor. ``quota``: its own quota and that which is lent from below."""

    stated: Quota
    parent: _Node | None = None
    children: list[_Node] = field(default_factory=list)
    quota: int = 0
    usage: int = 0

    @property
    def guaranteed(self) -> int:
        """Part of the quota that is not lent."""
        limit = self.stated.lending_limit
        return 0 if limit is None or self.parent is None else max(self.quota - limit, 0)

    def sum_up(self) -> None:
        self.quota = self.stated.nominal
        for child in self.children:
            child.sum_up()
            self.quota += child.quota - child.guaranteed

    def available(self) -> int:
        if self.parent is None:
            return self.quota - self.usage
        above, limit = self.parent.available(), self.stated.borrowing_limit
        if limit is not None:
            above = min(above, self.quota - self.guaranteed - max(self.usage - self.guaranteed, 0) + limit)
        return max(self.guaranteed - self.usage, 0) + above

    def add(self, devices: int) -> None:
        """Count devices, and those beyond the guaranteed part in the cohort too."""
        before = max(self.usage - self.guaranteed, 0)
        self.usage += devices
        if self.parent is not None:
            self.parent.add(max(self.usage - self.guaranteed, 0) - before)


class QuotaTree:
    """Quotas and usage of all queues.

    Args:
        flavors: flavors that count.

    Attributes:
        version: number of changes of the usage so far.
    """

    def __init__(self, settings: KueueSettings, flavors: Iterable[str]) -> None:
        self._settings = settings
        self._nodes: dict[tuple[str, str], _Node] = {}
        self._available: dict[tuple[str, str], int] = {}
        self.version = 0
        for flavor in flavors:
            cohorts: dict[str, _Node] = {}
            for name, queue in settings.queues.items():
                node = _Node(queue.quotas.get(flavor, _NONE))
                self._nodes[name, flavor] = node
                if queue.cohort:
                    self._below(node, queue.cohort, flavor, cohorts)
            for root in {id(top): top for node in self._nodes.values() for top in [_top(node)]}.values():
                root.sum_up()

    def _below(self, node: _Node, cohort: str, flavor: str, cohorts: dict[str, _Node]) -> None:
        if cohort not in cohorts:
            stated = self._settings.cohorts.get(cohort)
            cohorts[cohort] = _Node(stated.quotas.get(flavor, _NONE) if stated else _NONE)
            if stated and stated.parent:
                self._below(cohorts[cohort], stated.parent, flavor, cohorts)
        node.parent = cohorts[cohort]
        cohorts[cohort].children.append(node)

    def available(self, queue: str, flavor: str) -> int:
        """Return the devices that a queue may still use, borrowed ones included."""
        key = queue, flavor
        if key not in self._available:
            self._available[key] = self._nodes[key].available()
        return self._available[key]

    def add(self, queue: str, flavor: str, devices: int) -> None:
        """Count devices that a queue uses; below 0: that it gives back."""
        self._nodes[queue, flavor].add(devices)
        self._available.clear()
        self.version += 1

    def borrows(self, queue: str, flavor: str, more: int = 0) -> bool:
        """Return whether a queue uses more than its own quota, with ``more`` devices."""
        node = self._nodes[queue, flavor]
        return node.parent is not None and node.usage + more > node.quota

    def share(self, queue: str, more: Mapping[str, int] | None = None) -> float:
        """Return the share value of a queue: borrowed devices over those that its cohort lends, over its weight.

        Args:
            more: further devices by flavor.
        """
        nodes = {flavor: node for (name, flavor), node in self._nodes.items() if name == queue}
        borrowed = sum(max(node.usage + (more or {}).get(flavor, 0) - node.quota, 0) for flavor, node in nodes.items())
        lent = sum(node.parent.quota for node in nodes.values() if node.parent is not None)
        weight = self._settings.queues[queue].weight
        if not borrowed or not lent:
            return 0.0
        return borrowed / lent / weight if weight else math.inf

    def related(self, one: str, other: str, flavor: str) -> bool:
        """Return whether two queues lend one another devices."""
        return _top(self._nodes[one, flavor]) is _top(self._nodes[other, flavor])


def _top(node: _Node) -> _Node:
    while node.parent is not None:
        node = node.parent
    return node
