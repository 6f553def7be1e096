"""``ask(workload, cluster)``: does it fit, how fast, what limits it, what it costs, is more worth it, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline import hardware
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.prices import every_listing, of_devices
from paceline.planning.advice import advice
from paceline.planning.asked import Asked, Upgrade, cluster_text
from paceline.planning.changes import apply, parse_change
from paceline.planning.choice import Choice, Plan
from paceline.planning.goal import Goal
from paceline.planning.layouts import Progress, silent
from paceline.planning.plan import plan
from paceline.planning.space import Space
from paceline.planning.speedup_range import speedup_factor
from paceline.planning.training_target import TrainingTarget
from paceline.prediction import ORDINARY, Predictor
from paceline.strategy import BUCKET_BYTES
from paceline.workload.table import Workload

LADDER_GBPS = (10, 25, 40, 50, 100, 200, 400, 800, 1600, 3200)
"""Speeds of networks as they are sold, Gb/s a node and direction."""
NODE_DEVICES = 8
"""Devices of a node at most that are tried where its cluster is too small."""
MOST_NODES = 64
"""Nodes at most that are tried where a cluster is too small."""
RENTED_NODES = (1, 2, 4, 8)
"""Nodes that are tried where no cluster is named."""
FASTEST = Goal("fastest")
PLAIN: Mapping[str, Any] = {
    "compressions": ("dense",),
    "exchanges": ("allreduce",),
    "shardings": ("ddp", "zero1", "zero2", "zero3"),
    "buckets": (BUCKET_BYTES,),
    "tensors": (1,),
    "contexts": (1,),
    "pipelines": (1,),
}
"""What anybody can run in plain PyTorch: DDP and FSDP. Divided networks and compression are for ``plan``."""


def ask(
    workload: Workload,
    cluster: Cluster | None,
    target: TrainingTarget | None = None,
    *,
    by_s: float | None = None,
    budget_usd: float | None = None,
    prices: Mapping[str, float] | None = None,
    predictor: Predictor = ORDINARY,
    progress: Progress = silent,
) -> Asked:
    """Answer with the best plain strategy on ``cluster``.

    Args:
        cluster: None: the cheapest of what can be rented that keeps the limits.
        target: how much is trained; by default a million samples.
        by_s, budget_usd: seconds and dollars that the training may take.
        prices: as ``plan`` takes them.

    Raises:
        UserError: nothing fits the cluster, with the nearest that does; or as ``plan``.
    """
    target = target or TrainingTarget()
    prices = of_devices(prices, {cluster.device.name} if cluster else ())
    question = _Question(workload, target, prices, predictor)
    if cluster is None:
        best = question.rented(by_s, budget_usd)
    else:
        best = question.plain((cluster,)) or question.divided(cluster, progress) or question.larger(cluster)
    choice = best.best
    asked = Asked(
        workload=workload.name,
        amount=target.title,
        choice=choice,
        named=cluster,
        tokens=workload.tokens,
        by_s=by_s,
        budget_usd=budget_usd,
        in_time=chance(by_s, choice.time_s, choice.time_low_s, choice.time_high_s),
        in_budget=chance(budget_usd, choice.usd, choice.usd_low, choice.usd_high),
        price=next((note for note in best.prices if choice.cluster.device.name in note), ""),
        upgrades=question.upgrades(choice),
        assumptions=best.assumptions,
    )
    return replace(asked, advice=advice(asked))


def chance(limit: float | None, value: float, low: float, high: float) -> float | None:
    """Probability that a quantity with that 80 % interval is within ``limit``; None without a limit or a value."""
    if limit is None or math.isnan(value):
        return None
    return Goal("deadline", limit).chance(value, low, high)


@dataclass(frozen=True)
class _Question:
    """What is trained and with which prices: what every plan of one answer shares."""

    workload: Workload
    target: TrainingTarget
    prices: Mapping[str, float] | None
    predictor: Predictor

    def plan(self, space: Space, goal: Goal = FASTEST, progress: Progress = silent) -> Plan | None:
        """The plan; None where nothing is legal, fits or meets the goal."""
        try:
            return plan(
                self.workload,
                space,
                goal,
                self.target,
                prices=self.prices,
                predictor=self.predictor,
                progress=progress,
                offers=False,
            )
        except UserError:
            return None

    def plain(self, clusters: Sequence[Cluster], goal: Goal = FASTEST) -> Plan | None:
        """The best of DDP and FSDP."""
        return self.plan(Space(clusters=tuple(clusters), **PLAIN), goal)

    def divided(self, cluster: Cluster, progress: Progress) -> Plan | None:
        """The best layout that divides the network."""
        return self.plan(Space(clusters=(cluster,), compressions=("dense",)), FASTEST, progress)

    def larger(self, cluster: Cluster) -> Plan:
        """The plan of the smallest larger cluster that holds the network. Raises UserError where none does."""
        local, nodes = cluster.devices_per_node, cluster.num_nodes
        inside = [cluster.changed(devices_per_node=size) for size in _doublings(local, NODE_DEVICES) if nodes == 1]
        across = [] if _alone(cluster) else [cluster.changed(num_nodes=many) for many in _doublings(nodes, MOST_NODES)]
        more = [_other_device(cluster, name) for name in _devices_by_memory(cluster)]
        for candidate in (*inside, *across, *more):
            if best := self.plain((candidate,)):
                return best
        raise UserError(
            f"{self.workload.name} does not fit on {cluster_text(cluster)}, nor on any larger one that was tried",
            "name more nodes and their network, such as '8x8 H100, 400Gb/s InfiniBand'",
        )

    def rented(self, by_s: float | None, budget_usd: float | None) -> Plan:
        """The cheapest of what can be rented within ``by_s``, or the fastest within ``budget_usd``; what misses least where
        nothing keeps them."""
        names = {listing.provider: listing.device for listing in every_listing()}
        rented = [name for name in names if hardware.instance(name)]
        clusters = []
        for name in rented:
            for nodes in RENTED_NODES:
                try:
                    clusters.append(hardware.cluster(name, None, nodes, None))
                except UserError:  # an instance without a network is let one by one
                    break
        goal = Goal("deadline", by_s) if by_s else Goal("budget", budget_usd) if budget_usd else Goal("cheapest")
        best = self.plain(clusters, goal) or self.plain(clusters, Goal("fastest" if by_s else "cheapest"))
        if best is None:
            raise UserError(f"{self.workload.name} fits on nothing that is listed", "name a cluster: --on '8x8 H100, 400Gb/s'")
        return best

    def upgrades(self, choice: Choice) -> tuple[Upgrade, ...]:
        """More nodes, a faster network, and the best other devices: the cheapest and the fastest."""
        cluster = choice.cluster
        changes = []
        if not _alone(cluster):
            changes.append(f"nodes={2 * cluster.num_nodes}")
        elif cluster.devices_per_node < NODE_DEVICES:
            changes.append(f"devices-per-node={2 * cluster.devices_per_node}")
        if cluster.num_nodes > 1 and (faster := _faster(cluster)):
            changes.append(f"network={faster}")
        same = [upgrade for change in changes if (upgrade := self.upgrade(choice, change))]
        others = [
            upgrade
            for name in _devices_by_speed(cluster)
            if (upgrade := self.upgrade(choice, f"device={name}")) and upgrade.speedup > 1
        ]
        cheapest = min(others, key=lambda upgrade: upgrade.usd, default=None)
        fastest = max(others, key=lambda upgrade: upgrade.speedup, default=None)
        return (*same, *(x for x in others if x is cheapest or x is fastest))

    def upgrade(self, choice: Choice, change: str) -> Upgrade | None:
        """The same training with the best plain strategy after ``change``; None where it cannot be."""
        try:
            cluster, _, _ = apply([parse_change(change)], choice.cluster, choice.strategy, "weak")
        except UserError:
            return None
        best = self.plain((cluster,))
        if best is None:
            return None
        p, base = best.best.prediction, choice.prediction
        speedup = p.samples_per_s / base.samples_per_s
        factor = speedup_factor(p, base, cluster, choice.cluster)
        return Upgrade(
            change=change,
            title=_title(change, cluster, choice.cluster),
            choice=best.best,
            speedup=speedup,
            speedup_low=speedup / factor,
            speedup_high=speedup * factor,
            # Nobody lists what a faster network costs.
            usd=math.nan if change.startswith("network") else best.best.usd,
        )


def _title(change: str, cluster: Cluster, before: Cluster) -> str:
    if cluster.device != before.device:
        return f"{cluster.device.name} instead"
    return f"network {cluster.network.name}" if change.startswith("network") else cluster_text(cluster)


def _alone(cluster: Cluster) -> bool:
    """Whether nothing is known of a network between such nodes."""
    return cluster.num_nodes == 1 and cluster.network == cluster.intra_link


def _doublings(size: int, most: int) -> list[int]:
    """Twice ``size``, four times, and so on."""
    return [size << times for times in range(1, 20) if size << times <= most]


def _faster(cluster: Cluster) -> str:
    """The next network that is sold, at least twice as fast and of the same transport; empty where there is none."""
    now = cluster.network.bandwidth.value * 8 / 1e9
    return next((f"{speed}Gb/s" for speed in LADDER_GBPS if speed >= 1.99 * now), "")


def _listed_devices() -> list[str]:
    return list(dict.fromkeys(listing.device for listing in every_listing()))


def _peak(name: str) -> float:
    device = hardware.device(name)
    return max(device.peak(precision).value for precision in ("bf16", "fp16") if precision in device.precisions)


def _devices_by_speed(cluster: Cluster) -> list[str]:
    """Devices with a listed price and more FLOP/s at 16 bit."""
    names = [name for name in _listed_devices() if {"bf16", "fp16"} & set(hardware.device(name).precisions)]
    own = cluster.device
    least = _peak(own.name) if {"bf16", "fp16"} & set(own.precisions) else 0.0
    return [name for name in names if name != own.name and _peak(name) > least]


def _devices_by_memory(cluster: Cluster) -> list[str]:
    """Devices with a listed price and more memory, the smallest first."""
    sizes = {name: hardware.device(name).memory.value for name in _listed_devices()}
    return sorted((name for name, size in sizes.items() if size > cluster.device.memory.value), key=lambda n: sizes[n])


def _other_device(cluster: Cluster, name: str) -> Cluster:
    device = hardware.device(name)
    return cluster.changed(device=device, intra_link=hardware.link(device.link))
