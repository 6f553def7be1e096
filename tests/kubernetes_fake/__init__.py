"""A small Kubernetes with Kueue in this process: an API server over HTTP, controllers, a scheduler and kubelets.

It plays what the executor uses, and refuses what a server refuses. ``test_api.py`` asks it and a real kube-apiserver the same
questions, where one is at hand. Sources of each behaviour stand in the modules: Kubernetes documentation ("Kubernetes API
Concepts", "Jobs", "Pod Scheduling Readiness", "Pod failure policy", "Resource Quotas"), Kueue documentation ("Workload",
"Cluster Queue", "Elastic Workloads", KEP-77).
"""

from __future__ import annotations

from kubernetes_fake.controllers import Controllers
from kubernetes_fake.kubelet import Kubelet
from kubernetes_fake.server import FakeServer
from kubernetes_fake.store import Refusal, Store

__all__ = ["Controllers", "FakeServer", "Kubelet", "Refusal", "Store"]
