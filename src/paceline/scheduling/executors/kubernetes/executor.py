"""Executor of jobs on Kubernetes: one Indexed Job of ``batch/v1`` per job, found again by its labels, with or without Kueue.

The executor chooses the node of every pod by a scheduling gate. Each ``poll`` compares the objects with the records and moves
them one step, so it can be repeated after any crash.

To stop, a Job is suspended. With Kueue its Workload becomes inactive. Kubernetes sends SIGTERM to its pods and kills them after
their grace period. A job of another size keeps its Job if its pods keep their number of devices. An elastic job changes its
size without a stop if its first pods also keep their nodes. Any other change deletes the Job and creates a new one.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.scheduling.executors.executor import NodeDevices, Observed, Unavailable, check_fits
from paceline.scheduling.executors.kubernetes import job_state
from paceline.scheduling.executors.kubernetes.api import Invalid, Object, QuotaExceeded
from paceline.scheduling.executors.kubernetes.cluster import (
    ClusterLook,
    KubernetesCluster,
    devices_of,
    index_of,
    is_finished,
)
from paceline.scheduling.executors.kubernetes.kueue import is_active, why_waiting
from paceline.scheduling.executors.kubernetes.manifest import devices_per_pod, job_manifest
from paceline.scheduling.executors.kubernetes.nodes import is_alive
from paceline.scheduling.executors.kubernetes.settings import START, KubernetesSettings, job_name
from paceline.scheduling.executors.records import JobRecord, Records, ended, numbers_of
from paceline.scheduling.launch import Launch

SCHEDULE_FILE = "kubernetes.schedule"
LATE_S = 30.0
"""Seconds beyond the grace period after which pods are deleted without grace."""


@dataclass(frozen=True)
class JobHandle:
    """Identifier of a job on Kubernetes, as its record holds it.

    Attributes:
        name: name of the Job. ``number``: number of the start. ``uid``: uid of the Job; empty until it is created.
    """

    name: str = ""
    number: int = 0
    uid: str = ""

    @classmethod
    def of(cls, record: JobRecord | None) -> JobHandle:
        """Read the handle of a record."""
        words = record.handle.split() if record is not None else []
        return cls(words[0], int(words[1]), words[2] if len(words) > 2 else "") if words else cls()

    def __str__(self) -> str:
        return f"{self.name} {self.number} {self.uid}".strip()


class KubernetesExecutor:
    """Executor of jobs on Kubernetes.

    Args:
        directory: folder of records on this machine.
        settings: pods and queue.

    Raises:
        UserError: the client is not installed, there is no such context, or the folder cannot be written.
    """

    def __init__(self, directory: str | Path, settings: KubernetesSettings) -> None:
        self._records, self._settings = Records(directory), settings
        path = self._records.directory / SCHEDULE_FILE
        if not path.exists():
            self._records.write(path, secrets.token_hex(4) + "\n")
        self._schedule = path.read_text().strip()
        self._cluster = KubernetesCluster(settings, self._schedule)
        self._answered = False
        self._refused: dict[str, str] = {}

    def check(self, launch: Launch) -> None:
        """Raise UserError for a job that pods cannot run."""
        self._settings.check(launch)

    def nodes(self) -> Sequence[tuple[str, int]]:
        """Return the nodes that are ready, with the devices that pods of others do not use and the queue's quota allows."""
        try:
            nodes = self._cluster.nodes()
        except UserError as error:
            if self._answered:  # rights or a queue that someone has just changed
                raise Unavailable(str(error)) from None
            raise
        self._answered = True
        return tuple((node.name, node.devices) for node in nodes)

    def device_types(self) -> dict[str, str]:
        """Return the device of the catalogue by node, as its labels say. Other nodes are left out."""
        named = {node.name: node.device(self._settings.resource) for node in self._cluster.nodes()}
        return {name: kind for name, kind in named.items() if kind}

    def wait(self, seconds: float) -> bool:
        """Wait for a change of a job, at most ``seconds``. Return whether there was one."""
        return self._cluster.wait(seconds)

    def submit(self, launch: Launch, placement: NodeDevices) -> None:
        """Create the Job, or let a suspended one continue. A job that runs or waits is left alone.

        Raises UserError for an impossible placement, or one that Kubernetes refuses. Unavailable: it does not answer.
        """
        known, look = self._records.load(launch.name), self._cluster.look()
        job = _job_of(JobHandle.of(known), look, launch.name)
        if job is not None and not is_finished(job) and self._records.end(launch.name) is None:
            return
        self._settings.check(launch)
        check_fits(launch, placement, self.nodes())
        record = replace(self._records.start(launch, placement), handle=known.handle if known is not None else "")
        try:
            self._restart(record, job if known is not None and known.launch == launch else None)
        except UserError:
            if known is None:
                self._records.path(launch.name, "json").unlink(missing_ok=True)
            else:
                self._records.save(known)
            raise

    def resize(self, name: str, placement: NodeDevices) -> None:
        """Change the size of the job where it runs, or make it save and end, so that a later ``poll`` starts it again.

        Raises UserError for an unknown job or an impossible placement.
        """
        record = self._records.known(name)
        check_fits(record.launch, placement, self.nodes())
        look, handle = self._cluster.look(), JobHandle.of(record)
        job = _job_of(handle, look, name)
        if record.stop_since is None and job is not None and not is_finished(job):
            pods = [pod for pod in _pods_of(job, look, name) if is_alive(pod)]
            if not self._selector_differs(job, placement) and self._keeps_pods(record.launch, job, pods, placement):
                fresh = JobHandle(handle.name, handle.number + 1, handle.uid)
                self._records.save(replace(record, placement=dict(placement), since=time.time(), handle=str(fresh)))
                self.poll()
                return
        self._records.save(record.stopping(record.launch.grace_s, dict(placement)))
        self.poll()

    def stop(self, name: str, grace_s: float) -> None:
        """Suspend the job's Job. Raises UserError for an unknown job.

        Args:
            grace_s: grace period of the job. Kubernetes kills its pods after the one that they were created with.
        """
        self._records.save(self._records.known(name).stopping(grace_s))
        self.poll()

    def poll(self) -> Mapping[str, Observed]:
        """Return the present state of every job, and advance pending starts, stops and moves."""
        look = self._cluster.look()
        return {record.launch.name: self._state(record, look) for record in self._records.all()}

    def _state(self, record: JobRecord, look: ClusterLook) -> Observed:
        name, handle = record.launch.name, JobHandle.of(record)
        end = self._records.end(name)
        job = _job_of(handle, look, name)
        for other in look.jobs.get(name, ()):  # of an earlier start
            if other["metadata"]["name"] != handle.name:
                self._cluster.delete(other)
        pods = _pods_of(job, look, name) if job is not None else []
        if end is not None:
            seen = ended(record, end, end.reason, progress=self._progress(record, pods))
            return self._moved(record, job, replace(seen, reason=end.reason or seen.reason))
        uids = {pod["metadata"]["uid"] for pod in pods}
        leaving = [pod for pod in look.pods.get(name, ()) if is_alive(pod) and pod["metadata"]["uid"] not in uids]
        if job is None:
            return self._without_job(record, leaving)
        if is_finished(job):
            if leaving or any(is_alive(pod) for pod in pods):
                return self._observed(record, "stopping", pods)
            code, told, at_s, why = job_state.finished(job, pods, record.stop_since is not None)
            return self._ended(record, job, code, told, at_s, why, pods)
        if record.stop_since is not None:
            return self._stopping(record, job, [*pods, *leaving], look)
        return self._present(record, job, pods, leaving, look)

    def _without_job(self, record: JobRecord, leaving: Sequence[Object]) -> Observed:
        """Return the state of a job that has no Job: not created yet, or deleted by somebody else."""
        if leaving:
            return self._observed(record, "stopping", leaving)
        if record.stop_since is not None:
            return self._ended(record, None, 143, True, time.time(), "", [])
        if JobHandle.of(record).uid:
            return self._ended(record, None, 137, False, time.time(), "its Job was deleted from Kubernetes", [])
        try:
            self._create(record)
        except UserError as error:
            return self._ended(record, None, 1, False, time.time(), error.message, [])
        return self._observed(record, "waiting", [], self._refused.get(record.launch.name, ""))

    def _stopping(self, record: JobRecord, job: Object, pods: Sequence[Object], look: ClusterLook) -> Observed:
        """Suspend the Job of a job that was told to end, and return the job's state."""
        workloads = look.workloads.get(job["metadata"]["uid"], ())
        self._set_active(job, workloads, False)
        alive = [pod for pod in pods if is_alive(pod)]
        if alive:
            if record.stop_by is not None and time.time() > record.stop_by + LATE_S:
                for pod in alive:
                    self._cluster.kill(pod)
            return self._observed(record, "stopping", alive)
        if not job["spec"].get("suspend"):
            return self._observed(record, "stopping", [])
        if self._settings.queue and not workloads:  # Kueue might admit it later
            self._cluster.delete(job)
        return self._ended(record, job, 143, True, time.time(), "", pods)

    def _present(
        self, record: JobRecord, job: Object, pods: Sequence[Object], leaving: Sequence[Object], look: ClusterLook
    ) -> Observed:
        """Bring a job that is to run closer to its placement, and return its state."""
        workloads = look.workloads.get(job["metadata"]["uid"], ())
        self._set_active(job, workloads, True)
        per_pod = devices_of(job["spec"]["template"]["spec"], self._settings.resource)
        size, start = sum(record.placement.values()) // per_pod, f"{sum(record.placement.values()) // per_pod} "
        start += str(JobHandle.of(record).number)
        alive = [pod for pod in pods if is_alive(pod) and not pod["metadata"].get("deletionTimestamp")]
        kept = [pod for pod in alive if index_of(pod) < size]
        gated = [pod for pod in kept if job_state.is_gated(pod)]
        if job["spec"]["parallelism"] < size or (
            job["spec"]["parallelism"] > size and all(_start(pod) == start for pod in kept)
        ):
            self._cluster.change_job(job, {"parallelism": size, "completions": size})
        if not leaving:
            self._place(record, kept, gated, per_pod, start)
        is_shrinking = job["spec"]["parallelism"] > size
        if is_shrinking or (len(kept) == size and all(job_state.is_running(pod) for pod in kept)):
            for pod in kept:
                if not job_state.is_gated(pod) and _start(pod) != start:
                    self._cluster.tell_start(pod, start)
        phase, since, why = job_state.present(job, pods, why_waiting(workloads) if self._settings.queue else "")
        if phase == "waiting" and not why and not pods:
            why = self._cluster.why_no_pods(job)
        return replace(
            self._observed(record, "running" if phase == "running" else "waiting", pods, why),
            since=max(since or 0.0, record.since),
        )

    def _place(self, record: JobRecord, kept: Sequence[Object], gated: Sequence[Object], per_pod: int, start: str) -> None:
        """Choose the node of each gated pod: what other pods of the job leave of its placement."""
        hosts = {self._cluster.host(node): node for node in record.placement}
        free = Counter({node: devices // per_pod for node, devices in record.placement.items()})
        free.subtract(Counter(hosts.get(job_state.host_of(pod), "") for pod in kept if not job_state.is_gated(pod)))
        open_places = [node for node in record.placement for _ in range(max(free[node], 0))]
        for pod, node in zip(sorted(gated, key=index_of), open_places, strict=False):
            self._cluster.place(pod, node, start)

    def _set_active(self, job: Object, workloads: Sequence[Object], active: bool) -> None:
        """Suspend the Job or let it run, through Kueue if it has a queue."""
        kueue = self._cluster.kueue
        if kueue is None:
            if bool(job["spec"].get("suspend")) == active:
                self._cluster.change_job(job, {"suspend": not active})
            return
        for workload in workloads:
            if is_active(workload) != active:
                kueue.set_active(workload, active)

    def _moved(self, record: JobRecord, job: Object | None, seen: Observed) -> Observed:
        """Start a job that has ended at its next size, if it has one, and return its state."""
        if record.target is None or seen.phase == "done":
            return seen
        fresh = replace(self._records.start(record.launch, record.target), handle=record.handle)
        try:
            self._restart(fresh, job)
        except UserError as error:
            self._records.save(fresh)
            self._records.record_end(fresh.launch.name, 1, False, time.time(), error.message)
            return replace(seen, phase="failed", since=time.time(), code=1, reason=error.message)
        return replace(seen, phase="waiting", placement=fresh.placement, since=fresh.since, code=None)

    def _restart(self, record: JobRecord, job: Object | None) -> None:
        """Let a suspended Job continue on new devices, or create a new one."""
        handle, name = JobHandle.of(record), record.launch.name
        if job is not None and not is_finished(job) and self._keeps_pods(record.launch, job, [], record.placement):
            per_pod = devices_of(job["spec"]["template"]["spec"], self._settings.resource)
            size = sum(record.placement.values()) // per_pod
            try:
                if not self._selector_differs(job, record.placement):
                    self._cluster.change_job(job, {"parallelism": size, "completions": size})
                    fresh = JobHandle(handle.name, handle.number + 1, handle.uid)
                    self._records.save(replace(record, handle=str(fresh)))
                    self._records.clear_end(name)
                    return  # the next poll makes it active
            except Invalid:
                pass  # a server whose Jobs cannot change their completions
        number = handle.number + 1
        record = replace(record, handle=str(JobHandle(job_name(name, self._schedule, number), number)))
        self._records.save(record)
        self._records.clear_end(name)
        if job is not None:
            self._cluster.delete(job)
        self._create(record)

    def _create(self, record: JobRecord) -> None:
        """Create the Job of a record. If a quota does not allow it, a later poll tries again."""
        launch, handle = record.launch, JobHandle.of(record)
        per_pod = devices_per_pod(record.placement)
        manifest = job_manifest(
            launch,
            sum(record.placement.values()) // per_pod,
            per_pod,
            self._settings,
            name=handle.name,
            schedule=self._schedule,
            selector=self._cluster.selector(tuple(record.placement)),
        )
        try:
            job = self._cluster.create(manifest)
        except QuotaExceeded as error:
            self._refused[launch.name] = error.message
            return
        self._refused.pop(launch.name, None)
        self._records.save(replace(record, handle=str(replace(handle, uid=job["metadata"]["uid"]))))

    def _keeps_pods(self, launch: Launch, job: Object, pods: Sequence[Object], placement: NodeDevices) -> bool:
        """Return whether a Job can have this placement with the devices of its pods, and ``pods`` on their nodes."""
        per_pod = devices_of(job["spec"]["template"]["spec"], self._settings.resource)
        if any(devices % per_pod for devices in placement.values()) or (pods and not launch.is_paceline):
            return False
        wanted = Counter({self._cluster.host(node): devices // per_pod for node, devices in placement.items()})
        first = [pod for pod in pods if index_of(pod) < wanted.total()]
        if any(job_state.is_gated(pod) for pod in first):
            return all(job_state.is_gated(pod) for pod in first)
        return not Counter(map(job_state.host_of, first)) - wanted

    def _selector_differs(self, job: Object, placement: NodeDevices) -> bool:
        """Return whether the pods of a Job are bound to another flavor of Kueue than the placement's."""
        wanted = self._cluster.selector(tuple(placement))
        selector = job["spec"]["template"]["spec"].get("nodeSelector") or {}
        return any(selector.get(label, value) != value for label, value in wanted.items())

    def _observed(self, record: JobRecord, phase: Any, pods: Sequence[Object], reason: str = "") -> Observed:
        return Observed(
            phase=phase,
            placement=record.placement,
            target=record.target,
            since=record.stop_since or record.since,
            progress=self._progress(record, pods),
            reason=reason,
        )

    def _ended(
        self, record: JobRecord, job: Object | None, code: int, told: bool, at_s: float, why: str, pods: Sequence[Object]
    ) -> Observed:
        """Record the end of a job's Job, and return the state of the job, which may start at its next size."""
        progress = self._progress(record, pods)
        self._records.record_end(record.launch.name, code, told, at_s, why)
        seen = ended(record, self._records.end(record.launch.name), why, progress=progress)
        return self._moved(record, job, replace(seen, reason=why or seen.reason))

    def _progress(self, record: JobRecord, pods: Sequence[Object]) -> Mapping[str, float]:
        """Return the numbers that a job reported: on the volume if it is mounted here, else in the log of its first pod."""
        if progress := record.progress:
            return progress
        path = self._records.path(record.launch.name, "progress")
        first = next((pod for pod in pods if index_of(pod) == 0 and job_state.has_started(pod)), None)
        if first is not None and (text := self._cluster.report(first)):
            self._records.write(path, text)
            return numbers_of(text)
        return numbers_of(path.read_bytes()) if path.exists() else {}


def _job_of(handle: JobHandle, look: ClusterLook, name: str) -> Object | None:
    return next((job for job in look.jobs.get(name, ()) if job["metadata"]["name"] == handle.name), None)


def _pods_of(job: Mapping[str, Any], look: ClusterLook, name: str) -> list[Object]:
    uid = job["metadata"]["uid"]
    return [
        pod
        for pod in look.pods.get(name, ())
        if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or [])
    ]


def _start(pod: Mapping[str, Any]) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(START, ""))
