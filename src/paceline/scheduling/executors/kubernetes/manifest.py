"""Manifests of a job on Kubernetes: an Indexed Job of ``batch/v1`` and the headless Service that names its pods.

All pods of a job have the same number of devices. Each has a scheduling gate, so the executor chooses its node. Sources:
Kubernetes documentation, "Jobs" (Indexed completion mode, elastic Indexed Jobs, pod failure policy, suspending), "Pod
Scheduling Readiness", "Downward API"; Kueue documentation, "Run A Kubernetes Job" and "Elastic Workloads" (KEP-77).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from functools import reduce
from typing import Any

from paceline.rundir import PROGRESS
from paceline.scheduling.executors.executor import NodeDevices
from paceline.scheduling.executors.kubernetes.settings import GATE, JOB_LABEL, SCHEDULE_LABEL, START, KubernetesSettings
from paceline.scheduling.executors.records import CHECKPOINT
from paceline.scheduling.launch import Launch

PORT, PORTS = 29_500, 100
CONTAINER = "training"
QUEUE = "kueue.x-k8s.io/queue-name"
ELASTIC = "kueue.x-k8s.io/elastic-job"
REPORT = "paceline-progress "
"""Start of a log line with the job's ``progress.json``."""
NEXT_START_S = 30
"""Seconds that a pod of an elastic job whose command failed waits for a change of size, which may be the cause."""
_SCRIPT = """cd {directory} || exit 1
info=${{PACELINE_POD_INFO:-/etc/paceline}}
child= told= seen=
end() {{ told=1; [ -z "$child" ] || kill -s {signal} "$child" 2>/dev/null; }}
trap end TERM
report() {{
  [ "${{JOB_COMPLETION_INDEX:-0}}" = 0 ] && [ -f {progress} ] || return 0
  now=$(tr -d '\\n' < {progress})
  [ "$now" = "$seen" ] || {{ seen=$now; echo "{report}$now"; }}
}}
pause() {{ sleep 1 & wait $!; }}
while :; do
  start=
  while [ -z "$start" ]; do
    start=$(cat "$info/start")
    [ -n "$start" ] || pause
  done
  size=${{start% *}}
  export PACELINE_NODES="$size" PACELINE_DEVICES=$((size * {devices})) MASTER_PORT=$(({port} + ${{start#* }} % {ports}))
  {command} &
  child=$!
  [ -z "$told" ] || end
  again=
  while kill -0 "$child" 2>/dev/null; do
    if [ -z "$told$again" ] && [ "$(cat "$info/start")" != "$start" ]; then
      again=1
      kill -s {signal} "$child" 2>/dev/null
    fi
    report
    pause
  done
  wait "$child"
  code=$?
  report
  left={patience}
  while [ "$code" != 0 ] && [ -z "$told$again" ] && [ "$left" -gt 0 ]; do
    [ "$(cat "$info/start")" = "$start" ] || again=1
    left=$((left - 1))
    pause
  done
  [ -n "$again" ] && [ -z "$told" ] || exit "$code"
done
"""


def devices_per_pod(placement: NodeDevices) -> int:
    """Return the largest number of devices a pod can have, so that equal pods make up the placement."""
    return reduce(math.gcd, placement.values())


def job_manifest(
    launch: Launch,
    pods: int,
    devices: int,
    settings: KubernetesSettings,
    *,
    name: str,
    schedule: str,
    selector: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the Job. With a queue it is suspended until Kueue admits it.

    Args:
        pods: number of pods. ``devices``: devices of each.
        name: name of the Job. ``schedule``: label of all Jobs of the schedule.
        selector: node labels of the flavor of Kueue that has the nodes of the job.
    """
    labels = {JOB_LABEL: launch.name, SCHEDULE_LABEL: schedule}
    resources = {settings.resource: str(devices)}
    is_extended = "/" in settings.resource
    container = {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["sh", "-c", script(launch, devices)],
        "env": [
            *({"name": key, "value": value} for key, value in sorted(launch.environment.items())),
            {"name": "MASTER_ADDR", "value": f"{name}-0.{name}"},
        ],
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [
            {"name": "data", "mountPath": settings.mount},
            {"name": "start", "mountPath": "/etc/paceline"},
            {"name": "shm", "mountPath": "/dev/shm"},  # containers have 64 MB, too little for loaders and NCCL
        ],
    }
    start_file = {"path": "start", "fieldRef": {"fieldPath": f"metadata.annotations['{START}']"}}
    pod = {
        "restartPolicy": "Never",
        "subdomain": name,
        "terminationGracePeriodSeconds": math.ceil(launch.grace_s),
        "schedulingGates": [{"name": GATE}],
        **({"nodeSelector": dict(selector)} if selector else {}),
        **({"tolerations": [{"key": settings.resource, "operator": "Exists", "effect": "NoSchedule"}]} if is_extended else {}),
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": settings.claim}},
            {"name": "start", "downwardAPI": {"items": [start_file]}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    is_elastic = launch.is_paceline and len(launch.sizes) > 1
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**labels, **({QUEUE: settings.queue} if settings.queue else {})},
            **({"annotations": {ELASTIC: "true"}} if settings.queue and is_elastic else {}),
        },
        "spec": {
            "suspend": bool(settings.queue),
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,  # no rank runs on without the others
            "podFailurePolicy": {
                "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def service_manifest(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Service by which the pods of a Job find the first one. It is deleted with the Job."""
    head = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": head["name"], "uid": head["uid"]}
    labels = {key: head["labels"][key] for key in (JOB_LABEL, SCHEDULE_LABEL)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": head["name"], "labels": labels, "ownerReferences": [owner]},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels},
    }


def script(launch: Launch, devices: int) -> str:
    """Return the shell script of a pod. A ``paceline train`` job runs under torchrun, any other command as it is.

    The script forwards the request to end, prints the job's reports, and starts the command again at a new size.
    """
    folder = shlex.quote(launch.checkpoint)
    command = shlex.join(launch.command)
    if launch.is_paceline:
        resume = f"$([ -f {folder}/{CHECKPOINT} ] && echo --resume {folder})"
        rendezvous = '--nnodes "$size" --node-rank "${JOB_COMPLETION_INDEX:-0}" --master-addr "$MASTER_ADDR"'
        command = f'torchrun {rendezvous} --master-port "$MASTER_PORT" --nproc-per-node {devices}'
        command += f" -m paceline.training {shlex.join(launch.command[2:])} --out {folder} {resume}"
    return _SCRIPT.format(
        directory=shlex.quote(launch.directory),
        signal=launch.signal,
        progress=f"{folder}/{PROGRESS}",
        report=REPORT,
        devices=devices,
        port=PORT,
        ports=PORTS,
        command=command,
        patience=NEXT_START_S if launch.is_paceline and len(launch.sizes) > 1 else 0,
    )
