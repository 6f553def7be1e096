"""What runs jobs for real: the protocol, and the values that cross it. A policy never knows which executor it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from paceline.errors import UserError, unknown
from paceline.scheduling.launch import Launch

NodeDevices = Mapping[str, int]
"""Devices of a job on each node, by the node's name."""
Phase = Literal["waiting", "running", "stopping", "stopped", "done", "failed"]
"""``waiting``: submitted, not started. ``stopping``: told to save and end. ``stopped``: has done so, and can go on later."""
PHASES: tuple[Phase, ...] = get_args(Phase)


class Unavailable(RuntimeError):
    """The executor does not answer now, as while slurmctld is started anew; ask again. Nothing of what was asked is certain."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A job as its executor sees it.

    Attributes:
        placement: where it runs, or has been asked to; ``target``: where it is being moved to, if it is.
        since: seconds of the epoch at which it came into its phase.
        code: its exit code, where it has ended and that is known.
        progress: numbers that it has reported: ``step``, ``samples_per_s``, ``epoch``, ``accuracy`` ...
        reason: in words: why it waits or failed.
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
        """Whether its devices are not free for others."""
        return self.phase in ("waiting", "running", "stopping")


class Executor(Protocol):
    """Runs jobs. Every method may raise Unavailable, after which nothing is certain, and UserError for what cannot be.

    An executor keeps what it must know in a directory, so that another one with the same directory goes on after a crash.
    Nobody else may use that directory at the same time; :class:`paceline.scheduling.live.journal.Journal` sees to it.
    """

    def submit(self, launch: Launch, placement: NodeDevices) -> None:
        """Start the job there, from its checkpoint where it has one. One that is submitted already is left as it is."""

    def resize(self, name: str, placement: NodeDevices) -> None:
        """Begin to move a job: it saves, ends, and is started at the new size by a later ``poll``."""

    def stop(self, name: str, grace_s: float) -> None:
        """Tell a job to save and end. It is killed by a ``poll`` after ``grace_s`` seconds."""

    def poll(self) -> Mapping[str, Observed]:
        """Every job that was ever submitted, as it is now. Also does what stops and moves under way have come to."""

    def nodes(self) -> Sequence[tuple[str, int]]:
        """The nodes that can run jobs now, with their devices, free or not."""


def check_fits(launch: Launch, placement: NodeDevices, nodes: Sequence[tuple[str, int]]) -> None:
    """Raises UserError where the placement is no size of the job, or names a node or more devices than there are."""
    sizes = dict(nodes)
    for node, devices in placement.items():
        if node not in sizes:
            raise unknown("node", node, sizes)
        if not 1 <= devices <= sizes[node]:
            raise UserError(f"{devices} devices of node {node}", f"it has {sizes[node]}")
    launch.check_size(sum(placement.values()))
