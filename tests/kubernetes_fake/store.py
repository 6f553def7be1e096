"""Objects of the server: versions, conflicts, watches.

Kubernetes documentation, "Kubernetes API Concepts": a resource version is that of the last change and grows over all objects; a
change with another version than the stored one conflicts (409); a watch returns each change after a version in order, or 410 if
the server has forgotten that version.
"""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from kubernetes_fake import rules

Object = dict[str, Any]
KINDS = {
    "jobs": ("batch/v1", "Job", "batch"),
    "pods": ("v1", "Pod", ""),
    "services": ("v1", "Service", ""),
    "events": ("v1", "Event", ""),
    "nodes": ("v1", "Node", ""),
    "resourcequotas": ("v1", "ResourceQuota", ""),
    "workloads": ("kueue.x-k8s.io/v1beta1", "Workload", "kueue.x-k8s.io"),
    "localqueues": ("kueue.x-k8s.io/v1beta1", "LocalQueue", "kueue.x-k8s.io"),
    "clusterqueues": ("kueue.x-k8s.io/v1beta1", "ClusterQueue", "kueue.x-k8s.io"),
    "resourceflavors": ("kueue.x-k8s.io/v1beta1", "ResourceFlavor", "kueue.x-k8s.io"),
}
OF_CLUSTER = ("nodes", "clusterqueues", "resourceflavors")
Key = tuple[str, str, str]


class Refusal(Exception):
    """Answer of the server that is no success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
        self.status |= {"reason": reason, "code": code}
        self.code = code


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def full(kind: str) -> str:
    group = KINDS[kind][2]
    return f"{kind}.{group}" if group else kind


class Store:
    """All objects by kind, namespace and name."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.version, self.oldest = 10, 0
        self.history: list[tuple[int, str, Key, Object]] = []
        self.changed = threading.Condition(threading.RLock())
        self.namespaces = {"default"}
        self.webhooks: list[Callable[[str, Object], str]] = []

    def read(self, kind: str, namespace: str, name: str) -> Object:
        with self.changed:
            found = self.objects.get((kind, namespace, name))
            if found is None:
                raise Refusal(404, "NotFound", f'{full(kind)} "{name}" not found')
            return copy.deepcopy(found)

    def list(self, kind: str, namespace: str = "", wanted: Callable[[Object], bool] = lambda found: True) -> list[Object]:
        with self.changed:
            every = [o for (k, ns, _), o in self.objects.items() if k == kind and namespace in ("", ns)]
            return [copy.deepcopy(each) for each in every if wanted(each)]

    def create(self, kind: str, namespace: str, body: Mapping[str, Any]) -> Object:
        with self.changed:
            fresh = copy.deepcopy(dict(body))
            head = fresh.setdefault("metadata", {})
            if kind not in OF_CLUSTER and namespace not in self.namespaces:
                raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')
            name = head.get("name", "")
            self._check(kind, name, rules.on_create(kind, fresh))
            if (kind, namespace, name) in self.objects:
                raise Refusal(409, "AlreadyExists", f'{full(kind)} "{name}" already exists')
            for said in (hook(kind, fresh) for hook in self.webhooks):
                if said:
                    raise Refusal(403, "Forbidden", f'admission webhook "policy.example" denied the request: {said}')
            self._check_quota(kind, namespace, name, fresh)
            fresh["apiVersion"], fresh["kind"] = KINDS[kind][:2]
            head |= {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now()}
            fresh.setdefault("status", {})
            return self._put("ADDED", (kind, namespace, name), fresh)

    def _check_quota(self, kind: str, namespace: str, name: str, fresh: Object) -> None:
        """Kubernetes documentation, "Resource Quotas": object counts, and requests of pods that have not ended."""
        for quota in self.list("resourcequotas", namespace):
            for what, limit in quota["spec"]["hard"].items():
                if what == f"count/{full(kind)}":
                    asked, used = 1, len(self.list(kind, namespace))
                elif kind == "pods" and what.startswith("requests."):
                    resource = what.removeprefix("requests.")
                    asked = _requests(fresh, resource)
                    used = sum(_requests(pod, resource) for pod in self.list("pods", namespace) if rules.is_alive(pod))
                else:
                    continue
                if used + asked > int(limit):
                    said = f"exceeded quota: {quota['metadata']['name']}, requested: {what}={asked}, used: {what}={used}"
                    raise Refusal(403, "Forbidden", f'{full(kind)} "{name}" is forbidden: {said}, limited: {what}={limit}')

    def patch(self, kind: str, namespace: str, name: str, body: Mapping[str, Any], part: str = "") -> Object:
        """JSON merge patch (RFC 7386), checked as an update. ``part``: ``status`` for the controllers' part."""
        with self.changed:
            before = self.read(kind, namespace, name)
            stated = (body.get("metadata") or {}).get("resourceVersion", before["metadata"]["resourceVersion"])
            if stated != before["metadata"]["resourceVersion"]:
                said = "the object has been modified; please apply your changes to the latest version and try again"
                raise Refusal(409, "Conflict", f'Operation cannot be fulfilled on {full(kind)} "{name}": {said}')
            after = _merged(before, body)
            if part != "status":
                after["status"] = before["status"]
                self._check(kind, name, rules.on_update(kind, before, after))
            if after == before:
                return before
            return self._put("MODIFIED", (kind, namespace, name), after)

    def status(self, found: Object, **fields: Any) -> Object:
        """Change the status of an object, as its controller."""
        kind = next(kind for kind, (_, name, _) in KINDS.items() if name == found["kind"])
        head = found["metadata"]
        return self.patch(kind, head.get("namespace", ""), head["name"], {"status": fields}, "status")

    def delete(self, kind: str, namespace: str, name: str, grace_s: int | None = None) -> None:
        """Delete an object. A pod on a node stays until its kubelet has ended it ("Pod Lifecycle", termination)."""
        with self.changed:
            found = self.read(kind, namespace, name)
            if kind == "pods" and found["spec"].get("nodeName") and rules.is_alive(found) and grace_s != 0:
                if not found["metadata"].get("deletionTimestamp"):
                    found["metadata"]["deletionTimestamp"] = now()
                    self._put("MODIFIED", (kind, namespace, name), found)
                return
            self.remove((kind, namespace, name))

    def remove(self, key: Key) -> None:
        with self.changed:
            found = self.objects.pop(key)
            self._note("DELETED", key, found)

    def compact(self) -> None:
        """Forget all versions before the present one."""
        with self.changed:
            self.oldest = self.version
            self.history.clear()

    def _put(self, event: str, key: Key, fresh: Object) -> Object:
        self.objects[key] = fresh
        self._note(event, key, fresh)
        return copy.deepcopy(fresh)

    def _note(self, event: str, key: Key, found: Object) -> None:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, event, key, copy.deepcopy(found)))
        self.changed.notify_all()

    def _check(self, kind: str, name: str, wrong: list[str]) -> None:
        if wrong:
            _, title, group = KINDS[kind]
            text = wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]"
            raise Refusal(422, "Invalid", f'{title}{"." + group if group else ""} "{name}" is invalid: {text}')


def _requests(pod: Object, resource: str) -> int:
    return sum(int(c.get("resources", {}).get("requests", {}).get(resource, 0)) for c in pod["spec"]["containers"])


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result
