"""Limits of Slurm that bind a job: those of its QOS, its user's association, the accounts above it, and its partition.

Slurm 25.05, resource_limits.html. A QOS comes before associations, and that of the partition before that of the job. The first
of them that states a limit counts. Limits of groups (``Grp*``) of associations bind at every level of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from paceline.errors import shorten
from paceline.units import format_seconds


@dataclass(frozen=True, kw_only=True)
class DeviceLimits:
    """Bounds on devices. None: no bound; 0: no job starts.

    Attributes:
        max_devices: most devices of the running jobs (``GrpTRES``).
        max_devices_per_job: ``MaxTRES``. ``max_devices_per_user``: ``MaxTRESPU``. ``max_devices_per_account``: ``MaxTRESPA``.
    """

    max_devices: int | None = None
    max_devices_per_job: int | None = None
    max_devices_per_user: int | None = None
    max_devices_per_account: int | None = None


@dataclass(frozen=True, kw_only=True)
class Limits(DeviceLimits):
    """Limits of an account, of a user in an account, or of a QOS. A limit per user or per account counts within the holder.

    Attributes:
        max_jobs: most running jobs (``GrpJobs``).
        max_jobs_per_user: ``MaxJobs`` of an account or user, ``MaxJobsPU`` of a QOS. ``max_jobs_per_account``: ``MaxJobsPA``.
        max_limit_s: longest time limit of a job (``MaxWall``); 0: no bound.
        of_type: bounds on devices of one type (``gres/gpu:a100``).
    """

    max_jobs: int | None = None
    max_jobs_per_user: int | None = None
    max_jobs_per_account: int | None = None
    max_limit_s: float = 0.0
    of_type: Mapping[str, DeviceLimits] = field(default_factory=dict)


Scope = tuple[str, ...]
"""Holder of a limit, with the user or the account if it counts for each: ``("qos", "high", "user", "ann")``."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Most devices or jobs of a scope.

    Attributes:
        what: ``devices`` or ``jobs`` that run at a time, ``job`` for the devices of one job, ``seconds`` for its time limit.
        device_type: type of the devices; empty: all.
    """

    scope: Scope
    what: str
    most: float
    device_type: str = ""

    def text(self, used: int, asked: int) -> str:
        """Return why a job waits: ``used`` devices or jobs are counted, and it asks for ``asked``."""
        if self.what == "devices":
            return f"{self._may()}: {used:,} were held, and it asks for {asked:,}"
        return f"{self._may()}: {used:,} ran" if self.what == "jobs" else self.text_alone(asked)

    def text_alone(self, asked: int) -> str:
        """Return why a job that asks for ``asked`` devices never starts."""
        if self.what == "seconds":
            return f"its time limit is longer than {self._may()}"
        return self._may() if self.what == "jobs" else f"it asks for {asked:,} devices, and {self._may()}"

    def _may(self) -> str:
        kind = f"{self.device_type} devices" if self.device_type else "devices"
        holder = scope_text(self.scope)
        if self.what == "seconds":
            return f"the {format_seconds(self.most)} that {holder} allows"
        if self.what == "jobs":
            return f"{holder} may run {self.most:,} jobs"
        return (
            f"a job of {holder} may hold {self.most:,} {kind}"
            if self.what == "job"
            else f"{holder} may hold {self.most:,} {kind}"
        )


def scope_text(scope: Scope) -> str:
    """Return a scope in words: ``user ann of QOS high``."""
    names = {"qos": "QOS", "cluster": "the cluster"}
    pairs = [f"{names.get(kind, kind)} {shorten(name, 40)}".strip() for kind, name in zip(scope[::2], scope[1::2], strict=True)]
    return " of ".join(reversed(pairs))


@dataclass(frozen=True)
class JobBounds:
    """Bounds of jobs of one user, account, partition and QOS.

    Attributes:
        scopes: scopes in which such a job counts. ``bounds``: bounds that it must keep.
        most_s: longest time limit; 0: no bound.
    """

    scopes: tuple[Scope, ...]
    bounds: tuple[Bound, ...]

    @property
    def most_s(self) -> float:
        """Longest time limit that a job may have; 0: no bound."""
        return min((bound.most for bound in self.bounds if bound.what == "seconds"), default=0.0)


Level = tuple[Scope, Limits]


def job_bounds(qualities: Sequence[Level], associations: Sequence[Level], user: str, account: str) -> JobBounds:
    """Return the bounds of a job.

    Args:
        qualities: qualities of service of its partition and its own, the first that counts first.
        associations: its user's association, its account, and the accounts above, up to the root.
    """
    levels = [*qualities, *associations]
    types = dict.fromkeys(kind for _, limits in levels for kind in limits.of_type)
    bounds = [*_job_counts(qualities, associations, user, account)]
    for kind in ("", *types):
        parts = [[(scope, _of_type(limits, kind)) for scope, limits in part] for part in (qualities, associations)]
        bounds += _device_counts(parts[0], parts[1], user, account, kind)
    for scope, limits in levels:
        if limits.max_limit_s:
            bounds.append(Bound(scope, "seconds", limits.max_limit_s))
            break
    return JobBounds(tuple(dict.fromkeys(_counted(qualities, associations, user, account))), tuple(bounds))


def _counted(qualities: Sequence[Level], associations: Sequence[Level], user: str, account: str) -> Iterator[Scope]:
    """Yield the scopes in which a job counts and some limit binds, of this job or of others."""
    for scope, limits in qualities:
        every = (limits, *limits.of_type.values())
        if limits.max_jobs is not None or any(each.max_devices is not None for each in every):
            yield scope
        if limits.max_jobs_per_user is not None or any(each.max_devices_per_user is not None for each in every):
            yield (*scope, "user", user)
        if limits.max_jobs_per_account is not None or any(each.max_devices_per_account is not None for each in every):
            yield (*scope, "account", account)
    for place, (scope, limits) in enumerate(associations):
        handed_down = not place and any(each.max_jobs_per_user is not None for _, each in associations)
        devices = any(each.max_devices is not None for each in (limits, *limits.of_type.values()))
        if limits.max_jobs is not None or devices or handed_down:
            yield scope


def _of_type(limits: Limits, kind: str) -> DeviceLimits:
    return limits.of_type.get(kind, _NO_LIMITS) if kind else limits


_NO_LIMITS = DeviceLimits()


def _job_counts(qualities: Sequence[Level], associations: Sequence[Level], user: str, account: str) -> Iterator[Bound]:
    """Yield the bounds on the number of jobs."""
    groups = [Bound(scope, "jobs", limits.max_jobs) for scope, limits in qualities if limits.max_jobs is not None][:1]
    yield from groups or (
        Bound(scope, "jobs", limits.max_jobs) for scope, limits in associations if limits.max_jobs is not None
    )
    each = [
        Bound((*scope, "user", user), "jobs", limits.max_jobs_per_user)
        for scope, limits in qualities
        if limits.max_jobs_per_user is not None
    ]
    each += [  # an account hands its limit down to its users, each of whom has it for himself
        Bound(associations[0][0], "jobs", limits.max_jobs_per_user)
        for _, limits in associations
        if limits.max_jobs_per_user is not None
    ]
    yield from each[:1]
    yield from [
        Bound((*scope, "account", account), "jobs", limits.max_jobs_per_account)
        for scope, limits in qualities
        if limits.max_jobs_per_account is not None
    ][:1]


def _device_counts(
    qualities: Sequence[tuple[Scope, DeviceLimits]],
    associations: Sequence[tuple[Scope, DeviceLimits]],
    user: str,
    account: str,
    kind: str,
) -> Iterator[Bound]:
    """Yield the bounds on devices of a type."""
    groups = [
        Bound(scope, "devices", limits.max_devices, kind) for scope, limits in qualities if limits.max_devices is not None
    ][:1]
    yield from groups or (
        Bound(scope, "devices", limits.max_devices, kind) for scope, limits in associations if limits.max_devices is not None
    )
    yield from [
        Bound(scope, "job", limits.max_devices_per_job, kind)
        for scope, limits in (*qualities, *associations)
        if limits.max_devices_per_job is not None
    ][:1]
    for name, most_of in (("user", "max_devices_per_user"), ("account", "max_devices_per_account")):
        yield from [
            Bound((*scope, name, user if name == "user" else account), "devices", most, kind)
            for scope, limits in qualities
            if (most := getattr(limits, most_of)) is not None
        ][:1]


def is_bounded(limits: Limits) -> bool:
    """Return whether any limit is stated."""
    stated = any(getattr(limits, each.name) is not None for each in fields(DeviceLimits))
    jobs = (limits.max_jobs, limits.max_jobs_per_user, limits.max_jobs_per_account)
    return stated or any(each is not None for each in jobs) or bool(limits.max_limit_s or limits.of_type)
