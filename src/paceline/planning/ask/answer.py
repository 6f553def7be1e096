"""What ``ask`` answers: one choice, its limits, and what more would bring."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.hardware import Cluster
from paceline.hardware.node_sizes import node_sizes
from paceline.hardware.placement import nodes_text
from paceline.hardware.prices import Price
from paceline.planning.search.choice import Choice
from paceline.prediction import Prediction
from paceline.prediction.exchange.transports import figures_by_transport
from paceline.tabular import Row, Tabular


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """Another cluster for the same training.

    Attributes:
        change: as ``whatif`` takes it, ``nodes=4``; empty where the same cluster is rented elsewhere.
        speedup: samples a second over those of the answer, with the ends of its 80 % interval.
        usd: of the whole training, NaN where no price is known: a faster network has none.
        seller: who lets it, where that is another provider than the answer's; empty where it is the same, or nobody is known.
        usd_there: what the answer's own cluster costs there, NaN where it is not listed there.
    """

    change: str
    title: str
    choice: Choice
    speedup: float
    speedup_low: float
    speedup_high: float
    usd: float
    seller: str = ""
    usd_there: float = math.nan

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        names = ("change", "title", "speedup", "speedup_low", "speedup_high", "usd", "seller", "usd_there")
        return {**{name: getattr(self, name) for name in names}, "choice": self.choice.to_json()}


@dataclass(frozen=True, kw_only=True)
class Asked(Tabular):
    """The answer.

    Attributes:
        choice: the best plain strategy, DDP or FSDP with recomputation and micro steps; a layout that divides the network where
            nothing else fits; on the next larger cluster where nothing fits at all.
        named: the cluster that was asked about; None: the choice's was chosen among those that can be rented.
        tokens: of a sample; 0 where it has none.
        by_s, budget_usd: the user's limits; None without.
        in_time, in_budget: probability that the training keeps them; None without one, or without a price.
        price: of the choice's device, with its source. ``listing``: the same as it is listed, None where it is unknown.
        upgrades: more of it, or other of it: nodes, network, devices.
        keeping: the cheapest that can be rented of what keeps the date, where neither the choice nor an upgrade does.
        divided_layout: a layout that divides the network and is faster beyond its range, found by a short search; None where
            the search finds none, or there is no reason for one. ``may_divide``: whether there is a reason.
        shorter: tokens of the longest sequence, a power of two, with which the network fits ``named``; 0 where none is known.
        by_transport: the step over ``RDMA`` and over ``TCP``, where the network says its speed alone: TCP is taken.
        advice: one sentence.
    """

    workload: str
    amount: str
    choice: Choice
    named: Cluster | None = None
    tokens: int = 0
    by_s: float | None = None
    budget_usd: float | None = None
    in_time: float | None = None
    in_budget: float | None = None
    price: str = ""
    listing: Price | None = None
    keeping: Upgrade | None = None
    divided_layout: Upgrade | None = None
    may_divide: bool = False
    shorter: int = 0
    upgrades: tuple[Upgrade, ...] = ()
    by_transport: Mapping[str, Prediction] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    advice: str = ""

    def rows(self) -> tuple[Row, ...]:
        """The choice, then a row for each upgrade."""
        return tuple(
            {"cluster": title, "speedup": speedup, **choice.row(), "usd": usd}
            for title, speedup, choice, usd in (
                (cluster_text(self.choice.cluster), 1.0, self.choice, self.choice.usd),
                *((upgrade.title, upgrade.speedup, upgrade.choice, upgrade.usd) for upgrade in self.upgrades),
            )
        )

    @property
    def fits(self) -> bool:
        """Whether the network fits the cluster that was asked about; true where none was."""
        return self.named is None or self.named == self.choice.cluster

    @property
    def provider(self) -> str:
        """Whose price it is; empty where none is known."""
        return self.listing.provider if self.listing else ""

    @property
    def billed(self) -> int:
        """Devices that are paid for, more than are used where only whole machines are let; 0 where no price is known."""
        return self.listing.billed(self.choice.cluster.node_sizes) if self.listing else 0

    @property
    def divided(self) -> bool:
        """Whether only a layout that divides the network fits."""
        return self.choice.strategy.parallelism.model_devices > 1

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        names = ("workload", "amount", "fits", "divided", "by_s", "budget_usd", "in_time", "in_budget", "price", "provider")
        others = ("billed", "may_divide", "shorter")
        further = {name: getattr(self, name) for name in ("keeping", "divided_layout")}
        return {
            **{name: getattr(self, name) for name in (*names, *others)},
            **{name: upgrade.to_json() if upgrade else None for name, upgrade in further.items()},
            "advice": self.advice,
            "choice": self.choice.to_json(),
            "by_transport": figures_by_transport(self.by_transport),
            "upgrades": [upgrade.to_json() for upgrade in self.upgrades],
            "assumptions": list(self.assumptions),
        }


def cluster_text(cluster: Cluster) -> str:
    """``2 x 8 A100 SXM 80GB``."""
    return f"{nodes_text(cluster.node_text, cluster.num_nodes)} {cluster.device.name}"


def cluster_name(cluster: Cluster) -> str:
    """The same with its network, as ``Cluster.named`` takes it: ``2x8 A100 SXM 80GB, EFA 400 Gb/s``."""
    alone = cluster.num_nodes == 1
    size = nodes_text(cluster.node_text, cluster.num_nodes).replace(" x ", "x")
    sold = node_sizes(cluster.device)
    if alone and sold and cluster.world_size > sold[1]:
        size = f"1x{size}"  # the number alone would be several nodes
    return f"{size} {cluster.device.name}{'' if alone else f', {cluster.network.name}'}"
