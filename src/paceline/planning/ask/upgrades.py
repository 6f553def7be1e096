"""Gain of more or other devices, and the next larger cluster that fits a network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from paceline import hardware
from paceline.calibration.uncertainty import LINKS
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.prices import GIVEN, UNDATED, cheapest, every_listing, listings, price
from paceline.planning.ask.answer import Upgrade, cluster_text
from paceline.planning.ask.candidate_devices import compared
from paceline.planning.ask.rentals import rentals
from paceline.planning.ask.training_question import FEW, TrainingQuestion
from paceline.planning.compare.changes import apply, parse_change
from paceline.planning.compare.speedup_range import speedup_factor
from paceline.planning.search.choice import Choice, Plan
from paceline.planning.search.ranking import TIE
from paceline.planning.search.space import smaller

LADDER_GBPS = (10, 25, 40, 50, 100, 200, 400, 800, 1600, 3200)
"""Commercial network speeds, Gb/s a node and direction."""
NODE_DEVICES = 8
"""Most devices of a node to try if the cluster is too small."""
MOST_NODES = 64
"""Most nodes to try if a cluster is too small."""

WAITS = 0.3
"""Least share of a step that waits for links, from which fewer of the devices are tried."""
FEWER = "part"
"""Name of the change to fewer of the same devices; ``whatif`` has none."""
FASTER = 1.1
"""Least speedup of other devices that are named, and of the fastest over the cheapest of them."""
MOST_RENTED = 128
"""Most nodes to try if no cluster of the same devices fits the network."""


def upgrades(question: TrainingQuestion, choice: Choice) -> tuple[Upgrade, ...]:
    """Return upgrades: the same cluster at a lower price, more nodes, a faster network, the cheapest and the fastest of other
    devices, and fewer of the same if they are faster."""
    cluster = choice.cluster
    changes = []
    elsewhere = _cheaper_provider(question, choice)
    if not _lacks_network(cluster):
        changes.append(f"nodes={2 * cluster.num_nodes}")
    elif cluster.devices_per_node < NODE_DEVICES:
        changes.append(f"devices-per-node={2 * cluster.devices_per_node}")
    if cluster.num_nodes > 1 and (faster := _faster(cluster)):
        changes.append(f"network={faster}")
    same = [upgrade for change in changes if (upgrade := _upgrade(question, choice, change))]
    others = [
        upgrade
        for name in compared(question, _devices_by_speed(cluster), cluster.node_sizes)
        if (upgrade := _upgrade(question, choice, f"device={name}")) and upgrade.speedup >= FASTER
    ]
    cheapest = min(others, key=lambda upgrade: upgrade.usd, default=None)
    fastest = max(others, key=lambda upgrade: upgrade.speedup, default=None)
    if cheapest and fastest and fastest.speedup < FASTER * cheapest.speedup:
        fastest = None
    named = (x for x in others if x is cheapest or x is fastest)
    return (*filter(None, [elsewhere]), *same, *named, *filter(None, [_fewer(question, choice)]))


def _fewer(question: TrainingQuestion, choice: Choice) -> Upgrade | None:
    """Return the fastest part of the cluster, at the same price a device, if it is faster than the whole beyond its range.

    None if links hardly matter.
    """
    p, cluster = choice.prediction, choice.cluster
    if sum(p.exposed.get(link, 0.0) for link in LINKS) < WAITS * p.step_time_s:
        return None
    parts = [part for part in smaller(cluster) if part.world_size < cluster.world_size and question.may_hold(part)]
    listing = price(cluster.device.name, question.prices, cluster.node_sizes)
    prices = question.prices if listing is None else {**(question.prices or {}), cluster.device.name: listing}
    best = replace(question, prices=prices).plain(parts) if parts else None
    if best is None:
        return None
    part = best.best.cluster
    change = f"{FEWER}={part.num_nodes}x{part.devices_per_node}"
    upgrade = upgrade_to(choice, best.best, f"{cluster_text(part)} alone", change=change)
    return upgrade if upgrade.speedup_low > 1 else None


def larger(question: TrainingQuestion, cluster: Cluster) -> Plan | None:
    """Plan on the smallest larger cluster of the same devices that fits the network; None if none does."""
    for candidate in filter(question.may_hold, _larger(cluster)):
        if best := question.plain((candidate,)):
            return best
    return None


def large(question: TrainingQuestion, cluster: Cluster) -> Plan | None:
    """Plan on the smallest larger listed cluster that fits the network, also divided."""
    rented = [x.cluster for x in rentals(question.prices, _doublings(1, MOST_RENTED)) if question.may_hold(x.cluster)]
    for size in sorted({other.world_size for other in rented if other.world_size > cluster.world_size}):
        others = [other for other in rented if other.world_size == size]
        if best := question.plain(others) or question.divided(others, more=FEW):
            return best
    return None


def _larger(cluster: Cluster) -> Iterator[Cluster]:
    local, nodes = cluster.devices_per_node, cluster.num_nodes
    if nodes == 1:
        yield from (cluster.changed(devices_per_node=size) for size in _doublings(local, NODE_DEVICES))
    if not _lacks_network(cluster):
        yield from (cluster.changed(num_nodes=many) for many in _doublings(nodes, MOST_NODES))


def upgrade_to(choice: Choice, other: Choice, title: str, *, change: str = "", seller: str = "") -> Upgrade:
    """Return ``other`` as an upgrade of ``choice``, at its own price."""
    p, base = other.prediction, choice.prediction
    speedup = p.samples_per_s / base.samples_per_s
    factor = speedup_factor(p, base, other.cluster, choice.cluster)
    return Upgrade(
        change=change,
        title=title + (f", {seller}" if seller else ""),
        choice=other,
        speedup=speedup,
        speedup_low=speedup / factor,
        speedup_high=speedup * factor,
        usd=other.usd,
        seller=seller,
    )


def _upgrade(question: TrainingQuestion, choice: Choice, change: str) -> Upgrade | None:
    """Return the same training run after ``change``, as plain or as divided as the choice; None if it is impossible."""
    try:
        cluster, strategy, _ = apply([parse_change(change)], choice.cluster, choice.strategy, "weak")
    except UserError:
        return None
    best = question.alike(cluster, strategy)
    if best is None:
        return None
    seller, usd_there = _other_provider(question, choice, cluster)
    listing = price(cluster.device.name, question.prices, cluster.node_sizes)
    age = f", {UNDATED}" if seller and listing and listing.date == UNDATED else ""
    upgrade = upgrade_to(choice, best.best, _title(change, cluster, choice.cluster), change=change, seller=seller)
    upgrade = replace(upgrade, title=upgrade.title + age)
    # A faster network has no listed price.
    return replace(upgrade, usd_there=usd_there, usd=math.nan if change.startswith("network") else upgrade.usd)


def _cheaper_provider(question: TrainingQuestion, choice: Choice) -> Upgrade | None:
    """Return the same cluster at the cheapest provider if that saves more than a tie.

    None if the user gave the price. A provider that rents single devices joins no nodes.
    """
    cluster = choice.cluster
    now = price(cluster.device.name, question.prices, cluster.node_sizes)
    if now is None or now.provider == GIVEN:
        return None
    sizes = cluster.node_sizes
    least = cheapest(cluster.device.name, sizes) or now
    share = least.usd_per_hour(sizes) / now.usd_per_hour(sizes)
    if share >= 1 - TIE:
        return None
    cheaper = replace(choice, usd=choice.usd * share, usd_low=choice.usd_low * share, usd_high=choice.usd_high * share)
    return replace(upgrade_to(choice, cheaper, "the same", seller=least.seller), speedup_low=1.0, speedup_high=1.0)


def _other_provider(question: TrainingQuestion, choice: Choice, cluster: Cluster) -> tuple[str, float]:
    """Return another provider of the devices of ``cluster``, and its dollars for ``choice``; NaN if it is not listed.

    Both prices are of one provider, since prices of two providers say little about two devices.
    """
    name, sizes = choice.cluster.device.name, choice.cluster.node_sizes
    now, other = price(name, question.prices, sizes), price(cluster.device.name, question.prices, cluster.node_sizes)
    seller = now.seller if now else ""
    if other is None or other.seller in ("", seller) or cluster.device == choice.cluster.device:
        return "", choice.usd
    there = next((listing for listing in listings(name) if listing.seller == other.seller), None)
    if now is None:
        return other.seller, math.nan
    if not seller or not now.usd_per_hour(sizes):
        return other.seller, choice.usd
    return other.seller, choice.usd * there.usd_per_hour(sizes) / now.usd_per_hour(sizes) if there else math.nan


def _title(change: str, cluster: Cluster, before: Cluster) -> str:
    if cluster.device != before.device:
        return f"{cluster.device.name} instead"
    return f"network {cluster.network.name}" if change.startswith("network") else cluster_text(cluster)


def _lacks_network(cluster: Cluster) -> bool:
    """Return whether the network between nodes of a device is unknown."""
    return cluster.num_nodes == 1 and cluster.network == cluster.intra_link


def _doublings(size: int, most: int) -> list[int]:
    """Return ``size`` doubled once, twice, and so on up to ``most``."""
    return [size << times for times in range(1, 20) if size << times <= most]


def _faster(cluster: Cluster) -> str:
    """Return the next commercial network of the same transport, at least twice as fast; empty without one."""
    now = cluster.network.bandwidth.value * 8 / 1e9
    return next((f"{speed}Gb/s" for speed in LADDER_GBPS if speed >= 1.99 * now), "")


def _listed_devices() -> list[str]:
    return list(dict.fromkeys(listing.device for listing in every_listing() if not listing.market))


def _peak(name: str) -> float:
    device = hardware.device(name)
    return max(device.peak(precision).value for precision in ("bf16", "fp16") if precision in device.precisions)


def _devices_by_speed(cluster: Cluster) -> list[str]:
    """Return devices with a listed price and more 16-bit FLOP/s, GPUs or of the same kind."""
    names = [name for name in _listed_devices() if hardware.device(name).kind in ("gpu", cluster.device.kind)]
    names = [name for name in names if {"bf16", "fp16"} & set(hardware.device(name).precisions)]
    own = cluster.device
    least = _peak(own.name) if {"bf16", "fp16"} & set(own.precisions) else 0.0
    return [name for name in names if name != own.name and _peak(name) > least]
