"""A job of a shared cluster: when it came, what it trains, and what a scheduler may choose for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from paceline.errors import UserError, shorten, shown
from paceline.scheduling.speeds.stated_strategy import parse_strategy

Choice = Literal["devices", "batch", "strategy"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
LONGEST_S = 1e9
"""No job lasts longer; a larger number is in another unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What its owner states. A job that says only ``devices`` and ``duration_s`` is rigid.

    Attributes:
        name: of its own in a trace.
        arrival_s: seconds after the start of the trace.
        model: a name of a profile or a network; empty where only a duration is known.
        devices: asked for; ``min_devices`` and ``max_devices`` bound an elastic job (0: the profile's or the cluster's bound).
        batch: samples a step over all devices, as asked for; 0: unknown. ``min_batch`` and ``max_batch`` bound an adaptive one.
        duration_s: on the devices asked for, at most ``LONGEST_S``; 0: unknown.
        steps, samples, epochs: the work, whichever is stated; 0: unknown. ``target``: a target's name.
        strategy: as ``stated_strategy`` reads it; empty: data parallelism, or the best one where it adapts.
        adapts: what a scheduler may choose: ``devices``, ``batch``, ``strategy``.
        device_types: the only ones it may use; empty: every type.
        weight: its share beside others, more than 0.
        deadline_s: seconds after the start of the trace; infinite: none.
        virtual_cluster, owner: whose quota it counts to.
    """

    name: str
    arrival_s: float = 0.0
    model: str = ""
    devices: int = 1
    min_devices: int = 1
    max_devices: int = 0
    batch: int = 0
    min_batch: int = 0
    max_batch: int = 0
    duration_s: float = 0.0
    steps: float = 0.0
    samples: float = 0.0
    epochs: float = 0.0
    target: str = ""
    strategy: str = ""
    adapts: frozenset[Choice] = frozenset()
    device_types: tuple[str, ...] = ()
    weight: float = 1.0
    deadline_s: float = math.inf
    virtual_cluster: str = ""
    owner: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise UserError("a job without a name", "name each job of a trace")
        for value, what, least in (
            (self.arrival_s, "arrival", 0.0),
            (self.duration_s, "duration", 0.0),
            (self.steps, "steps", 0.0),
            (self.samples, "samples", 0.0),
            (self.epochs, "epochs", 0.0),
        ):
            if not least <= value < math.inf:
                raise UserError(f"job {self._short}: {what} {shown(value)}", "give a number from 0 up")
        if self.duration_s > LONGEST_S:
            raise UserError(
                f"job {self._short}: duration {shown(self.duration_s)}", f"give at most {LONGEST_S:,.0f} s, 31 years"
            )
        if self.devices < 1 or self.min_devices < 1:
            raise UserError(
                f"job {self._short}: {min(self.devices, self.min_devices)} devices", "give a whole number from 1 up"
            )
        if self.max_devices and self.max_devices < self.min_devices:
            raise UserError(
                f"job {self._short}: {self.min_devices} to {self.max_devices} devices", "give the smaller number first"
            )
        if not 0 < self.weight < math.inf:
            raise UserError(f"job {self._short}: weight {shown(self.weight)}", "give a number above 0")
        if not self.deadline_s > self.arrival_s:
            raise UserError(
                f"job {self._short}: its deadline is not after its arrival", "give both in seconds after the trace's start"
            )
        if not (self.duration_s or self.steps or self.samples or self.epochs or self.target):
            raise UserError(f"job {self._short} states no work", "give duration_s, steps, samples, epochs or a target")
        if unknown := set(self.adapts) - set(CHOICES):
            raise UserError(f"job {self._short} adapts {', '.join(sorted(unknown))}", f"legal: {', '.join(CHOICES)}")

        if self.strategy:
            try:
                parse_strategy(self.strategy)
            except UserError as error:
                raise UserError(f"job {self._short}: {error.message}", error.fix) from None

    @property
    def _short(self) -> str:
        return repr(shorten(self.name, 40))

    def may_use(self, device_type: str) -> bool:
        """Whether its owner allows that type."""
        return not self.device_types or device_type in self.device_types


def check_names(jobs: Iterable[Job], places: Sequence[str] = ()) -> None:
    """Raises UserError where two jobs have one name; ``places``: file and row of each."""
    seen: dict[str, int] = {}
    for index, job in enumerate(jobs):
        if job.name in seen:
            where = f" ({places[seen[job.name]]}, and {places[index]})" if places else ""
            raise UserError(f"two jobs are named {shorten(job.name, 40)!r}{where}", "give each job a name of its own")
        seen[job.name] = index


__all__ = ["CHOICES", "LONGEST_S", "Choice", "Job", "check_names"]
