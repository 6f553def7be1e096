"""Nodes of a Kubernetes cluster with the devices that the jobs of a schedule may use.

Device types come from the labels of NVIDIA's GPU Feature Discovery, AMD's node labeller, GKE, AKS, Karpenter on EKS and
SkyPilot.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.hardware.catalogue import device, is_device
from paceline.scheduling.executors.kubernetes.kueue import Flavor
from paceline.scheduling.executors.kubernetes.quantity import quantity

PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "skypilot.co/accelerator",
    "accelerator",
)
NAMES = {"nvidia-tesla-a100": "A100 SXM 40GB"}
"""Labels that mean another device than their words: GKE documentation, "GPU platforms"."""


@dataclass(frozen=True)
class NodeDevicesOffer:
    """Node that can run pods.

    Attributes:
        devices: devices that jobs of the schedule may hold.
        labels: labels of the node. ``flavor``: its flavor of Kueue, None without Kueue.
    """

    name: str
    devices: int
    labels: Mapping[str, str]
    flavor: Flavor | None = None

    def device(self, resource: str) -> str:
        """Device of the catalogue; empty if unknown. A slice (MIG) is not the device of its label."""
        if "mig" in resource.rpartition("/")[2]:
            return ""
        for label in PRODUCT_LABELS:
            name = NAMES.get(self.labels.get(label, ""), self.labels.get(label, ""))
            if name and is_device(name):
                return device(name).name
        return ""


def offers(
    nodes: Sequence[Mapping[str, Any]],
    pods: Sequence[Mapping[str, Any]],
    resource: str,
    held: Mapping[str, int],
    own: Collection[str],
    flavors: Sequence[Flavor] | None = None,
) -> list[NodeDevicesOffer]:
    """Return the nodes that are ready, in their order, with devices that pods of others do not use.

    A node that takes no new pods counts with the devices that the schedule's jobs hold there. Quotas of Kueue limit the sum
    over the nodes of a flavor.

    Args:
        pods: pods of all namespaces. ``own``: uids of the schedule's pods.
        held: devices of each node that the schedule's jobs hold.
        flavors: flavors of the queue, with the use of others; None: no limits.
    """
    others = Counter[str]()
    for pod in pods:
        if pod["metadata"].get("uid") not in own and is_alive(pod):
            others[(pod.get("spec") or {}).get("nodeName", "")] += _request(pod, resource)  # type: ignore[assignment]
    found = []
    for node in nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        flavor = next((f for f in flavors or () if f.has(labels)), None)
        if not _is_ready(node) or (flavors is not None and flavor is None):
            continue
        total = quantity(((node.get("status") or {}).get("allocatable") or {}).get(resource, 0))
        devices = math.floor(total - others[name] + 1e-9)
        tolerates = {resource, *(flavor.tolerates if flavor else ())}
        spec = node.get("spec") or {}
        taints = [t for t in spec.get("taints") or [] if t.get("effect") != "PreferNoSchedule"]
        if spec.get("unschedulable") or any(taint["key"] not in tolerates for taint in taints):
            devices = min(devices, held.get(name, 0))
        if devices > 0:
            found.append(NodeDevicesOffer(name, devices, labels, flavor))
    return _within_quotas(found, held)


def _within_quotas(found: list[NodeDevicesOffer], held: Mapping[str, int]) -> list[NodeDevicesOffer]:
    """Return the nodes with the devices that the quota of each flavor allows. Devices that jobs hold are kept."""
    spare: dict[str, float] = {}
    for node in found:
        if node.flavor is not None:
            spare.setdefault(node.flavor.name, node.flavor.quota - node.flavor.used)
            spare[node.flavor.name] -= min(held.get(node.name, 0), node.devices)
    limited = []
    for node in found:
        holds = min(held.get(node.name, 0), node.devices)
        if node.flavor is not None:
            more = int(min(node.devices - holds, max(spare[node.flavor.name], 0.0)))
            spare[node.flavor.name] -= more
            node = replace(node, devices=holds + more)
        if node.devices:
            limited.append(node)
    return limited


def is_alive(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod has not ended."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _request(pod: Mapping[str, Any], resource: str) -> float:
    total = 0.0
    for container in (pod.get("spec") or {}).get("containers") or []:
        asked = container.get("resources") or {}
        value = (asked.get("requests") or {}).get(resource, (asked.get("limits") or {}).get(resource, 0))
        total += quantity(value)
    return total


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
