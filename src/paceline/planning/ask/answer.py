"""The answer of ``ask``: one choice, its limits, and the gain of upgrades."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.hardware import Cluster
from paceline.hardware.node_sizes import node_sizes
from paceline.hardware.phrases.node_links import counted_text
from paceline.hardware.placement import nodes_text
from paceline.hardware.prices import Price
from paceline.planning.search.choice import Choice
from paceline.planning.search.nearest_fit import Fitting
from paceline.prediction import Prediction
from paceline.prediction.transports import figures_by_transport
from paceline.tabular import Row, Tabular


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """Another cluster for the same training run.

    Attributes:
        change: the change in ``whatif`` syntax, such as ``nodes=4``; ``part=1x4`` for fewer of the same devices; empty for the
            same cluster from another provider.
        speedup: samples/s relative to the answer, with the ends of its 80 % interval.
        usd: dollars for the whole run; NaN if no price is known, as for a faster network.
        seller: the provider, if it differs from the answer's; else empty.
        usd_there: dollars for the answer's own cluster at that provider; NaN if it is not listed there.
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
        """Convert to a plain dict."""
        names = ("change", "title", "speedup", "speedup_low", "speedup_high", "usd", "seller", "usd_there")
        return {**{name: getattr(self, name) for name in names}, "choice": self.choice.to_json()}


@dataclass(frozen=True, kw_only=True)
class Asked(Tabular):
    """The answer to one question, with its limits and upgrades.

    Attributes:
        choice: the best plain strategy (DDP or FSDP with recomputation and micro steps); a divided layout if no plain one
            fits or if it is clearly faster; on the next larger cluster if nothing fits.
        said: choices that the user stated, in words; the others are chosen.
        tool: the tool of the named framework, a key of ``synonyms.TOOLS``; empty without one.
        settings: names and values with which the named framework runs the choice, in its own words.
        plain: the best plain strategy, relative to a divided layout that is the answer; None if the answer is plain.
        otherwise: what fits ``named`` without ``dropped``, one or all of the stated choices of a layout, if nothing does with
            them; else None.
        named: the cluster of the question; None if the choice's cluster was selected among the listed ones.
        tokens: tokens of a sample; 0 if samples are not sequences.
        by_s, budget_usd: the user's limits in seconds and dollars; None without.
        in_time, in_budget: probability of meeting them; None without a limit or a price.
        price: price of the choice's device, with its source. ``listing``: the listing itself, None if unknown.
        upgrades: more nodes, a faster network, other devices, fewer devices if they are faster.
        keeping: the cheapest listed cluster that meets the deadline, if neither the choice nor an upgrade does.
        divided_layout: a divided layout that is faster beyond its range, found by a short search; None without one.
            ``may_divide``: whether such a search is worthwhile.
        memory_format: gain of another order of images, in words; empty without one. ``local_steps``: of local steps.
        lighter: changes of the job itself with which it fits ``named``, if it does not: 4 bits, state in host memory, shorter
            sequences, adapters; the fewest changes first.
        by_transport: the step over ``RDMA`` and over ``TCP``, if the network gives only its speed. The answer takes TCP.
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
    said: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    tool: str = ""
    plain: Upgrade | None = None
    otherwise: Choice | None = None
    dropped: tuple[str, ...] = ()
    keeping: Upgrade | None = None
    divided_layout: Upgrade | None = None
    may_divide: bool = False
    memory_format: str = ""
    local_steps: str = ""
    lighter: tuple[Fitting, ...] = ()
    upgrades: tuple[Upgrade, ...] = ()
    by_transport: Mapping[str, Prediction] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    advice: str = ""

    def rows(self) -> tuple[Row, ...]:
        """Return one row for the choice and one for each upgrade."""
        return tuple(
            {"cluster": title, "speedup": speedup, **choice.row(), "usd": usd}
            for title, speedup, choice, usd in (
                (cluster_text(self.choice.cluster), 1.0, self.choice, self.choice.usd),
                *((upgrade.title, upgrade.speedup, upgrade.choice, upgrade.usd) for upgrade in self.upgrades),
            )
        )

    @property
    def fits(self) -> bool:
        """Return whether the network fits the cluster of the question; true without one."""
        return self.named is None or self.named == self.choice.cluster

    @property
    def provider(self) -> str:
        """Provider of the price; empty without a price."""
        return self.listing.provider if self.listing else ""

    @property
    def billed(self) -> int:
        """Number of devices that are paid for; 0 without a price. It exceeds those in use if only whole machines are rented."""
        return self.listing.billed(self.choice.cluster.node_sizes) if self.listing else 0

    @property
    def divided(self) -> bool:
        """Return whether only a divided layout fits."""
        return self.choice.strategy.parallelism.model_devices > 1

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict."""
        names = ("workload", "amount", "fits", "divided", "by_s", "budget_usd", "in_time", "in_budget", "price", "provider")
        others = ("billed", "may_divide", "memory_format", "local_steps")
        further = {name: getattr(self, name) for name in ("plain", "keeping", "divided_layout")}
        return {
            **{name: getattr(self, name) for name in (*names, *others)},
            **{name: upgrade.to_json() if upgrade else None for name, upgrade in further.items()},
            "said": list(self.said),
            "settings": dict(self.settings),
            "dropped": list(self.dropped),
            "otherwise": self.otherwise.to_json() if self.otherwise else None,
            "lighter": [fit.to_json() for fit in self.lighter],
            "advice": self.advice,
            "choice": self.choice.to_json(),
            "by_transport": figures_by_transport(self.by_transport),
            "upgrades": [upgrade.to_json() for upgrade in self.upgrades],
            "assumptions": list(self.assumptions),
        }


def cluster_text(cluster: Cluster) -> str:
    """Format a cluster as ``2 x 8 A100 SXM 80GB``."""
    return f"{nodes_text(cluster.node_text, cluster.num_nodes)} {cluster.device.name}"


def cluster_name(cluster: Cluster) -> str:
    """Format a cluster with its network, as ``Cluster.named`` parses it: ``2x8 A100 SXM 80GB, EFA 400 Gb/s``."""
    alone = cluster.num_nodes == 1
    size = nodes_text(cluster.node_text, cluster.num_nodes).replace(" x ", "x")
    sold = node_sizes(cluster.device)
    if alone and sold and cluster.world_size > sold[1]:
        size = f"1x{size}"  # the number alone would be several nodes
    return f"{size} {cluster.device.name}{'' if alone else f', {counted_text(cluster.network)}'}"
