"""Changes of a cluster and a strategy, such as ``nodes+1``, and their application."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from paceline import hardware
from paceline.errors import UserError, known_name, unknown
from paceline.hardware import Cluster, Device
from paceline.hardware.hosts import hosts
from paceline.hardware.instances import network_of
from paceline.hardware.leaf_switches import on_leaves, parse_oversubscription
from paceline.hardware.placement import parse_sizes
from paceline.planning.compare.strategy_text import ALIASES, EXAMPLES, WORDS, fixed
from paceline.prediction import StepPredictor
from paceline.strategy import EXCHANGES, Strategy
from paceline.strategy.choices.choice_values import Name
from paceline.strategy.exchanges.allreduce import ALLREDUCE
from paceline.strategy.exchanges.parameter_server import PARAMETER_SERVER
from paceline.strategy.parallelism import MODEL

BatchScaling = Literal["strong", "weak"]
OF_HOST = ("host-link", "host")
"""Changes of the link to the host's memory, and of the host."""
OF_CLUSTER = (
    *("nodes", "devices-per-node", "network", "link", "device", "leaf-nodes", "oversubscription", "nic", "aggregation"),
    *OF_HOST,
)
OF_FABRIC = ("network", "leaf-nodes", "oversubscription", "nic", "aggregation")
"""Changes of the links between nodes, which no device listing prices."""
OF_PREDICTOR = ("attention", "framework")
OF_STRATEGY = {word: item for word, item in WORDS.items() if item.name != "world_size"}
"""Changes of the strategy; the devices follow from the cluster."""
_COUNTED = ("nodes", "devices-per-node", "leaf-nodes", *(word for word, item in OF_STRATEGY.items() if item.values.counted))
SERVERLESS = frozenset(name for name, exchange in EXCHANGES.items() if not exchange.has_servers)


@dataclass(frozen=True, slots=True)
class Change:
    """One change: ``nodes+1``, ``network=100Gb/s``. ``operator`` is ``=``, ``+``, ``-`` or ``x``."""

    name: str
    operator: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.value}"


def parse_change(text: str) -> Change:
    """Parse ``nodes+1``, ``nodes=4``, ``nodesx2``, ``network=100Gb/s``, ``device=H100-SXM``. Raises UserError otherwise."""
    names = sorted((*OF_CLUSTER, *OF_STRATEGY, *OF_PREDICTOR), key=len, reverse=True)
    text = text.strip()
    for word in (*names, *ALIASES):
        name, rest = ALIASES.get(word, word), text[len(word) :].strip()
        if not text.replace("_", "-").startswith(word):
            continue
        if rest in ("", "=", "+", "-", "x"):
            example = {"nodes": "nodes+1", "network": "network=100Gb/s"}.get(name, f"{name}={EXAMPLES.get(name, 'VALUE')}")
            raise UserError(f"{name} has no value", f"write {example}")
        if rest[:1] in ("=", "+", "-", "x") and len(rest) > 1:
            if rest[0] != "=" and name not in _COUNTED:
                raise UserError(f"{name} is not a number: {rest!r} cannot change it", f"write it as {name}=VALUE")
            return Change(name, rest[0], rest[1:].strip())
    given = text.rstrip("0123456789").partition("=")[0].rstrip("+-x ")
    raise fixed(given) or unknown("change", given, sorted(names), "write it as nodes+1 or network=100Gb/s")


def apply(
    changes: Iterable[Change], cluster: Cluster, strategy: Strategy, scaling: BatchScaling
) -> tuple[Cluster, Strategy, str]:
    """Return cluster, strategy and kind of scaling after the changes.

    A batch that does not divide among the new replicas becomes the nearest that does. A dense hierarchical exchange on one
    node becomes an all-reduce.

    Raises:
        UserError: an illegal value, or an illegal combination, with the nearest legal one.
    """
    before = cluster.world_size
    fields: dict[str, Any] = {}
    leaves: dict[str, Change] = {}
    for change in changes:
        if change.name in ("leaf-nodes", "oversubscription"):
            leaves[change.name] = change
        elif change.name in OF_CLUSTER:
            cluster = _cluster(change, cluster)
        elif change.name not in OF_PREDICTOR:
            fields |= _fields(change, strategy)
    cluster = _on_leaves(leaves, cluster) if leaves else cluster
    n = cluster.world_size
    replicas = n // prod(fields.get(name, strategy.choice(name)) for name in MODEL)
    given = "global_batch_size" in fields
    scaled = "" if n == before else "global batch given" if given else scaling
    if replicas and not given and (n, replicas) != (before, strategy.parallelism.data):
        shares = replicas * fields.get("grad_accum_steps", strategy.parallelism.micro_batches)
        batch = strategy.global_batch_size * n // before if scaled == "weak" else strategy.global_batch_size
        fields["global_batch_size"] = _nearest_multiple(batch, shares)
    if strategy.gradient_exchange.exchange.uses_nodes and "exchange" not in fields:
        fields["ranks_per_node"] = cluster.devices_per_node
    after = strategy.changed(world_size=n, **fields)
    x = after.gradient_exchange
    if cluster.num_nodes == 1 and x.exchange.uses_nodes and not x.compression.compresses:
        after = after.changed(exchange=ALLREDUCE, ranks_per_node=1)
    return cluster, after, scaled


def is_upgrade(changes: Iterable[Change], before: Cluster, after: Cluster) -> bool:
    """Return whether changes give existing nodes another network or other switches."""
    joined = min(before.num_nodes, after.num_nodes) > 1 and any(change.name in OF_FABRIC for change in changes)
    fabrics = [(of.network, of.leaf_nodes, of.oversubscription, of.nic, of.aggregation) for of in (before, after)]
    return joined and fabrics[0] != fabrics[1]


def changed_predictor(changes: Iterable[Change], predictor: StepPredictor) -> StepPredictor:
    """Return the predictor after changes of the attention kernel and the framework. Raises UserError as ``Predictor``."""
    choices: dict[str, Any] = {change.name: change.value for change in changes if change.name in OF_PREDICTOR}
    return predictor.changed(**({"constants": None} if "framework" in choices else {}), **choices) if choices else predictor


def _on_leaves(leaves: Mapping[str, Change], cluster: Cluster) -> Cluster:
    """Return the cluster below other leaf switches."""
    nodes, blocking = leaves.get("leaf-nodes"), leaves.get("oversubscription")
    return on_leaves(
        cluster,
        _number(nodes, cluster.leaf_nodes) if nodes else cluster.leaf_nodes,
        parse_oversubscription(blocking.value) if blocking else cluster.oversubscription,
    )


def _nearest_multiple(value: int, of: int) -> int:
    """Return the nearest positive multiple of ``of``; the smaller of two equally near ones."""
    below = max(1, value // of) * of
    return below + of if 2 * (value - below) > of else below


def _number(change: Change, before: int) -> int:
    try:
        value = int(change.value)
    except ValueError:
        raise UserError(f"{change.value!r} in {change} is not a whole number", f"write it as {change.name}+1") from None
    after = {"=": value, "+": before + value, "-": before - value, "x": before * value}[change.operator]
    least = OF_STRATEGY[change.name].values.least if change.name in OF_STRATEGY else 1
    if after < least:
        raise UserError(f"{change} leaves {after} of {before} {change.name}", f"keep at least {least}")
    return after


def _cluster(change: Change, cluster: Cluster) -> Cluster:
    if change.name == "nodes":
        many = _number(change, cluster.num_nodes)
        if many > 1 and cluster.num_nodes == 1 and cluster.network == cluster.intra_link:
            raise UserError(f"{many} nodes have no network", "give one, such as network=100Gb/s")
        return cluster.changed(num_nodes=many)
    if change.name == "devices-per-node":
        sizes = parse_sizes(change.value) if change.operator == "=" and "+" in change.value else None
        if isinstance(sizes, tuple):
            return cluster.changed(devices_per_node=sizes, num_nodes=len(sizes))
        return cluster.changed(devices_per_node=_number(change, cluster.devices_per_node))
    if change.name == "nic":
        return cluster.changed(nic=hardware.nic(change.value))
    if change.name == "aggregation":
        return cluster.changed(aggregation=hardware.aggregation(change.value))
    if change.name == "link":
        inside = hardware.link(change.value)
        return cluster.changed(intra_link=inside, **({"network": inside} if cluster.num_nodes == 1 else {}))
    if change.name in OF_HOST:
        return cluster.changed(device=_with_host(change, cluster.device))
    if change.name == "network":
        said = network_of(change.value, cluster.device.name, cluster.devices_per_node)
        return cluster.changed(network=hardware.network(said, like=cluster.network))
    if hardware.instance(change.value):  # an instance defines its devices and its network
        leaves = (cluster.leaf_nodes, cluster.oversubscription)
        return hardware.cluster(change.value, None, cluster.num_nodes, None, *leaves)
    device = hardware.device(change.value)
    return cluster.changed(device=device, intra_link=hardware.link(device.link))


def _with_host(change: Change, device: Device) -> Device:
    """Return the device with another link to its host, or in a node with another host."""
    if change.name == "host-link":
        return replace(device, host_link=hardware.link(change.value).name)
    return replace(device, host=known_name("host", change.value, tuple(hosts())), host_bandwidth=None)


def _fields(change: Change, strategy: Strategy) -> dict[str, Any]:
    """Return the strategy fields of a change. A new compression or server count selects its own exchange and options."""
    item, value = OF_STRATEGY[change.name], change.value
    if item.values.counted:
        given = {item.name: _number(change, strategy.choice(item.name))}
        return {**given, "exchange": PARAMETER_SERVER} if item.name == "servers" else given
    if not isinstance(item.values, Name):
        return {item.name: item.values.parse(value, change.name)}
    alone = {"servers": 1} if item.name == "compression" or value in SERVERLESS else {}
    return {item.name: value, **alone}
