"""Devices and jobs in use against the limits of Slurm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from paceline.scheduling.queues.slurm_limits import Bound, Scope
from paceline.scheduling.queues.slurm_settings import JobKind, SlurmSettings
from paceline.scheduling.state import State
from paceline.scheduling.traces.type_names import types_meant


class BoundsInUse:
    """Devices and jobs that run, by the scopes of limits.

    Args:
        kinds: settings that apply to each job.
    """

    def __init__(self, state: State, settings: SlurmSettings, kinds: Sequence[JobKind]) -> None:
        self._state, self._kinds = state, kinds
        self._any = settings.is_bounded
        self._devices: Counter[tuple[Scope, int]] = Counter()
        self._jobs: Counter[Scope] = Counter()
        self._meant: dict[str, frozenset[int]] = {}
        self._found: dict[tuple[JobKind, int, float, tuple[int, ...]], tuple[tuple[int, ...], str]] = {}
        self._asked = state.requested.tolist()
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

    def within(self, index: int, groups: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
        """Return the types on which a job may start within its limits, and the limit that it would break; empty: none."""
        if not self._any or not (bounds := self._kinds[index].bounds.bounds):
            return groups, ""
        asked, limit_s = self._asked[index], self._state.jobs[index].limit_s
        key = self._kinds[index], asked, limit_s, groups
        if key not in self._found:
            self._found[key] = self._within(bounds, asked, limit_s, groups)
        return self._found[key]

    def _within(
        self, bounds: Sequence[Bound], asked: int, limit_s: float, groups: tuple[int, ...]
    ) -> tuple[tuple[int, ...], str]:
        legal, why = groups, ""
        for bound in bounds:
            meant = self._types(bound.device_type)
            reach = [group for group in legal if group in meant]
            if reach and (broken := self._broken(bound, asked, limit_s, meant)):
                legal, why = tuple(group for group in legal if group not in meant), broken
        return legal, "" if legal or not groups else why

    def _broken(self, bound: Bound, asked: int, limit_s: float, meant: frozenset[int]) -> str:
        used, more = 0, float(asked)
        if bound.what == "devices":
            used = sum(self._devices[bound.scope, group] for group in meant)
        elif bound.what == "jobs":
            used, more = self._jobs[bound.scope], 1
        elif bound.what == "seconds":
            more = limit_s
        return bound.text(used, asked) if used + more > bound.most else ""

    def _types(self, name: str) -> frozenset[int]:
        """Return the types that a limit counts."""
        if name not in self._meant:
            types = self._state.fleet.types
            names = types_meant(name, types) if name else types
            self._meant[name] = frozenset(group for group, kind in enumerate(types) if kind in names)
        return self._meant[name]
