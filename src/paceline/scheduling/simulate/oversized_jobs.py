"""Jobs larger than the cluster, which are refused or left out with a note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.errors import NotMet, UserError, shorten
from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.schedule import RunningJob


def check_sizes(jobs: Sequence[Job], fleet: Fleet, places: Sequence[str] = ()) -> None:
    """Raise NotMet for a job that asks for more devices than any type it may use has.

    Args:
        places: file and row of each job.
    """
    most = [_usable_devices(job, fleet) for job in jobs]
    least = [job.min_devices if "devices" in job.adapts else job.devices for job in jobs]
    for index, job in enumerate(jobs):
        name = (f"{places[index]}: " if places else "") + f"job {shorten(job.name, 40)!r}"
        if not most[index]:
            raise UserError(f"{name} runs on {', '.join(job.device_types)}", f"the cluster has {', '.join(fleet.types)}")
        if least[index] > most[index]:
            others = sum(size > bound for size, bound in zip(least, most, strict=True)) - 1
            also = f" ({others:,} more of {len(jobs):,} jobs {'is' if others == 1 else 'are'} too large)" if others else ""
            inside = f"in one {job.topology}" if job.topology else "of one type that it may use"
            raise NotMet(
                f"{name} asks for {least[index]:,} devices; the cluster has {most[index]:,} {inside}{also}",
                "give a larger cluster, or leave such jobs out with `drop_too_large`",
            )


def without_too_large(jobs: Sequence[Job], fleet: Fleet) -> tuple[tuple[Job, ...], tuple[str, ...]]:
    """Return the jobs that fit one type, and a note on those left out.

    Raises:
        NotMet: no job fits.
    """
    stay = tuple(job for job in jobs if job.devices <= (_usable_devices(job, fleet) or job.devices))
    if not stay and jobs:
        least = min(job.devices for job in jobs)
        raise NotMet(f"all {len(jobs):,} jobs are larger than the cluster", f"give one of {least:,} devices or more")
    left_out = len(jobs) - len(stay)
    why = "they ask for more devices than the cluster has of one type"
    return stay, (f"{left_out:,} of {len(jobs):,} jobs left out: {why}.",) if left_out else ()


def _usable_devices(job: Job, fleet: Fleet) -> int:
    """Return the devices of the largest type, or domain, that a job may use; 0 if it may use none."""
    sizes = {"": lambda group: group.devices, "node": lambda group: group.devices_per_node, "rack": _rack_devices}
    return max((sizes[job.topology](group) for group in fleet.groups if job.may_use(group.device)), default=0)


def _rack_devices(group: NodeGroup) -> int:
    return min(group.leaf_nodes or group.nodes, group.nodes) * group.devices_per_node


def check_running(jobs: Sequence[Job], fleet: Fleet, start_s: float, running: Mapping[str, RunningJob]) -> None:
    """Raise UserError for jobs that cannot run where they are said to run at ``start_s``."""
    known = {job.name: job for job in jobs}
    used: dict[int, float] = {}
    for name, at in running.items():
        job, where = known.get(name), f"running job {shorten(name, 40)!r}"
        if job is None or job.arrival_s > start_s:
            raise UserError(f"{where} has not arrived", "give each running job among the jobs, with its arrival")
        nodes = [node for node, _ in at.placement]
        if not nodes or not all(0 <= node < len(fleet.node_types) for node in nodes):
            raise UserError(f"{where} is on nodes {nodes}", f"nodes are 0 to {len(fleet.node_types) - 1}")
        if len({int(fleet.node_types[node]) for node in nodes}) > 1:
            raise UserError(f"{where} is on nodes of several device types", "give nodes of one type")
        for node, count in at.placement:
            used[node] = used.get(node, 0.0) + count * job.share
            if used[node] > fleet.node_devices[node] + 1e-9:
                raise UserError(f"{where} needs more devices of node {node} than are free", "correct its nodes")
