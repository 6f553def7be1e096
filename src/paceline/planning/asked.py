"""What ``ask`` answers: one choice, its limits, and what more would bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.hardware import Cluster
from paceline.planning.choice import Choice
from paceline.tabular import Row, Tabular


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """Another cluster for the same training.

    Attributes:
        change: as ``whatif`` takes it, ``nodes=4``.
        speedup: samples a second over those of the answer, with the ends of its 80 % interval.
        usd: of the whole training, NaN where no price is known: a faster network has none.
    """

    change: str
    title: str
    choice: Choice
    speedup: float
    speedup_low: float
    speedup_high: float
    usd: float

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        names = ("change", "title", "speedup", "speedup_low", "speedup_high", "usd")
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
        upgrades: more of it, or other of it: nodes, network, devices.
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
    upgrades: tuple[Upgrade, ...] = ()
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
    def divided(self) -> bool:
        """Whether only a layout that divides the network fits."""
        return self.choice.strategy.parallelism.model_devices > 1

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        names = ("workload", "amount", "fits", "divided", "by_s", "budget_usd", "in_time", "in_budget", "price", "advice")
        return {
            **{name: getattr(self, name) for name in names},
            "choice": self.choice.to_json(),
            "upgrades": [upgrade.to_json() for upgrade in self.upgrades],
            "assumptions": list(self.assumptions),
        }


def cluster_text(cluster: Cluster) -> str:
    """``2 x 8 A100 SXM 80GB``."""
    many = cluster.num_nodes > 1 and cluster.even
    return f"{f'{cluster.num_nodes} x {cluster.devices_per_node}' if many else cluster.node_text} {cluster.device.name}"
