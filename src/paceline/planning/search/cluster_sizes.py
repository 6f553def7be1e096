"""Which sizes of a cluster a plan tries."""

from __future__ import annotations

from paceline.hardware import Cluster


def worlds(devices_per_node: int, max_nodes: int) -> tuple[tuple[int, int], ...]:
    """(devices a node, nodes) to try: powers of two inside one node, then whole nodes up to ``max_nodes``."""
    inside = [(2**n, 1) for n in range(devices_per_node.bit_length()) if 2**n < devices_per_node]
    steps = {n for n in range(1, max_nodes + 1) if n <= 8 or n % (1 << (n.bit_length() - 2)) == 0} | {max_nodes}
    return (*inside, *((devices_per_node, n) for n in sorted(steps)))


def smaller(largest: Cluster) -> tuple[Cluster, ...]:
    """Every cluster that is tried up to ``largest``: fewer devices of its first node, then fewer nodes; full leaf switches."""
    sizes = [size for size in worlds(largest.devices_per_node, largest.num_nodes) if largest.fills_leaves(size[1])]
    return tuple(largest.changed(devices_per_node=local, num_nodes=nodes) for local, nodes in sizes)
