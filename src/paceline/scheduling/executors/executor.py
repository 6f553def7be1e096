"""Interface between the live runner and executors of jobs on this machine, Slurm, Ray or Kubernetes. Policies never see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from paceline.errors import UserError, unknown
from paceline.scheduling.launch import Launch

NodeDevices = Mapping[str, int]
"""Devices of a job by the name of the node."""
Phase = Literal["waiting", "running", "stopping", "stopped", "done", "failed"]
"""``waiting``: submitted, not started. ``stopping``: told to save and end.

``stopped``: saved and ended, and can resume later.
"""


class Unavailable(RuntimeError):
    """Error of an executor that does not answer now, for example while slurmctld restarts.

    The outcome of the request is unknown, so ask again.
    """


@dataclass(frozen=True, kw_only=True)
class Observed:
    """State of a job in its executor.

    Attributes:
        placement: devices that it runs on or was submitted to.
        since: seconds of the epoch at which its phase began.
        target: devices that it is moving to; None: it stays.
        code: exit code; None: it runs, or the code is unknown.
        progress: numbers that it reported: ``step``, ``samples_per_s``, ``epoch``, ``accuracy`` ...
        reason: why it waits or failed.
    """

    phase: Phase
    placement: NodeDevices
    since: float
    target: NodeDevices | None = None
    code: int | None = None
    progress: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def holds_devices(self) -> bool:
        """True if the job occupies its devices."""
        return self.phase in ("waiting", "running", "stopping")


class Executor(Protocol):
    """Interface that runs jobs.

    Every method may raise Unavailable, after which the outcome is unknown, and UserError for an impossible request.

    An executor keeps its records in a directory, so that a new one on the same directory continues after a crash. Only one
    process may use that directory at a time; :class:`paceline.scheduling.live.journal.Journal` enforces this.
    """

    def submit(self, launch: Launch, placement: NodeDevices) -> None:
        """Start the job on these devices, from its checkpoint if it has one. A job that is already submitted is left alone."""

    def resize(self, name: str, placement: NodeDevices) -> None:
        """Begin to move a job: it saves and ends, and a later ``poll`` starts it at the new size."""

    def stop(self, name: str, grace_s: float) -> None:
        """Tell a job to save and end. A ``poll`` after ``grace_s`` seconds kills it."""

    def poll(self) -> Mapping[str, Observed]:
        """Return the present state of every job that was ever submitted, and advance pending stops and moves."""

    def nodes(self) -> Sequence[tuple[str, int]]:
        """Return the nodes that can run jobs now, with all their devices, free or not."""


@runtime_checkable
class NamesDevices(Protocol):
    """Executor that knows the devices of its nodes."""

    def device_types(self) -> Mapping[str, str]:
        """Return the device type by node. Nodes whose type is unknown are left out."""


@runtime_checkable
class ChecksJobs(Protocol):
    """Executor whose jobs run on other machines, so that it checks their folders itself."""

    def check(self, launch: Launch) -> None:
        """Raise UserError for a job that it cannot run."""


@runtime_checkable
class Watches(Protocol):
    """Executor that notices changes between two polls."""

    def wait(self, seconds: float) -> bool:
        """Wait for a change of a job, at most ``seconds``. Return whether there was one."""


def check_fits(launch: Launch, placement: NodeDevices, nodes: Sequence[tuple[str, int]]) -> None:
    """Raise UserError for a placement that the job cannot run on, or that exceeds the nodes."""
    sizes = dict(nodes)
    for node, devices in placement.items():
        if node not in sizes:
            raise unknown("node", node, sizes)
        if not 1 <= devices <= sizes[node]:
            raise UserError(f"{devices} devices of node {node}", f"it has {sizes[node]}")
    launch.check_size(sum(placement.values()))
