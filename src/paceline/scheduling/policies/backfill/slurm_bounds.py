"""Devices and jobs in use against the limits of Slurm."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from paceline.scheduling.queues.slurm_limits import MINUTES, UNLIMITED_S, Bound, Scope, amount_of
from paceline.scheduling.queues.slurm_settings import JobKind, SlurmSettings
from paceline.scheduling.state import State
from paceline.scheduling.traces.type_names import types_meant


class BoundsInUse:
    """Devices and jobs that run, by the scopes of limits.

    Args:
        kinds: settings that apply to each job.

    Attributes:
        wake_s: first time at which a job waits no longer for a bound on minutes, which pass while others run; inf if none does.
    """

    def __init__(self, state: State, settings: SlurmSettings, kinds: Sequence[JobKind]) -> None:
        self._state, self._kinds = state, kinds
        self._any = settings.is_bounded
        self._devices: Counter[tuple[Scope, int]] = Counter()
        self._jobs: Counter[Scope] = Counter()
        self._meant: dict[str, frozenset[int]] = {}
        self._found: dict[
            tuple[JobKind, int, float, tuple[int, ...], tuple[tuple[str, float | None], ...]], tuple[tuple[int, ...], str]
        ] = {}
        self._asked = state.requested.tolist()
        self._resources = settings.limited_resources
        self._used: Counter[tuple[Scope, str]] = Counter()
        self._pace: Counter[tuple[Scope, str]] = Counter()
        self.wake_s = math.inf
        types = state.type_index.tolist()
        for index in np.flatnonzero(state.devices).tolist() if self._any else ():
            self.add(index, types[index])

    def add(self, index: int, group: int) -> None:
        """Count a job that runs or starts on a type."""
        if self._any and (scopes := self._kinds[index].bounds.scopes):
            self._found.clear()
            for scope in scopes:
                self._devices[scope, group] += self._asked[index]
                self._jobs[scope] += 1
                for resource, amount in self._amounts(index):
                    self._used[scope, resource] += amount or 0.0  # type: ignore[assignment]
                    if resource.endswith(MINUTES):
                        self._pace[scope, resource] += (amount or 0.0) / self._left_s(index)  # type: ignore[assignment]

    def _left_s(self, index: int) -> float:
        """Return the time until the limit of a job."""
        ran_s = float(self._state.run_s[index].sum()) if self._state.devices[index] else 0.0
        return max((self._state.jobs[index].limit_s or UNLIMITED_S) - ran_s, 1.0)

    def _amounts(self, index: int) -> tuple[tuple[str, float | None], ...]:
        """Return how much of each limited resource a job asks for or holds; None: it does not state it."""
        if not self._resources:
            return ()
        job, left_s = self._state.jobs[index], self._left_s(index)
        return tuple((name, amount_of(name, self._asked[index], left_s, job.resources)) for name in self._resources)

    def within(self, index: int, groups: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
        """Return the types on which a job may start within its limits, and the limit that it would break; empty: none."""
        if not self._any or not (bounds := self._kinds[index].bounds.bounds):
            return groups, ""
        asked, limit_s = self._asked[index], self._state.jobs[index].limit_s
        amounts = self._amounts(index)
        key = self._kinds[index], asked, limit_s, groups, amounts
        if key not in self._found:
            self._found[key] = self._within(bounds, asked, limit_s, groups, dict(amounts))
        return self._found[key]

    def _within(
        self,
        bounds: Sequence[Bound],
        asked: int,
        limit_s: float,
        groups: tuple[int, ...],
        amounts: Mapping[str, float | None],
    ) -> tuple[tuple[int, ...], str]:
        legal, why = groups, ""
        for bound in bounds:
            meant = self._types(bound.device_type)
            reach = [group for group in legal if group in meant]
            more = amounts[bound.resource] if bound.resource else asked
            if reach and more is not None and (broken := self._broken(bound, more, limit_s, meant)):
                legal, why = tuple(group for group in legal if group not in meant), broken
        return legal, "" if legal or not groups else why

    def _broken(self, bound: Bound, asked: float, limit_s: float, meant: frozenset[int]) -> str:
        used, more = 0.0, asked
        if bound.resource:
            used = self._used[bound.scope, bound.resource] if bound.what == "devices" else 0.0
            self._wait_for(bound, used + more - bound.most)
        elif bound.what == "devices":
            used = sum(self._devices[bound.scope, group] for group in meant)
        elif bound.what == "jobs":
            used, more = self._jobs[bound.scope], 1.0
        elif bound.what == "seconds":
            more = limit_s
        return bound.text(used, asked) if used + more > bound.most else ""

    def _wait_for(self, bound: Bound, excess: float) -> None:
        """Note the time at which running jobs have used up what a bound on minutes is exceeded by."""
        pace = self._pace[bound.scope, bound.resource]
        if excess > 0 and pace > 0:
            self.wake_s = min(self.wake_s, self._state.time_s + excess / pace + 1e-3)

    def _types(self, name: str) -> frozenset[int]:
        """Return the types that a limit counts."""
        if name not in self._meant:
            types = self._state.fleet.types
            names = types_meant(name, types) if name else types
            self._meant[name] = frozenset(group for group, kind in enumerate(types) if kind in names)
        return self._meant[name]
