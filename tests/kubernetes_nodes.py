"""Nodes of Kubernetes, as its API has them."""

from __future__ import annotations

from typing import Any

GPU = "nvidia.com/gpu"


def node(name: str, devices: int, resource: str = GPU, **labels: str) -> dict[str, Any]:
    """A node that is ready."""
    marks = {"kubernetes.io/hostname": name, **{key.replace("__", "/").replace("_", "."): v for key, v in labels.items()}}
    ready = {"type": "Ready", "status": "True"}
    status = {"allocatable": {resource: str(devices), "cpu": "7910m"}, "conditions": [ready]}
    return {"metadata": {"name": name, "labels": marks}, "spec": {}, "status": status}
