"""Manifest for Kubernetes: a JobSet that runs a job, with the fields of ``jobset.x-k8s.io/v1alpha2``. It is not submitted."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import PurePosixPath
from typing import Any

from paceline.errors import UserError, shorten
from paceline.scheduling.executors.executor import NodeDevices
from paceline.scheduling.executors.records import CHECKPOINT
from paceline.scheduling.launch import Launch

Manifest = dict[str, Any]
GPU = "nvidia.com/gpu"
PORT = 29_500
MOST_RESTARTS = 3
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?")
"""DNS label. At 42 characters, the suffixes of JobSet still fit in the 63 characters of a host name."""


def jobset(launch: Launch, placement: NodeDevices, *, image: str, claim: str, queue: str = "", resource: str = GPU) -> Manifest:
    """Return the JobSet of a job with one pod per node. A ``paceline train`` job runs under torchrun in each pod.

    Args:
        placement: devices of each node, all equal. Kubernetes chooses the nodes, so their names are not used.
        image: container image with Paceline installed. ``claim``: volume claim that holds the checkpoint.
        queue: LocalQueue of Kueue. If given, the JobSet is suspended until the queue admits it.
        resource: resource of a device, such as ``nvidia.com/gpu`` or ``cpu``.

    Raises:
        UserError: a name that is no DNS label, nodes of different sizes, a script on several nodes.
    """
    for name in (launch.name, queue) if queue else (launch.name,):
        if not _LABEL.fullmatch(name):
            raise UserError(f"{shorten(name)!r} is not a name on Kubernetes", "use up to 42 of a to z, 0 to 9 and -")
    launch.check_size(sum(placement.values()))
    if len(set(placement.values())) != 1:
        raise UserError(
            f"job {launch.name} on nodes of {', '.join(map(str, placement.values()))} devices", "give each node the same number"
        )
    nodes, devices = len(placement), next(iter(placement.values()))
    if nodes > 1 and not launch.is_paceline:
        raise UserError(f"job {launch.name} is not a Paceline job and has {nodes} nodes", "give it one node")
    command = ["sh", "-c", _torchrun(launch, nodes, devices)] if launch.is_paceline else list(launch.command)
    container = {
        "name": "training",
        "image": image,
        "command": command,
        "workingDir": launch.directory,
        "env": [{"name": name, "value": value} for name, value in sorted(launch.environment.items())],
        "resources": {"limits": {resource: str(devices)}, "requests": {resource: str(devices)}},
        "volumeMounts": [{"name": "checkpoint", "mountPath": str(PurePosixPath(launch.checkpoint).parent)}],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(launch.grace_s),
        "containers": [container],
        "volumes": [{"name": "checkpoint", "persistentVolumeClaim": {"claimName": claim}}],
    }
    batch = {
        "parallelism": nodes,
        "completions": nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # only the whole set can restart, not a single rank
        "template": {"spec": pod},
    }
    labels = {"labels": {"kueue.x-k8s.io/queue-name": queue}} if queue else {}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": launch.name, **labels},
        "spec": {
            "suspend": bool(queue),
            "network": {"enableDNSHostnames": True},
            "failurePolicy": {"maxRestarts": MOST_RESTARTS},
            "replicatedJobs": [{"name": "nodes", "replicas": 1, "template": {"spec": batch}}],
        },
    }


def _torchrun(launch: Launch, nodes: int, devices: int) -> str:
    """Return the command line of a pod. Kubernetes sets the index of the pod, and pod 0 of the set has a DNS name."""
    master = f"{launch.name}-nodes-0-0.{launch.name}"
    words = f"--nnodes {nodes} --nproc-per-node {devices} --node-rank $JOB_COMPLETION_INDEX --master-addr {master}"
    folder = shlex.quote(launch.checkpoint)
    resume = f"$([ -f {folder}/{CHECKPOINT} ] && echo --resume {folder})"
    given = shlex.join(launch.command[2:])
    return f"exec torchrun {words} --master-port {PORT} -m paceline.training {given} --out {folder} {resume}"
