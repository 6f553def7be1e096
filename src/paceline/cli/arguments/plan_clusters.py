"""Clusters that ``plan`` tries: the largest, in the form that ``predict`` takes, and every smaller one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from paceline import hardware
from paceline.cli.guide.sections import common, section
from paceline.errors import UserError, check_count
from paceline.hardware import Cluster
from paceline.hardware.node_sizes import counted_nodes, node_counts
from paceline.hardware.phrases.machine_phrase import machine_phrase
from paceline.hardware.placement import NodeSizes, parse_sizes, sizes_text
from paceline.hardware.saved_clusters import saved_cluster
from paceline.planning.search.space import UNEVEN, smaller, worlds

_CLUSTER_OPTIONS = ("device", "devices_per_node", "max_nodes", "devices")


def add_plan_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the largest cluster, as one text or by its parts."""
    machines = section(parser, "machines")
    largest = "the largest cluster, '8x8 A100' or '4x p5.48xlarge', in place of --device and counts; may be repeated"
    common(machines.add_argument("--cluster", "--on", metavar="C", action="append", help=largest))
    machines.add_argument("--device", metavar="D", action="append", help="a device that may be used; may be repeated")
    each = "once for all devices, or once for each --device"
    machines.add_argument("--devices-per-node", metavar="N", type=parse_sizes, action="append", help=f"{each} (default 1)")
    common(machines.add_argument("--network", metavar="LINK", action="append", help=f"between nodes: {each}"))
    machines.add_argument("--max-nodes", "--nodes", metavar="M", type=int, help="most nodes of one device")
    total = "most devices, instead of --max-nodes; a node has its usual number of devices unless --devices-per-node is given"
    machines.add_argument("--devices", metavar="N", type=int, help=total)


def plan_clusters(o: argparse.Namespace) -> tuple[Cluster, ...]:
    """Return clusters of every number of nodes of every device. Raises UserError."""
    if o.cluster:
        repeated = [name.replace("_", "-") for name in _CLUSTER_OPTIONS if getattr(o, name) is not None]
        if repeated:
            raise UserError(f"--cluster says what --{repeated[0]} says", "give one of the two: --cluster '8x8 A100'")
        named = zip(o.cluster, _by_kind("network", o.network, o.cluster), strict=True)
        return tuple(cluster for text, link in named for cluster in _of_text(text, link))
    if not o.device:
        raise UserError("no device is named", "give --cluster '8x8 A100', or --device and --max-nodes (paceline hardware list)")
    if (o.max_nodes is None) == (o.devices is None):
        both = "--max-nodes and --devices both say how many" if o.devices is not None else "nothing says how many devices"
        raise UserError(both, "give one of --max-nodes and --devices")
    per_node, networks = (
        _by_kind(name, getattr(o, name.replace("-", "_")), o.device) for name in ("devices-per-node", "network")
    )
    parts = zip(o.device, per_node, networks, strict=True)
    return tuple(cluster for name, many, link in parts for cluster in _of_parts(name, many, link, o))


def _of_text(text: str, network: str | None) -> Iterator[Cluster]:
    """Yield all clusters up to the size of the one in a text. Instances are not divided."""
    largest = Cluster.named(text, network)
    if not largest.even:
        raise UserError(f"a plan on nodes of {largest.node_text} devices", UNEVEN)
    own = saved_cluster(text)
    said = machine_phrase(own.text if own else text)
    if said.rented:
        between = said.network if network is None else network
        _, many = node_counts(said, between)
        yield from (hardware.cluster(said.name, None, nodes, between) for _, nodes in worlds(1, many))
    else:
        yield from smaller(largest)


def _of_parts(name: str, many: NodeSizes | None, network: str | None, o: argparse.Namespace) -> Iterator[Cluster]:
    nodes = o.max_nodes
    if o.devices is not None:
        many, nodes = _nodes(name, many, o.devices, network)
    elif nodes < 1:
        raise UserError(f"--max-nodes {nodes}", "give a whole number from 1 up")
    rented = hardware.instance(name)
    if isinstance(many, tuple) and rented is None:
        raise UserError(f"a plan on nodes of {sizes_text(many)} devices", UNEVEN)
    largest = hardware.cluster(name, many, nodes, network)  # refuse an impossible cluster before the search
    if rented:
        yield from (hardware.cluster(name, many, count, network) for _, count in worlds(1, nodes))
    else:
        yield from smaller(largest)


def _nodes(name: str, many: NodeSizes | None, devices: int, network: str | None) -> tuple[NodeSizes | None, int]:
    """Split a number of devices into devices per node and nodes."""
    check_count(devices, "--devices")
    if isinstance(many, tuple):
        raise UserError(f"a plan on nodes of {sizes_text(many)} devices", UNEVEN)
    rented = hardware.instance(name)
    size = rented.devices if rented else many
    if size is None:
        return counted_nodes(name, devices, network)
    if rented is None and devices < size:
        return devices, 1
    if devices % size:
        raise UserError(f"--devices {devices} are no whole nodes of {size}", f"give a multiple of {size}")
    return many, devices // size


def _by_kind(name: str, given: Sequence[Any] | None, kinds: Sequence[str]) -> list[Any]:
    """Return one value per kind. ``given`` has one value for all kinds or one for each."""
    values = list(given or [None])
    if len(values) not in (1, len(kinds)):
        raise UserError(
            f"--{name} is given {len(values)} times for {len(kinds)} devices", "give it once, or once for each --device"
        )
    return values * (len(kinds) if len(values) == 1 else 1)
