"""Controllers of Jobs and of Kueue, a scheduler and a garbage collector, one step at a time.

Kubernetes documentation, "Jobs": an Indexed Job has one pod per index. A suspended Job's pods are deleted and do not count.
Fewer completions delete the highest indexes. A failed pod beyond ``backoffLimit`` or by its failure policy fails the Job.

Kueue documentation: a Workload per Job is admitted while its flavor has quota. An inactive Workload is evicted and its Job
suspended. A Job that runs and changes its size is stopped and queued again, unless it is elastic. Then it shrinks where it
runs, and grows by a second Workload, its slice (KEP-77).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from kubernetes_fake import rules
from kubernetes_fake.store import Object, Refusal, Store, now

INDEX = "batch.kubernetes.io/job-completion-index"
ELASTIC_GATE = "kueue.x-k8s.io/elastic-job"
QUEUE = "kueue.x-k8s.io/queue-name"
REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"


class Controllers:
    """All controllers. ``elastic``: whether Kueue has ElasticJobsViaWorkloadSlices."""

    def __init__(self, store: Store, elastic: bool = True) -> None:
        self._store, self._elastic, self._numbers = store, elastic, itertools.count(1)

    def step(self) -> None:
        with self._store.changed:
            self._collect()
            for job in self._store.list("jobs"):
                if QUEUE in (job["metadata"].get("labels") or {}):
                    self._queue(job)
            for job in self._store.list("jobs"):
                self._run(job)
            self._admit()
            self._schedule()

    def settle(self, most: int = 20) -> None:
        """Step until nothing changes."""
        for _ in range(most):
            before = self._store.version
            self.step()
            if self._store.version == before:
                return

    def _collect(self) -> None:
        uids = {o["metadata"]["uid"] for o in self._store.objects.values()}
        for kind, namespace, name in list(self._store.objects):
            found = self._store.objects[kind, namespace, name]
            owners = found["metadata"].get("ownerReferences") or []
            if owners and not any(owner["uid"] in uids for owner in owners):
                self._store.delete(kind, namespace, name)

    # Kueue

    def _workloads(self, job: Object) -> list[Object]:
        uid = job["metadata"]["uid"]
        found = [w for w in self._store.list("workloads") if w["metadata"]["ownerReferences"][0]["uid"] == uid]
        return sorted((w for w in found if not _is(w, "Finished")), key=lambda w: w["metadata"]["name"])

    def _queue(self, job: Object) -> None:
        workloads, count = self._workloads(job), job["spec"]["parallelism"]
        if _is(job, "Complete") or _is(job, "Failed"):
            for each in workloads:
                self._store.status(each, conditions=[condition("Finished", "True", "JobFinished", "")])
            return
        if not workloads:
            self._new_workload(job)
        newest = (workloads or self._workloads(job))[-1]
        if newest["spec"]["podSets"][0]["count"] != count:
            head = newest["metadata"]
            is_elastic = (
                self._elastic and (job["metadata"].get("annotations") or {}).get("kueue.x-k8s.io/elastic-job") == "true"
            )
            if not _is(newest, "Admitted") or (is_elastic and count < newest["spec"]["podSets"][0]["count"]):
                pods = {"podSets": [{"name": "main", "count": count}]}
                newest = self._store.patch("workloads", head["namespace"], head["name"], {"spec": pods})
                for given in newest["status"].get("admission", {}).get("podSetAssignments", []):
                    each = {r: int(n) // given["count"] for r, n in given["resourceUsage"].items()}
                    given |= {"count": count, "resourceUsage": {r: str(n * count) for r, n in each.items()}}
                    self._store.status(newest, admission={"podSetAssignments": [given]})
            elif is_elastic:
                self._new_workload(job, {REPLACES: f"{head['namespace']}/{head['name']}"})
            else:
                self._store.remove(("workloads", head["namespace"], head["name"]))
                self._suspend(job, True)
                self._new_workload(job)
        workloads = self._workloads(job)
        for each in workloads:
            if not each["spec"].get("active", True) and not _is(each, "Evicted"):
                why = "The workload is deactivated"
                self._store.status(
                    each,
                    conditions=[
                        condition("Evicted", "True", "Deactivated", why),
                        condition("QuotaReserved", "False", "Pending", why),
                        condition("Admitted", "False", "NoReservation", why),
                    ],
                )
        if not any(_is(each, "Admitted") for each in self._workloads(job)):
            self._suspend(job, True)

    def _new_workload(self, job: Object, annotations: Mapping[str, str] | None = None) -> None:
        head = job["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": head["name"], "uid": head["uid"], "controller": True}
        self._store.create(
            "workloads",
            head["namespace"],
            {
                "metadata": {
                    "name": f"job-{head['name']}-{next(self._numbers):05}",
                    "labels": {"kueue.x-k8s.io/job-uid": head["uid"]},
                    "annotations": dict(annotations or {}),
                    "ownerReferences": [owner],
                },
                "spec": {
                    "active": True,
                    "queueName": head["labels"][QUEUE],
                    "podSets": [{"name": "main", "count": job["spec"]["parallelism"]}],
                },
            },
        )

    def _suspend(self, job: Object, suspended: bool, **spec: Any) -> None:
        head = self._store.read("jobs", job["metadata"]["namespace"], job["metadata"]["name"])
        if bool(head["spec"].get("suspend")) != suspended:
            body = {"spec": {"suspend": suspended, **spec}}
            self._store.patch("jobs", head["metadata"]["namespace"], head["metadata"]["name"], body)

    def _admit(self) -> None:
        for queue in self._store.list("clusterqueues"):
            locals_ = {
                q["metadata"]["name"]
                for q in self._store.list("localqueues")
                if q["spec"]["clusterQueue"] == queue["metadata"]["name"]
            }
            mine = [w for w in self._store.list("workloads") if w["spec"]["queueName"] in locals_ and not _is(w, "Finished")]
            for workload in sorted(mine, key=lambda w: w["metadata"]["name"]):
                if workload["spec"].get("active", True) and not _is(workload, "Admitted"):
                    self._try(workload, queue, mine)
            used = self._used(mine)
            usage = [{"name": f, "resources": [{"name": r, "total": str(n)}]} for (f, r), n in sorted(used.items())]
            if queue["status"].get("flavorsUsage") != usage:
                self._store.status(queue, flavorsUsage=usage)

    def _job(self, workload: Object) -> Object:
        owner = workload["metadata"]["ownerReferences"][0]
        return self._store.read("jobs", workload["metadata"]["namespace"], owner["name"])

    def _used(self, workloads: list[Object]) -> dict[tuple[str, str], int]:
        used: dict[tuple[str, str], int] = {}
        for each in workloads:
            fresh = self._store.objects.get(("workloads", each["metadata"]["namespace"], each["metadata"]["name"]))
            if fresh and _is(fresh, "Admitted") and not _is(fresh, "Finished"):
                given = fresh["status"]["admission"]["podSetAssignments"][0]
                for resource, flavor in given["flavors"].items():
                    used[flavor, resource] = used.get((flavor, resource), 0) + int(given["resourceUsage"][resource])
        return used

    def _try(self, workload: Object, queue: Object, all_of: list[Object]) -> None:
        job, count = self._job(workload), workload["spec"]["podSets"][0]["count"]
        replaces = (workload["metadata"].get("annotations") or {}).get(REPLACES, "").rpartition("/")[2]
        requests = job["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
        selector = job["spec"]["template"]["spec"].get("nodeSelector") or {}
        used = self._used([w for w in all_of if w["metadata"]["name"] != replaces])
        flavors, why = {}, ""
        for resource, each in requests.items():
            for entry in (f for group in queue["spec"]["resourceGroups"] for f in group["flavors"]):
                labels = self._store.read("resourceflavors", "", entry["name"])["spec"].get("nodeLabels") or {}
                if any(selector.get(label, value) != value for label, value in labels.items()):
                    continue
                quota = next(int(r["nominalQuota"]) for r in entry["resources"] if r["name"] == resource)
                more = used.get((entry["name"], resource), 0) + int(each) * count - quota
                if more <= 0:
                    flavors[resource] = entry["name"]
                    break
                why = f"insufficient unused quota for {resource} in flavor {entry['name']}, {more} more needed"
        if len(flavors) < len(requests):
            said = f"couldn't assign flavors to pod set main: {why or 'no flavor fits'}"
            self._store.status(workload, conditions=[condition("QuotaReserved", "False", "Pending", said)])
            return
        usage = {resource: str(int(each) * count) for resource, each in requests.items()}
        given = {"name": "main", "flavors": flavors, "resourceUsage": usage, "count": count}
        admitted = [condition("QuotaReserved", "True", "QuotaReserved", ""), condition("Admitted", "True", "Admitted", "")]
        self._store.status(workload, conditions=admitted, admission={"podSetAssignments": [given]})
        old = self._store.objects.get(("workloads", workload["metadata"]["namespace"], replaces))
        if old and not _is(old, "Finished"):
            self._store.status(old, conditions=[condition("Finished", "True", "WorkloadSliceReplaced", "")])
            return
        labels: dict[str, str] = {}
        for flavor in flavors.values():
            labels |= self._store.read("resourceflavors", "", flavor)["spec"].get("nodeLabels") or {}
        template = {"template": {"spec": {"nodeSelector": {**selector, **labels}}}} if labels else {}
        self._suspend(job, False, **template)

    # Jobs

    def _pods(self, job: Object) -> list[Object]:
        uid = job["metadata"]["uid"]
        return [p for p in self._store.list("pods") if p["metadata"]["ownerReferences"][0]["uid"] == uid]

    def _run(self, job: Object) -> None:
        spec, head = job["spec"], job["metadata"]
        pods = self._pods(job)
        if _is(job, "Complete") or _is(job, "Failed"):
            return
        alive = [p for p in pods if rules.is_alive(p) and not p["metadata"].get("deletionTimestamp")]
        if spec.get("suspend"):
            for pod in pods:
                if rules.is_alive(pod):
                    self._store.delete("pods", head["namespace"], pod["metadata"]["name"])
            if not _is(job, "Suspended"):
                self._store.status(
                    job, startTime=None, active=0, conditions=[condition("Suspended", "True", "JobSuspended", "")]
                )
            return
        if not job["status"].get("startTime"):
            job = self._store.status(job, startTime=now(), conditions=[condition("Suspended", "False", "JobResumed", "")])
        done = {_index(p) for p in pods if p["status"].get("phase") == "Succeeded"}
        failed = [p for p in pods if p["status"].get("phase") == "Failed" and not p["metadata"].get("deletionTimestamp")]
        lost = [p for p in pods if _is(p, "DisruptionTarget") and not rules.is_alive(p)]
        if lost or len(failed) > spec.get("backoffLimit", 6):
            for pod in alive:
                self._store.delete("pods", head["namespace"], pod["metadata"]["name"])
            if lost:
                said = (
                    f"Pod default/{lost[0]['metadata']['name']} has condition DisruptionTarget matching FailJob rule at index 0"
                )
                reason = ("PodFailurePolicy", said)
            else:
                reason = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
            self._store.status(job, active=0, conditions=[condition("Failed", "True", *reason)])
            return
        if len(done) == spec["completions"]:
            self._store.status(job, active=0, conditions=[condition("Complete", "True", "CompletionsReached", "")])
            return
        for pod in alive:
            if _index(pod) >= spec["completions"]:
                self._store.delete("pods", head["namespace"], pod["metadata"]["name"])
        there = {_index(p) for p in pods if rules.is_alive(p)}
        for index in range(spec["completions"]):
            if index not in there | done:
                self._new_pod(job, index)
        active = len([p for p in self._pods(job) if rules.is_alive(p)])
        if job["status"].get("active") != active:
            self._store.status(job, active=active)

    def _new_pod(self, job: Object, index: int) -> None:
        head, template = job["metadata"], job["spec"]["template"]
        spec = {**template["spec"], "hostname": f"{head['name']}-{index}"}
        container = {**spec["containers"][0]}
        container["env"] = [*container.get("env", []), {"name": "JOB_COMPLETION_INDEX", "value": str(index)}]
        spec["containers"] = [container]
        if self._elastic and (head.get("annotations") or {}).get("kueue.x-k8s.io/elastic-job") == "true":
            spec["schedulingGates"] = [*spec.get("schedulingGates", []), {"name": ELASTIC_GATE}]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": head["name"], "uid": head["uid"], "controller": True}
        meta = {
            "name": f"{head['name']}-{index}-{next(self._numbers):05x}",
            "labels": dict(template["metadata"]["labels"]),
            "annotations": {INDEX: str(index)},
            "ownerReferences": [owner],
        }
        try:
            self._store.create("pods", head["namespace"], {"metadata": meta, "spec": spec})
        except Refusal as refusal:
            name = f"{head['name']}.{next(self._numbers)}"
            said = {"involvedObject": {"kind": "Job", "name": head["name"]}, "reason": "FailedCreate"}
            if not self._store.list("events", wanted=lambda e: e["involvedObject"]["name"] == head["name"]):
                message = f"Error creating: {refusal}"
                self._store.create("events", head["namespace"], {"metadata": {"name": name}, **said, "message": message})

    # scheduling

    def _schedule(self) -> None:
        nodes, pods = self._store.list("nodes"), self._store.list("pods")
        for pod in pods:
            head, spec = pod["metadata"], pod["spec"]
            gates = [gate["name"] for gate in spec.get("schedulingGates") or []]
            if ELASTIC_GATE in gates and self._has_slice(pod):
                left = [{"name": name} for name in gates if name != ELASTIC_GATE]
                self._store.patch("pods", head["namespace"], head["name"], {"spec": {"schedulingGates": left}})
                gates.remove(ELASTIC_GATE)
            if gates or spec.get("nodeName") or not rules.is_alive(pod):
                continue
            node = next((n for n in nodes if self._fits(pod, n)), None)
            if node is None:
                said = f"0/{len(nodes)} nodes are available"
                why = condition("PodScheduled", "False", "Unschedulable", said)
                if pod["status"].get("conditions") != [why]:
                    self._store.status(pod, phase="Pending", conditions=[why])
                continue
            self._store.patch("pods", head["namespace"], head["name"], {"spec": {"nodeName": node["metadata"]["name"]}})

    def _has_slice(self, pod: Object) -> bool:
        job = self._store.objects.get(("jobs", pod["metadata"]["namespace"], pod["metadata"]["ownerReferences"][0]["name"]))
        admitted = [w for w in self._workloads(job) if _is(w, "Admitted")] if job else []
        return any(_index(pod) < w["spec"]["podSets"][0]["count"] for w in admitted)

    def _fits(self, pod: Object, node: Object) -> bool:
        labels, spec = node["metadata"].get("labels") or {}, pod["spec"]
        if not (spec.get("nodeSelector") or {}).items() <= labels.items() or node["spec"].get("unschedulable"):
            return False
        if not any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"]):
            return False
        tolerated = {t["key"] for t in spec.get("tolerations") or []}
        if any(t["key"] not in tolerated for t in node["spec"].get("taints") or []):
            return False
        others = [p for p in self._store.list("pods") if p["spec"].get("nodeName") == node["metadata"]["name"]]
        for resource, asked in spec["containers"][0]["resources"]["requests"].items():
            used = sum(
                int(p["spec"]["containers"][0]["resources"]["requests"].get(resource, 0)) for p in others if rules.is_alive(p)
            )
            if used + int(asked) > int(node["status"]["allocatable"].get(resource, 0)):
                return False
        return True


def _index(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def _is(found: Mapping[str, Any], kind: str) -> bool:
    conditions = found.get("status", {}).get("conditions") or []
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def condition(kind: str, status: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()}
