"""Node sizes as sold, and the meaning of a device count without one: ``64 H100`` are eight nodes of eight."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.hardware.catalogue import device as device_named
from paceline.hardware.catalogue import is_device, known_link
from paceline.hardware.device import Device
from paceline.hardware.instances import Instance, instance, instances, nodes
from paceline.hardware.placement import NodeSizes, nodes_text

if TYPE_CHECKING:
    from paceline.hardware.phrases.machine_phrase import MachinePhrase

_BOARD = 8  # an HGX or OAM board; the slots of most PCIe servers
_JOINED = {
    "GH200": 32,  # NVIDIA, GH200 NVL32, 2023 (recalled, not checked)
    "GH200 144GB": 32,
    "IPU GC200": 64,  # Graphcore, IPU-POD64 and Bow Pod64 (recalled, not checked)
    "IPU Bow": 64,
    "Ascend 910C": 384,  # Huawei, CloudMatrix 384 (arXiv:2506.12708)
    "Trainium 3": 64,  # AWS, Trn3 Gen1 UltraServer (recalled, not checked)
    "TPU v2": 256,  # pods of Google Cloud's documentation, one page a generation
    "TPU v3": 1024,
    "TPU v4": 4096,
    "TPU v5e": 256,
    "TPU v5p": 8960,
    "TPU v6e": 256,
    "TPU7x": 9216,
}
"""Devices that one link joins where no instance of the catalogue tells it."""
_NETWORKS = ("100Gb/s", "400Gb/s RoCE", "InfiniBand NDR")


def node_sizes(device: Device) -> tuple[int, int] | None:
    """Return the devices of the usual node of ``device``, and of the largest that is sold. None for a link of the user's own
    (unknown) and for a CPU (unlimited)."""
    inside = known_link(device.link)
    if inside is not None and inside.joins == 1:
        return 1, 1
    if inside is None or inside.kind in ("memory", "loopback"):
        return None
    if device.name in _JOINED:
        return (_JOINED[device.name],) * 2
    sizes = [size for size in _sold().get(device.name, ()) if size >= _BOARD] or [_BOARD]
    return min(sizes), max(sizes)


def node_counts(said: MachinePhrase, network: str | None) -> tuple[NodeSizes | None, int]:
    """Return the devices per node and the number of nodes of a phrase. An instance whose devices it leaves out has None.

    Raises:
        UserError: numbers that contradict each other, or that have two meanings.
    """
    if said.rented and (entry := instance(said.name)):
        return _instances(said, entry)
    per_node, total, nodes = said.per_node, said.devices, said.nodes
    if isinstance(per_node, tuple):
        return per_node, len(per_node)
    if said.count is not None:
        if said.each or (nodes is None and said.each is None and per_node is None and total is not None):
            per_node = _agreed(per_node, said.count, "devices a node", said)
        else:
            total = _agreed(total, said.count, "devices", said)
    if nodes is None and per_node is None:
        return (1, 1) if total is None else counted_nodes(said.name, total, network)
    if per_node is None and total is None:
        assert nodes is not None
        if nodes == 1:
            raise UserError(f"{said.text!r}: the devices of the node are not stated", f"give their number: '8 {said.name}'")
        raise UserError(
            f"{said.text!r}: the devices of a node are not stated", f"give both numbers, such as {nodes}x8 {said.name}"
        )
    if per_node is None:
        assert nodes is not None and total is not None
        return _divided(said, total, nodes), nodes
    if nodes is None:
        nodes = 1 if total is None else _divided(said, total, per_node)
    elif total is not None and total != nodes * per_node:
        raise UserError(f"{said.text!r}: {nodes} nodes of {per_node} devices are not {total}", "give two of the three numbers")
    return per_node, nodes


def _divided(said: MachinePhrase, total: int, parts: int) -> int:
    """Return the devices of a node of ``total`` on so many nodes, or nodes of so many devices."""
    if parts < 1 or total % parts:
        raise UserError(
            f"{said.text!r}: {total} devices on {parts} nodes are no equal nodes", f"write them as 1+{max(total - 1, 1)}"
        )
    sizes = node_sizes(device_named(said.name)) if is_device(said.name) else None
    unclear = said.count == total and said.each is None and not said.spread and said.nodes == parts and parts > 1
    if unclear and sizes and total <= sizes[0]:
        raise UserError(
            f"{said.text!r}: {total} devices in all, or of each node?",
            f"write '{parts}x{total} {said.name}' or '{parts}x{total // parts} {said.name}'",
        )
    return total // parts


def _agreed(one: int | None, other: int, what: str, said: MachinePhrase) -> int:
    if one not in (None, other):
        raise UserError(f"{said.text!r} says {one} and {other} {what}", "give one number")
    return other


def _instances(said: MachinePhrase, entry: Instance) -> tuple[NodeSizes | None, int]:
    """Return the devices of an instance, if stated, and the number of instances."""
    if isinstance(said.per_node, tuple):
        return said.per_node, len(said.per_node)
    per_node, nodes, count, total = said.per_node, said.nodes, said.count, said.devices
    if nodes is None and count is not None and not said.each:
        nodes = count
    elif count is not None and per_node is None:
        per_node = count
    if total is not None and nodes is None and total % entry.devices == 0:
        nodes = total // entry.devices
    elif total is not None and total not in (entry.devices, entry.devices * (nodes or 1)):
        per_node = total
    return per_node, 1 if nodes is None else nodes


def counted_nodes(name: str, devices: int, network: str | None) -> tuple[int, int]:
    """Infer devices per node and number of nodes from the device count.

    Raises:
        UserError: a count above the largest node that is no multiple of the usual node, or several nodes without a network.
    """
    sizes = node_sizes(device_named(name)) if is_device(name) else None
    if sizes is None or devices <= sizes[1]:
        return devices, 1
    usual, most = sizes
    whole = devices // usual
    if devices % usual:
        limit = "" if most == usual else f", {most} at most"
        few = f"{usual} {name}" if whole == 1 else f"{whole}x{usual} {name}, {network or _NETWORKS[0]}"
        lines = [few, f"{whole + 1}x{usual} {name}, {network or _NETWORKS[0]}"]
        if "PCIe" in device_named(name).link:  # a host may have more slots
            lines.append(f"1x{devices} {name}")
        quoted = "', '".join(lines[:-1])
        raise UserError(
            f"{devices:,} {name} are no whole nodes: a node has {usual}{limit}",
            f"say the nodes: '{quoted}' or '{lines[-1]}'",
        )
    if network is None:
        what = f"{devices:,} {name} are {whole} nodes of {usual}, which have no network"
        raise UserError(what, networks_to_copy(name, usual, whole))
    return usual, whole


def check_joined(name: str, devices: NodeSizes | None, count: int, network: str | None) -> None:
    """Raise UserError, with lines to copy, if several nodes have no network. Other arguments as for ``instances.nodes``."""
    if network is not None or count < 2:
        return
    node, many = nodes(name, devices, count, network)
    if many > 1 and node.network is None:
        size = None if instance(name) and devices in (None, node.devices) else node.devices
        raise UserError(f"{many} nodes have no network", networks_to_copy(name, size, count))


def networks_to_copy(name: str, devices: NodeSizes | None, count: int) -> str:
    """Return three clusters to copy: with a slow network, with a fast one, and an instance with its own.

    Args:
        devices: number per node, or one for each node. None: ``name`` is an instance.
    """
    text = f"{count}x {name}" if devices is None else f"{nodes_text(devices, count).replace(' x ', 'x')} {name}"
    lines = [f"'{text}, {network}'" for network in _NETWORKS]
    kind = device_named(name).name if is_device(name) else ""
    rented = next((of.name for of in instances() if of.network and (of.device, of.devices) == (kind, devices)), "")
    if rented:
        lines[-1] = f"'{count}x {rented}'"
    return f"add one: {', '.join(lines[:-1])} or {lines[-1]}"


@cache
def _sold() -> dict[str, tuple[int, ...]]:
    """Return the devices that one link joins in the instances of the catalogue, by device."""
    sizes: dict[str, tuple[int, ...]] = {}
    for entry in instances():
        sizes[entry.device] = (*sizes.get(entry.device, ()), entry.domain or entry.devices)
    return sizes
