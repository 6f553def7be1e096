"""Rules of the server for new and changed objects, as lists of what is wrong.

Kubernetes documentation, "Jobs": the scheduling directives of a suspended Job that has not started are mutable. Completions of
an elastic Indexed Job change together with parallelism. A pod failure policy asks for restartPolicy Never. "Pod Scheduling
Readiness": gates are only removed, and a gated pod's nodeSelector only grows. "Pods": other fields of a pod do not change.

An unknown field is an error here, as with ``fieldValidation: Strict``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
JOB_FIELDS = {
    "suspend", "parallelism", "completions", "completionMode", "backoffLimit", "podFailurePolicy", "template", "selector",
    "ttlSecondsAfterFinished", "activeDeadlineSeconds", "manualSelector", "podReplacementPolicy",
}  # fmt: skip
POD_FIELDS = {
    "restartPolicy", "subdomain", "hostname", "terminationGracePeriodSeconds", "schedulingGates", "nodeSelector", "tolerations",
    "containers", "volumes", "nodeName", "affinity", "serviceAccountName",
}  # fmt: skip
CONTAINER_FIELDS = {"name", "image", "command", "args", "env", "resources", "volumeMounts", "workingDir"}
DIRECTIVES = ("nodeSelector", "tolerations", "schedulingGates", "affinity")


def is_alive(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def on_create(kind: str, new: Mapping[str, Any]) -> list[str]:
    name = new["metadata"].get("name", "")
    wrong = [] if DNS.fullmatch(name) else [f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain']
    for value in (new["metadata"].get("labels") or {}).values():
        if not LABEL.fullmatch(value):
            wrong.append(f'metadata.labels: Invalid value: "{value}"')
    if kind == "services" and not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name):
        wrong.append(f'metadata.name: Invalid value: "{name}": a DNS-1035 label must start with an alphabetic character')
    if kind == "jobs":
        wrong += _job(new["spec"])
    elif kind == "pods":
        wrong += _pod(new["spec"], "spec")
    return wrong


def _job(spec: Mapping[str, Any]) -> list[str]:
    wrong = _unknown(spec, JOB_FIELDS, "spec")
    for field in ("parallelism", "completions"):
        if spec.get(field, 1) < 0:
            wrong.append(f"spec.{field}: Invalid value: {spec[field]}: must be greater than or equal to 0")
    if spec.get("completionMode") == "Indexed" and "completions" not in spec:
        wrong.append("spec.completions: Required value: when completion mode is Indexed")
    pod = spec["template"]["spec"]
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        wrong.append('spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"')
    if "podFailurePolicy" in spec and pod.get("restartPolicy") != "Never":
        wrong.append(
            "spec.template.spec.restartPolicy: Invalid value: only Never is supported when podFailurePolicy is specified"
        )
    return wrong + _pod(pod, "spec.template.spec")


def _pod(spec: Mapping[str, Any], path: str) -> list[str]:
    wrong = _unknown(spec, POD_FIELDS, path)
    if not spec.get("containers"):
        return [*wrong, f"{path}.containers: Required value"]
    mounted = {mount["name"] for c in spec["containers"] for mount in c.get("volumeMounts", [])}
    missing = mounted - {volume["name"] for volume in spec.get("volumes", [])}
    wrong += [f'{path}.containers[0].volumeMounts[0].name: Not found: "{name}"' for name in missing]
    for container in spec["containers"]:
        wrong += _unknown(container, CONTAINER_FIELDS, f"{path}.containers")
        limits = container.get("resources", {}).get("limits", {})
        for name, value in container.get("resources", {}).get("requests", {}).items():
            if "/" in name and limits.get(name) != value:
                wrong.append(f"{path}.containers[0].resources.requests: Invalid value: must be equal to {name} limit")
    if spec.get("schedulingGates") and spec.get("nodeName"):
        wrong.append(f"{path}.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared")
    return wrong


def _unknown(found: Mapping[str, Any], known: Iterable[str], path: str) -> list[str]:
    return [f'strict decoding error: unknown field "{path}.{name}"' for name in found if name not in known]


def on_update(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    wrong = []
    for field in ("uid", "name", "creationTimestamp"):
        if old["metadata"].get(field) != new["metadata"].get(field):
            wrong.append(f"metadata.{field}: Invalid value: field is immutable")
    if kind == "jobs":
        wrong += _job(new["spec"]) + _changed_job(old, new["spec"])
    elif kind == "pods":
        wrong += _changed_pod(old["spec"], new["spec"])
    return wrong


def _changed_job(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, wrong = old["spec"], []
    for field in ("completionMode", "selector", "podFailurePolicy"):
        if before.get(field) != new.get(field):
            wrong.append(f"spec.{field}: Invalid value: field is immutable")
    if before.get("completions") != new.get("completions"):
        if new.get("completionMode") != "Indexed":
            wrong.append(f"spec.completions: Invalid value: {new.get('completions')}: field is immutable")
        elif new.get("completions") != new.get("parallelism") or before["completions"] != before["parallelism"]:
            wrong.append(
                f"spec.completions: Invalid value: {new['completions']}: can only be modified in tandem with spec.parallelism"
            )
    may_place = before.get("suspend") and not old.get("status", {}).get("startTime")
    drop = DIRECTIVES if may_place else ()
    pods = [{k: v for k, v in s["template"]["spec"].items() if k not in drop} for s in (before, new)]
    if pods[0] != pods[1] or (not may_place and before["template"] != new["template"]):
        wrong.append("spec.template: Invalid value: field is immutable")
    return wrong


def _changed_pod(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    gates = [[gate["name"] for gate in spec.get("schedulingGates") or []] for spec in (old, new)]
    wrong = []
    if added := set(gates[1]) - set(gates[0]):
        wrong.append(f"spec.schedulingGates: Forbidden: only deletion is allowed, but found new scheduling gate '{min(added)}'")
    selectors = [spec.get("nodeSelector") or {} for spec in (old, new)]
    if selectors[0] != selectors[1] and not (gates[0] and selectors[0].items() <= selectors[1].items()):
        wrong.append("spec.nodeSelector: Invalid value: field is immutable")
    rest = [{k: v for k, v in spec.items() if k not in ("schedulingGates", "nodeSelector", "nodeName")} for spec in (old, new)]
    if rest[0] != rest[1]:
        wrong.append("spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`")
    return wrong
