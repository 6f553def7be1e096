"""Nodes with their devices: labels, taints, other people's pods, quotas of flavors."""

from __future__ import annotations

from typing import Any

import pytest

from kubernetes_nodes import node
from paceline.scheduling.executors.kubernetes.kueue import Flavor
from paceline.scheduling.executors.kubernetes.nodes import offers

GPU = "nvidia.com/gpu"


def counts(nodes: list[dict[str, Any]], held: dict[str, int] | None = None, **more: Any) -> dict[str, int]:
    pods = more.pop("pods", [])
    return {each.name: each.devices for each in offers(nodes, pods, more.pop("resource", GPU), held or {}, (), **more)}


def pod(where: str, devices: str, phase: str = "Running") -> dict[str, Any]:
    container = {"resources": {"requests": {GPU: devices}}}
    return {"metadata": {"uid": where}, "spec": {"nodeName": where, "containers": [container]}, "status": {"phase": phase}}


def test_a_node_offers_what_others_do_not_use_and_a_cordoned_one_what_we_hold() -> None:
    nodes = [node(name, 8) for name in "abcdef"]
    nodes[1]["status"]["conditions"][0]["status"] = "Unknown"
    nodes[2]["spec"] = {"unschedulable": True}
    nodes[3]["spec"] = {"taints": [{"key": "maintenance", "effect": "NoExecute"}]}
    nodes[4]["spec"] = {"taints": [{"key": GPU, "effect": "NoSchedule"}]}
    others = [pod("a", "3"), pod("a", "4", "Succeeded"), pod("f", "8")]
    assert counts(nodes, {"c": 2}, pods=others) == {"a": 5, "c": 2, "e": 8}
    assert counts(nodes[:1], resource="cpu") == {"a": 7}  # 7910m


def test_a_quota_limits_the_sum_over_the_nodes_of_a_flavor() -> None:
    nodes = [node(name, 4, flavor=flavor) for name, flavor in zip("abcd", ("x", "x", "y", "z"), strict=True)]
    flavors = [Flavor("x", {"flavor": "x"}, quota=6, used=1), Flavor("y", {"flavor": "y"})]
    assert counts(nodes, flavors=flavors) == {"a": 4, "b": 1, "c": 4}
    assert counts(nodes, {"b": 4}, flavors=flavors) == {"a": 1, "b": 4, "c": 4}  # what we hold is ours
    assert counts(nodes, {"a": 4, "b": 4}, flavors=flavors) == {"a": 4, "b": 4, "c": 4}
    assert counts(nodes) == dict.fromkeys("abcd", 4)


@pytest.mark.parametrize(
    ("label", "value", "device"),
    [
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB", "A100 SXM 80GB"),
        ("nvidia.com/gpu.product", "Tesla-T4", "T4"),
        ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", ""),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", "MI300X"),
        ("cloud.google.com/gke-accelerator", "nvidia-tesla-a100", "A100 SXM 40GB"),  # GKE: its 80 GB one is nvidia-a100-80gb
        ("cloud.google.com/gke-accelerator", "nvidia-a100-80gb", "A100 SXM 80GB"),
        ("karpenter.k8s.aws/instance-gpu-name", "l4", "L4"),
        ("accelerator", "nvidia", ""),
    ],
)
def test_labels_name_devices_and_unknown_ones_are_not_guessed(label: str, value: str, device: str) -> None:
    named = node("a", 8)
    named["metadata"]["labels"][label] = value
    (offer,) = offers([named], [], GPU, {}, ())
    assert offer.device(GPU) == device
    assert offer.device("nvidia.com/mig-1g.5gb") == ""
