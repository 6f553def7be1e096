"""Devices and jobs in use against the limits of Slurm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from paceline.scheduling.job import Job
from paceline.scheduling.queues.fair_share import User
from paceline.scheduling.queues.slurm_limits import Bound, JobBounds, Scope
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.state import State
from paceline.scheduling.traces.type_names import types_meant


def user_of(job: Job) -> User:
    """Return the account and the user of a job."""
    return job.virtual_cluster or "default", job.owner or "default"


class BoundsInUse:
    """Devices and jobs that run, by the scopes of limits."""

    def __init__(self, state: State, settings: SlurmSettings) -> None:
        self._state, self._settings = state, settings
        self._any = settings.is_bounded
        self._devices: Counter[tuple[Scope, int]] = Counter()
        self._jobs: Counter[Scope] = Counter()
        self._meant: dict[str, frozenset[int]] = {}
        for index in np.flatnonzero(state.devices).tolist() if self._any else ():
            self.add(index, int(state.type_index[index]))

    def _bounds(self, index: int) -> JobBounds:
        job = self._state.jobs[index]
        return self._settings.bounds(*user_of(job), job.queue, job.qos)

    def add(self, index: int, group: int) -> None:
        """Count a job that runs or starts on a type."""
        if self._any:
            asked = int(self._state.requested[index])
            for scope in self._bounds(index).scopes:
                self._devices[scope, group] += asked
                self._jobs[scope] += 1

    def within(self, index: int, groups: Sequence[int]) -> tuple[list[int], str]:
        """Return the types on which a job may start within its limits, and the limit that it would break; empty: none."""
        if not self._any:
            return list(groups), ""
        legal, why = list(groups), ""
        for bound in self._bounds(index).bounds:
            meant = self._types(bound.device_type)
            reach = [group for group in legal if group in meant]
            if reach and (broken := self._broken(bound, index, meant)):
                legal, why = [group for group in legal if group not in meant], broken
        return legal, "" if legal or not groups else why

    def _broken(self, bound: Bound, index: int, meant: frozenset[int]) -> str:
        asked = int(self._state.requested[index])
        if bound.what == "devices":
            used, more = sum(self._devices[bound.scope, group] for group in meant), asked
        elif bound.what == "jobs":
            used, more = self._jobs[bound.scope], 1
        elif bound.what == "job":
            used, more = 0, asked
        else:
            used, more = 0, self._state.jobs[index].limit_s  # type: ignore[assignment]
        return bound.text(used, asked) if used + more > bound.most else ""

    def _types(self, name: str) -> frozenset[int]:
        """Return the types that a limit counts."""
        if name not in self._meant:
            types = self._state.fleet.types
            names = types_meant(name, types) if name else types
            self._meant[name] = frozenset(group for group, kind in enumerate(types) if kind in names)
        return self._meant[name]
